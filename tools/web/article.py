"""Find the main content of an HTML page and prepare it for conversion.

trafilatura finds the content's text, but loses code languages, numbered lists and the page's base. So its text only
locates the content; the located part of the original page is converted.
"""

import copy
import importlib
import logging
import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import dropwhile, islice
from typing import Any
from urllib.parse import urljoin

import msgspec

log = logging.getLogger(__name__)

MAX_ELEMENTS = 30_000  # above, trafilatura takes seconds, and the page's own <main> is used
MAX_PIECES = 200  # of the content's text, searched for in the page's
MAX_CELLS = 200  # in a table row: every row is padded to the longest
MAX_LINK = 2_000  # characters; longer ones are data URLs
MAX_ATTRIBUTE = 1_000  # characters; lookups of ancestors read long ones again and again
COVERED = 0.97  # share of the content's text that the chosen part must hold
ENOUGH = 0.4  # share of the page's running text that it must hold, else it was not the content
LITTLE = 200  # characters: a shorter page was likely to be filled by scripts

UNREADABLE = ("script", "style", "template", "svg", "math", "canvas", "object", "embed", "head")
HEAD = frozenset(("title", "meta", "link", "style", "script", "base", "noscript", "template"))  # what may stand there
CONTROLS = ("button", "input", "select", "textarea", "dialog")
AROUND = ("nav", "footer")
LANGUAGE = re.compile(r"(?:^|\s)(?:language-|lang-|highlight-source-|highlight-|brush:\s*)([A-Za-z][\w+#.-]{0,19})")
NO_LANGUAGE = frozenset({"default", "none", "notranslate", "highlight", "text", "plaintext"})
LONG = f"descendant-or-self::*[@*[string-length(.) > {MAX_ATTRIBUTE}]]"
AROUND_WORDS = r"(?i)</?(?:span|font|b|i|em|strong)(?:\s[^<>]*)?>"
AROUND_BLOCKS = r"(?i)(?:</?(?:div|section|article|main|center|blockquote)(?:\s[^<>]*)?>\s*)+"
ADDRESSES = frozenset({"href", "src", "data-src"})
PERMALINKS = frozenset({"", "¶", "#", "§", "🔗", "link"})
UNWANTED = "toolgate-unwanted"  # the tag of elements removed for another reason than their own tag

Element = Any  # lxml has no types


class TextSpan(msgspec.Struct):
    """The position of an element's text in the page's, without white space; `prose` is the part outside links."""

    element: Element
    depth: int
    start: int
    end: int = 0
    prose: int = 0


def parse_html(html: str) -> Element:
    """Return the tree of a page, or None for an empty one. lxml drops what is deeper than 256 elements, so a page with
    more loses the elements around its paragraphs, and no text."""
    tree, is_cut = _parse(html)
    if is_cut:
        tree, _ = _parse(re.sub(AROUND_BLOCKS, "<br>", re.sub(AROUND_WORDS, "", html)))
    if tree is not None:
        _end_head(tree)
    return tree


def _parse(html: str) -> tuple[Element, bool]:
    """Return the tree, or None for an empty page, and whether it was too deep."""
    lxml_html: Any = importlib.import_module("lxml.html")  # start-up; untyped
    parser = lxml_html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
    try:
        tree = lxml_html.document_fromstring(html.encode(), parser=parser)
    except importlib.import_module("lxml.etree").ParserError:  # empty
        return None, False
    return tree, any("Excessive depth" in each.message for each in parser.error_log)


def _end_head(tree: Element) -> None:
    """Move stray elements to the body: lxml knows HTML 4, and takes HTML 5's elements for part of the head."""
    head = tree.find("head")
    strays = [] if head is None else list(dropwhile(lambda part: part.tag in HEAD, head))
    if not strays:
        return
    body = tree.find("body")
    if body is None:
        body = importlib.import_module("lxml.etree").SubElement(tree, "body")
    strays[-1].tail = (strays[-1].tail or "") + (body.text or "")
    body.text = None
    for stray in reversed(strays):
        body.insert(0, stray)


def to_html(element: Element) -> str:
    lxml_html: Any = importlib.import_module("lxml.html")  # start-up; untyped
    text: str = lxml_html.tostring(element, encoding="unicode", with_tail=False)
    return text


def find_title(tree: Element) -> str:
    for path in (".//title", ".//h1"):
        for element in tree.iterfind(path):
            text = "".join(element.itertext()).strip()
            if text:
                return text
    return ""


def find_base(tree: Element, url: str) -> str:
    """Return the base of the page's relative links."""
    for element in tree.iterfind(".//base[@href]"):
        try:
            joined = urljoin(url, element.get("href").strip())
        except ValueError:
            break
        return joined if joined.startswith(("http://", "https://")) else url
    return url


def extract_content(tree: Element) -> Element:
    """Return the content of the page, prepared: at most the whole body. Changes the tree."""
    body = tree.find("body") if tree.tag == "html" else tree
    body = tree if body is None else body
    if _is_for_scripts(body):
        for noscript in list(body.iter("noscript")):
            noscript.tag = "div"
    body = _without(body, (*UNREADABLE, *CONTROLS, "noscript"))
    for element in body.xpath(LONG):
        for name in set(element.keys()) - ADDRESSES:
            if len(element.get(name)) > MAX_ATTRIBUTE:
                del element.attrib[name]
    part = _find_main(body)
    _clean_part(part)
    _strip(part, (UNWANTED, *(AROUND if part is not body else ())))
    return part


def _is_for_scripts(body: Element) -> bool:
    etree: Any = importlib.import_module("lxml.etree")
    seen = 0
    walk = etree.iterwalk(body, events=("start", "end"))
    for event, element in walk:
        if event == "end":
            seen += 0 if element is body else len((element.tail or "").strip())
        elif element.tag in ("script", "style", "noscript"):
            walk.skip_subtree()
        else:
            seen += len((element.text or "").strip())
        if seen >= LITTLE:
            return False
    return True


def _without(body: Element, tags: Sequence[str]) -> Element:
    """Return the body without these elements; the text behind them stays. That leaves adjacent pieces of text, which
    lxml joins in quadratic time on each read. A second parsing joins them once."""
    if next(body.iter(*tags), None) is None:
        return body
    _strip(body, tags)
    tree = parse_html(to_html(body))
    if tree is None:
        return body
    inner = tree.find("body")
    return tree if inner is None else inner


def _strip(part: Element, tags: Sequence[str]) -> None:
    importlib.import_module("lxml.etree").strip_elements(part, *tags, with_tail=False)


def _find_main(body: Element) -> Element:
    squeezed, spans = _spans(body)
    if not spans:
        return body
    if len(spans) <= MAX_ELEMENTS:
        part = _locate(_main_text(body), squeezed, spans)
    else:
        marked = [span for span in spans if span.element.tag in ("main", "article")]
        part = max(marked, key=lambda span: span.prose, default=None)
    return body if part is None or part.prose < ENOUGH * spans[0].prose else part.element


def _main_text(body: Element) -> str:
    trafilatura: Any = importlib.import_module("trafilatura")  # start-up; a third of a second
    try:
        text = trafilatura.extract(
            copy.deepcopy(body),
            output_format="txt",
            favor_recall=True,
            include_comments=False,
            include_tables=True,
            deduplicate=False,
        )
    except Exception:  # the page can be read without it
        log.info("trafilatura failed on a page", exc_info=True)
        return ""
    return text or ""


def _spans(body: Element) -> tuple[str, list[TextSpan]]:
    """Return the body's text without white space, and each element's position in it, in document order."""
    etree: Any = importlib.import_module("lxml.etree")
    pieces: list[str] = []
    spans: list[TextSpan] = []
    open_spans: list[TextSpan] = []
    position = prose = links = 0

    def take(text: str | None) -> None:
        nonlocal position, prose
        squeezed = "".join((text or "").split())
        pieces.append(squeezed)
        position += len(squeezed)
        prose += 0 if links else len(squeezed)

    for event, element in etree.iterwalk(body, events=("start", "end")):
        if event == "start":
            span = TextSpan(element, len(open_spans), position, prose=-prose)
            spans.append(span)
            open_spans.append(span)
            links += element.tag == "a"
            take(element.text)
        else:
            span = open_spans.pop()
            span.end = position
            span.prose += prose
            links -= element.tag == "a"
            if open_spans:
                take(element.tail)
    return "".join(pieces), spans


def _locate(text: str, squeezed: str, spans: list[TextSpan]) -> TextSpan | None:
    """Return the innermost element that holds nearly all of `text`."""
    positions, weights = _locate_lines(text, squeezed)
    if not positions:
        return None
    sums = [0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    needed = COVERED * sums[-1]
    holding = (
        span
        for span in spans
        if sums[bisect_left(positions, span.end)] - sums[bisect_left(positions, span.start)] >= needed
    )
    return max(holding, key=lambda span: span.depth, default=None)


def _locate_lines(text: str, squeezed: str) -> tuple[list[int], list[int]]:
    """Return the positions of the lines of `text` in the page's text, in order, and their weights."""
    lines = ["".join(line.split()).lstrip("-|")[:200] for line in text.splitlines()]
    lines = [line.split("|")[0] for line in lines]
    lines = [line for line in lines if len(line) >= 4]
    step = max(1, len(lines) // MAX_PIECES)
    positions: list[int] = []
    weights: list[int] = []
    cursor = 0
    for line in lines[::step]:
        at = squeezed.find(line, cursor)
        if at >= 0:
            positions.append(at)
            weights.append(len(line))
            cursor = at + len(line)
    return positions, weights


def _clean_part(part: Element) -> None:
    _name_languages(part)
    for row in part.iter("tr"):
        del row[MAX_CELLS:]
    for cell in part.iter("td", "th"):
        for span in ("colspan", "rowspan"):
            if len(cell.get(span, "")) > 2:  # a hundred columns and more
                del cell.attrib[span]
    for link in list(part.iter("a")):
        target = "".join(link.get("href", "").split()).lower()
        if target.startswith(("javascript:", "data:", "vbscript:")) or len(target) > MAX_LINK:
            del link.attrib["href"]
        elif target.startswith("#") and not len(link) and (link.text or "").strip() in PERMALINKS:
            link.tag = UNWANTED
    for image in part.iter("img"):
        lazy = image.get("data-src")
        if lazy and image.get("src", "data:").startswith("data:"):
            image.set("src", lazy)


def _name_languages(part: Element) -> None:
    """Write the language as `language-…` on the <pre>, where the conversion looks for it."""
    named: dict[Element, str] = {}  # an element may contain many <pre>
    for pre in part.iter("pre"):
        code = pre.find("code")
        for element in [*([] if code is None else [code]), pre, *islice(pre.iterancestors(), 2)]:
            if element not in named:
                named[element] = _language(element)
            if named[element]:
                pre.set("class", f"language-{named[element]}")
                break


def _language(element: Element) -> str:
    """Return the programming language that an element names, or ""."""
    said = element.get("data-lang") or element.get("data-language") or ""
    match = LANGUAGE.search(element.get("class", "")) or LANGUAGE.search(f"lang-{said}")
    return match[1] if match and match[1].lower() not in NO_LANGUAGE else ""
