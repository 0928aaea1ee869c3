"""Chromium's pages become text as those of the plain fetch do: each kind of content, and never less."""

import asyncio
import gzip
import os

import pytest

from tests.tools.fake_web_site import Answer, site
from tests.tools.reading.web.page_kinds import KINDS, page
from tests.tools.tool_calls import lend, text
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.outbound.fetch import Web
from toolgate.tools.builtin.docs import read_docs
from toolgate.tools.reading.browser.find_chromium import find_chromium
from toolgate.tools.reading.pages.local_page_reader import LocalPageReader

BOUND = 120.0  # seconds for all pages: test machines are busy
CHROMIUM = ("chromium-headless-shell", "chromium")


def read_all(pages: dict[str, Answer]) -> dict[str, str]:
    """Return the answers of ReadDocs for the paths of a site, read at once in one browser."""
    chromium = next(filter(None, (find_chromium(kind, os.environ.get("PATH")) for kind in CHROMIUM)), None)
    assert chromium is not None

    async def read(reader: LocalPageReader, url: str, principal: str) -> str:
        nothing = None
        context = Context(lend(reader=reader, principal=principal), nothing)  # type: ignore[arg-type]
        return text(await read_docs.run({"url": url}, context))

    async def scenario() -> dict[str, str]:
        async with site(pages) as place:
            reader = LocalPageReader(Web(["127.0.0.1"]), chromium)
            try:
                reading = (read(reader, place.url(path), str(number % 3)) for number, path in enumerate(pages))
                return dict(zip(pages, await asyncio.gather(*reading), strict=True))
            finally:
                await reader.close()

    return asyncio.run(asyncio.wait_for(scenario(), BOUND))


BODY = b"<!doctype html><title>t</title><p>The first half of it. " + b"Words of it. " * 2_000
PACKED = gzip.compress(BODY, mtime=0)
OTHERS: dict[str, Answer] = {
    "/cut": (200, {"content-type": "text/html", "content-encoding": "gzip"}, PACKED[:-30]),
    "/whole": (200, {"content-type": "text/html", "content-encoding": "gzip"}, PACKED),
    "/words": (200, {"content-type": "text/html", "content-encoding": "utf-8"}, b"<p>Plain as it is."),
    "/busy": (429, {"content-type": "text/html", "retry-after": "12"}, b"<p>Too fast"),
    "/code.ts": (200, {"content-type": "video/mp2t"}, b"type A = 1"),
    "/frames": b'<html><frameset cols="1,2"><frame src="/words"><frame src="javascript:0"></frameset></html>',
}


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """The answer for one page of each kind, which holds all of its fragments, and for each of the others."""
    pages: dict[str, Answer] = {}
    for kind, fragments in KINDS.items():
        body = page(*(fragment.html for fragment in fragments), title=kind)
        pages[f"/{kind.replace(' ', '-')}"] = (200, {"content-type": "text/html"}, body)
    return dict(zip([*KINDS, *OTHERS], read_all({**pages, **OTHERS}).values(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_content_becomes_text_in_chromium_too(answers: dict[str, str], kind: str) -> None:
    answer = answers[kind]
    assert "fetched without a browser" not in answer
    missing = [(each.name, words) for each in KINDS[kind] for words in each.present if words not in answer]
    assert missing == []
    assert (answer.count("passes"), answer.count("lens")) >= (4, 4)


def test_a_page_whose_packed_data_is_cut_says_so_and_a_whole_one_without_end_tags_does_not(
    answers: dict[str, str],
) -> None:
    assert "The first half of it." in answers["/cut"]
    assert "(it broke off: read as far as it came)" in answers["/cut"]
    assert "broke off" not in answers["/whole"]


def test_kinds_of_answers_are_read_in_chromium_too(answers: dict[str, str]) -> None:
    assert "Plain as it is." in answers["/words"]
    assert "429 Too Many Requests; try again after 12 s" in answers["/busy"]
    assert "type A = 1" in answers["/code.ts"]
    assert "Plain as it is." in answers["/frames"]
