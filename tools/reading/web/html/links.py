"""Prepare the links and pictures of the content: targets that a reader can use, and no others."""

import re
from urllib.parse import urldefrag, urljoin

from toolgate.tools.reading.web.html.edit import HEADINGS, REMOVE, UNWRAP, Element, create_element, has_text

MAX_LINK = 2_000  # characters; longer ones are data URLs
PERMALINKS = frozenset({"", "¶", "#", "§", "🔗", "link", "permalink", "anchor", "↩", "↩︎", "↑", "^", "⏎"})
SCRIPTS = ("javascript:", "data:", "vbscript:")
CODE = ("code", "kbd", "samp", "tt")
PICTURES = ("img", "picture", "svg", "video", "audio", "object", "iframe", "input")
LAZY = ("data-src", "data-lazy-src", "data-original", "data-lazy", "data-orig-file", "data-full-url", "data-url")
LAZY_SETS = ("data-srcset", "data-lazy-srcset", "srcset")
STAND_IN = re.compile(
    r"data:|about:|(?:.*[/_.-])?(?:placeholder|blank|spacer|lazy|lazyload|loading|loader|pixel|transparent|grey|gray"
    r"|1x1|clear)(?:[._-][\w.-]*)?(?:\?.*)?$",
    re.IGNORECASE,
)


def prepare_links(part: Element, url: str, base: str) -> None:
    """Leave the text alone of links within the page, without a target, or inside code; remove empty ones."""
    for link in list(part.iter("a")):
        _prepare_link(link, url, base)
    for code in part.iter(*CODE):
        for link in code.iter("a"):
            link.tag = UNWRAP


def prepare_pictures(part: Element) -> None:
    """Name the picture that a lazy one stands for; a title that repeats the text goes."""
    for image in part.iter("img"):
        _choose_source(image)
        title = image.attrib.pop("title", "").strip()
        if title and not image.get("alt", "").strip():
            image.set("alt", title)


def _move_into_heading(link: Element) -> None:
    """Write a link around a heading and more as a link in the heading."""
    heading = next(link.iter(*HEADINGS), None)
    if heading is None or not has_text(heading):
        return
    inner = create_element("a")
    inner.set("href", link.get("href", ""))
    inner.text = heading.text
    inner.extend(list(heading))
    heading.text = None
    heading.append(inner)
    link.tag = UNWRAP


def _prepare_link(link: Element, url: str, base: str) -> None:
    link.attrib.pop("title", None)
    target = "".join(link.get("href", "").split())
    is_empty = not has_text(link) and next(link.iter(*PICTURES), None) is None
    if (is_empty and link.get("href") is not None) or (
        target.startswith("#") and "".join(link.itertext()).strip().lower() in PERMALINKS
    ):
        link.tag = REMOVE
    elif not target or len(target) > MAX_LINK or target.lower().startswith(SCRIPTS) or _is_within(target, url, base):
        link.tag = UNWRAP
    else:
        _move_into_heading(link)


def _is_within(target: str, url: str, base: str) -> bool:
    """Return whether a link leads to a place on the page itself."""
    if "#" not in target:
        return False
    try:
        page, _ = urldefrag(urljoin(base, target))
    except ValueError:
        return False
    return page == urldefrag(url)[0] or (target.startswith("#") and base == url)


def take_fallback_pictures(body: Element) -> None:
    """Give a picture that a script would load the source of the one beside it for readers without scripts."""
    for noscript in body.iter("noscript"):
        fallback, image = noscript.find("img"), noscript.getprevious()
        if fallback is None or image is None or image.tag != "img" or not fallback.get("src"):
            continue
        _choose_source(image)
        source = image.get("src", "").strip()
        if not source or STAND_IN.match(source):
            image.set("src", fallback.get("src"))


def _choose_source(image: Element) -> None:
    source = image.get("src", "").strip()
    if source and not STAND_IN.match(source):
        return
    for name in LAZY:
        if lazy := image.get(name, "").strip():
            image.set("src", lazy)
            return
    for name in LAZY_SETS:
        if choices := image.get(name, "").split():
            image.set("src", choices[0].rstrip(","))
            return
