"""Parse the HTML of a page to a tree of bounded depth."""

import importlib
import re
import unicodedata
from itertools import dropwhile
from typing import Any
from urllib.parse import urljoin

from toolgate.tools.api.text.cleaning import remove_invisible
from toolgate.tools.reading.web.html.depth import flatten_markup, remove_inline_tags, remove_tags
from toolgate.tools.reading.web.html.edit import Element

MAX_DEPTH = 200  # levels of elements; later steps lose what lies deeper
TOO_DEEP = "/*" * (MAX_DEPTH + 1)
HEAD = frozenset(("title", "meta", "link", "style", "script", "base", "noscript", "template"))  # what may stand there
INVISIBLE = re.compile(
    r"&(?:shy|ZeroWidthSpace|NoBreak|NegativeThinSpace|ic|it|af|InvisibleComma|InvisibleTimes|ApplyFunction"
    r"|#0*(?:173|8203|8288|8289|829[0-2]|65279)|#[xX]0*(?:[aA][dD]|200[bB]|206[0-4]|[fF][eE][fF][fF]));"
)
PREFIX = re.compile(r"(</?)(?:m|mml|math|mathml):(?=[a-z])")  # of MathML's namespace, which HTML has not


def parse_html(html: str) -> Element:
    """Return the tree of a page, or None for an empty one, without invisible characters and in Unicode's form NFC.
    Elements around what is nested too deep are lost, but no text."""
    html = INVISIBLE.sub("", remove_invisible(html))
    if ":math" in html:
        html = PREFIX.sub(r"\1", html)
    tree, is_deep = _parse(html)
    for flatten in (remove_inline_tags, flatten_markup, remove_tags):
        if is_deep:
            html = flatten(html)
            tree, is_deep = _parse(html)
    if tree is not None:
        _end_head(tree)
        if not unicodedata.is_normalized("NFC", html):
            _compose(tree)
    return tree


def join_text(tree: Element) -> Element:
    """Return the tree with each text in one piece: lxml joins adjacent pieces in quadratic time on each read."""
    joined, _ = _parse(to_html(tree))
    return tree if joined is None else joined


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


def _parse(html: str) -> tuple[Element, bool]:
    """Return the tree, or None for an empty page, and whether it is too deep."""
    lxml_html: Any = importlib.import_module("lxml.html")  # start-up; untyped
    parser = lxml_html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, huge_tree=True)
    try:
        tree = lxml_html.document_fromstring(html.encode(), parser=parser)
    except importlib.import_module("lxml.etree").ParserError:  # empty
        return None, False
    is_cut = any("Excessive depth" in each.message for each in parser.error_log)
    return tree, is_cut or bool(tree.xpath(TOO_DEEP))


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


def _compose(tree: Element) -> None:
    """Compose letters and their accents, in text alone: an address stays as it is."""
    for element in tree.iter():
        if element.text:
            element.text = unicodedata.normalize("NFC", element.text)
        if element.tail:
            element.tail = unicodedata.normalize("NFC", element.tail)
