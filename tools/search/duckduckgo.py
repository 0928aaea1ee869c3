"""Reads DuckDuckGo's results page without scripts (html.duckduckgo.com)."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

from toolgate.tools.search.engine import MAX_FOUND, Found


def parse(body: bytes) -> list[Found]:
    """Raises ValueError for a page that is not one of results."""
    from toolgate.tools import article  # start-up: lxml

    page = article.parsed(body.decode("utf-8", "replace"))
    if page is None or page.find(".//*[@id='links']") is None:
        raise ValueError("not a page of results")
    found = [_found(block) for block in page.iterfind(".//div[@class]") if _is_result(block)]
    return [one for one in found if one.url][:MAX_FOUND]


def _is_result(block: Any) -> bool:
    classes = block.get("class").split()
    return "result" in classes and "result--ad" not in classes


def _found(block: Any) -> Found:
    link = block.find(".//a[@class='result__a']")
    snippet = block.find(".//*[@class='result__snippet']")
    if link is None:
        return Found("", "", "")
    return Found(_text(link), _target(link.get("href", "")), "" if snippet is None else _text(snippet))


def _target(href: str) -> str:
    """Links go through `/l/?uddg=<target>`."""
    parts = urlsplit(href)
    if (parts.hostname or "").endswith("duckduckgo.com"):
        return parse_qs(parts.query).get("uddg", [""])[0] if parts.path == "/l/" else ""
    return href


def _text(element: Any) -> str:
    return "".join(element.itertext())
