"""Convert the bytes of a page to text for a model: markdown, plain text or HTML.

A body with a `worker_job` may take for ever, and is converted in a worker (tools/reading/workers/worker.py).
"""

import codecs
import importlib
import re

import msgspec

from toolgate.tools.api.text.cleaning import clean_text, strip_markup, to_line
from toolgate.tools.reading.encodings.body import decode_body, load_codecs, needs_detection
from toolgate.tools.reading.web.content.choice import choose_content
from toolgate.tools.reading.web.content.documentation import find_generator
from toolgate.tools.reading.web.html.markdown import to_markdown
from toolgate.tools.reading.web.html.parse import find_base, find_title, parse_html
from toolgate.tools.reading.web.html.prepare import prepare as prepare_tree
from toolgate.tools.reading.web.media_types import HTML_TYPES, PDF, find_media_type, is_text_type

MAX_TEXT = 100_000  # characters of a page that are shown at once; a call's answer holds fewer
MAX_TITLE = 300  # characters
LITTLE = 64 * 2**10  # bytes of text that the server itself reads
INTERNAL = ("ascii", "latin-1", "utf-16", "charmap", "idna")  # what libraries use besides the web's encodings
SHORT = b"<title>Short</title><p>So little text that trafilatura tries all that it has, whose files are read then."
TITLE_WITHIN = 2**17  # characters at a page's beginning that are searched for a title
TITLE = re.compile(r"<title(?:\s[^<>]{0,200})?>([^<]{0,2000})", re.IGNORECASE)


class RawPage(msgspec.Struct, frozen=True):
    """A body from `url` with its header `content_type`, and the wanted format of HTML (see `read`). A converted
    text of up to `max_whole` bytes is returned whole, of a longer one MAX_TEXT characters from `offset` on."""

    body: bytes
    content_type: str
    url: str
    form: str
    offset: int = 0
    max_whole: int = 0

    @property
    def kind(self) -> str:
        return find_media_type(self.content_type, self.body)

    @property
    def worker_job(self) -> str:
        """The worker's job that reads it: a hostile page may not end. "" for one that takes milliseconds."""
        kind = self.kind
        if kind == PDF:
            return "pdf"
        if kind in HTML_TYPES and self.form != "html":
            return "page"
        if not is_text_type(kind):
            return ""
        is_long = len(self.body) > LITTLE or needs_detection(self.body, self.content_type)
        return "text" if is_long else ""


class ReadablePage(msgspec.Struct, frozen=True):
    """A page's media type, title (or ""), and its text of `length` characters, or a piece of it from `start` on. `text`
    is None if the type is no text. `note` tells the reader about the conversion."""

    kind: str
    title: str
    text: str | None
    length: int
    note: str = ""
    start: int = 0

    @property
    def is_whole(self) -> bool:
        return self.text is not None and len(self.text) == self.length

    def cut_piece(self, offset: int) -> "ReadablePage":
        """Return the page with at most MAX_TEXT characters of its text from the offset on."""
        begin = offset - self.start
        text = None if self.text is None else self.text[begin : begin + MAX_TEXT]
        return msgspec.structs.replace(self, text=text, start=offset)

    @property
    def is_html(self) -> bool:
        return self.kind in HTML_TYPES


def prepare() -> None:
    """Load all that conversion needs, a third of a second: a confined worker can load nothing later."""
    load_encodings()
    for form in ("markdown", "text"):
        read(RawPage(SHORT, "text/html", "http://example.com/", form))


def load_encodings() -> None:
    """Load all that decoding a text needs."""
    importlib.import_module("html")
    load_codecs()
    for name in INTERNAL:
        codecs.lookup(name)


def read(raw: RawPage) -> ReadablePage:
    """Return HTML as "markdown" or "text" of its main content, or unchanged ("html"). Links and images in the markdown
    are absolute. Other text is unchanged."""
    kind = raw.kind
    if not is_text_type(kind):
        return ReadablePage(kind, "", None, 0)
    decoded = decode_body(raw.body, raw.content_type, is_html=kind in HTML_TYPES)
    title, text = "", clean_text(decoded.text)
    if kind in HTML_TYPES:
        title, text = (_find_title(text), text) if raw.form == "html" else convert_html(text, raw.url, raw.form)
    return limit_text(ReadablePage(kind, title, text, len(text), decoded.note), raw)


def limit_text(page: ReadablePage, raw: RawPage) -> ReadablePage:
    """Return the page with its whole text, or a piece of one that is too long for that."""
    is_short = len((page.text or "").encode("utf-8", "replace")) <= raw.max_whole
    return page if is_short else page.cut_piece(raw.offset)


def convert_html(html: str, url: str, form: str) -> tuple[str, str]:
    """Return the title of an HTML page, and its text in that format."""
    tree = parse_html(html)
    if tree is None:
        return "", ""
    title = to_line(find_title(tree), MAX_TITLE)
    base = find_base(tree, url)
    generator = find_generator(tree)
    return title, to_markdown(choose_content(prepare_tree(tree), generator), url, base, form)


def _find_title(html: str) -> str:
    """Return the title, found without parsing: the format "html" must work for any page."""
    found = TITLE.search(html, 0, TITLE_WITHIN)
    return strip_markup(found[1], MAX_TITLE) if found else ""
