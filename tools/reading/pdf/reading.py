"""Read the text of a PDF, and say what is missing of it."""

import time
from collections.abc import Iterator

import msgspec

from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.outbound.errors import shorten_url
from toolgate.tools.api.text.cleaning import clean_text, to_line
from toolgate.tools.reading.pdf.document import PdfBrokenError, PdfDocument, PdfLockedError, open_pdf
from toolgate.tools.reading.pdf.library import load_library
from toolgate.tools.reading.pdf.page import MAX_CHARACTERS
from toolgate.tools.reading.pdf.page_text import read_page_text
from toolgate.tools.reading.web.convert import MAX_TITLE, RawPage, ReadablePage, limit_text
from toolgate.tools.reading.web.media_types import PDF

MAX_PAGES = 2_000
MAX_SIZE = 6_500_000  # bytes of all pages as UTF-8, which are kept for all pieces (MAX_WHOLE in tools/reading/pages)
MAX_SECONDS = 15.0  # then a partial text is used: the worker has 20
MAX_LISTED = 10  # page numbers or attachments that a note lists
MAX_NAME = 60  # characters of an attachment's name
NO_TEXT = "may be pictures, as scans are; make images of them (pdftoppm -png) for ReadImage, or use OCR (ocrmypdf)"


class PageText(msgspec.Struct, frozen=True):
    """The text of a page. `is_picture`: something is drawn on it, but no text."""

    text: str = ""
    is_broken: bool = False
    is_picture: bool = False
    is_cut: bool = False


def prepare() -> None:
    """Load all that reading a PDF needs: a confined worker can load nothing later."""
    load_library()
    "".encode("utf-16-le")


def read_pdf(raw: RawPage) -> ReadablePage:
    """Return the text of a PDF's pages, an empty line between them. Raises ToolError for one that can't be read."""
    name = shorten_url(raw.url)
    try:
        with open_pdf(raw.body) as document:
            pages = _read_pages(document)
            if document.is_damaged and not any(page.text or page.is_picture for page in pages):
                raise PdfBrokenError
            note = "; ".join(_describe(document, pages))
            title = to_line(document.title, MAX_TITLE)
    except PdfLockedError:
        raise ToolError(f"{name} is a PDF that needs a password; look for an open version of it") from None
    except PdfBrokenError:
        raise ToolError(f"{name} is a PDF that can't be read: it is broken or cut short") from None
    text = "\n\n".join(page.text for page in pages if page.text)
    return limit_text(ReadablePage(PDF, title, text, len(text), note), raw)


def _read_pages(document: PdfDocument) -> list[PageText]:
    """Return the pages, as far as the limits allow."""
    pages: list[PageText] = []
    start, size = time.monotonic(), 0
    for number in range(document.page_count):
        if number >= MAX_PAGES or size > MAX_SIZE or time.monotonic() - start > MAX_SECONDS:
            break
        pages.append(_read_page(document, number))
        size += len(pages[-1].text.encode())
    return pages


def _read_page(document: PdfDocument, number: int) -> PageText:
    with document.open_page(number) as page:
        if page is None:
            return PageText(is_broken=True)
        text = clean_text(read_page_text(page)).strip("\n")
        return PageText(text, is_picture=not text and page.has_content(), is_cut=page.is_cut())


def _describe(document: PdfDocument, pages: list[PageText]) -> Iterator[str]:
    """Yield what the reader has to know of a PDF."""
    if document.is_damaged:
        yield "the PDF is damaged or cut short: what could be found of it was read"
    if len(pages) < document.page_count:
        yield f"only the first {len(pages)} of its {document.page_count} pages were read"
    if broken := [number for number, page in enumerate(pages, 1) if page.is_broken]:
        yield f"{_list_numbers(broken)} can't be read"
    if cut := [number for number, page in enumerate(pages, 1) if page.is_cut]:
        yield f"of {_list_numbers(cut)} only the first {MAX_CHARACTERS:,} characters were read"
    pictures = [number for number, page in enumerate(pages, 1) if page.is_picture]
    if not any(page.text for page in pages):
        yield f"the PDF has no text: its pages {NO_TEXT if pictures else 'are empty'}"
    elif pictures:
        yield f"{_list_numbers(pictures)} show{'s' * (len(pictures) == 1)} no text: they {NO_TEXT}"
    names = [to_line(name, MAX_NAME) for name in document.read_attachments()]
    if names:
        yield f"files attached to the PDF, not shown: {_list(names)}"


def _list_numbers(numbers: list[int]) -> str:
    return f"page{'s' * (len(numbers) > 1)} {_list([str(number) for number in numbers])}"


def _list(words: list[str]) -> str:
    more = f" and {len(words) - MAX_LISTED} more" if len(words) > MAX_LISTED else ""
    return ", ".join(words[:MAX_LISTED]) + more
