"""Make the document that ReadDocs returns from a loaded and converted page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from toolgate.tools.api.context.services import Page
from toolgate.tools.api.outbound.errors import BROKE_OFF
from toolgate.tools.api.text.cleaning import to_line, truncate
from toolgate.tools.reading.pages.page_reader import MAX_ANSWER, Format, PageDocument, PageRequest

if TYPE_CHECKING:
    from toolgate.tools.reading.web.convert import ReadablePage  # start-up

MAX_WORDS = 400  # characters of an answer for what is said of what was cut
MAX_NOTE = 500  # characters of one thing that is said
MAX_WAIT = 40  # characters of the time after which to try again
MAX_ERROR_TEXT = 2_000  # characters of the body of an error page


class LoadedPage(msgspec.Struct, frozen=True):
    """A page from the browser or the fetch; `notes` tell the reader about problems of the load."""

    page: Page
    rendered: bool
    notes: tuple[str, ...] = ()


def create_document(
    loaded: LoadedPage, readable: "ReadablePage", request: PageRequest, more: Sequence[str] = ()
) -> PageDocument:
    """Return the part of the page that `request` is for, notes on what is missing, and `more` notes."""
    page = loaded.page
    head = [f"Title: {readable.title}"] if readable.title else []
    head.append(f"URL: {page.url}")
    said = [*(loaded.notes if readable.is_html else ()), BROKE_OFF if page.is_incomplete else "", readable.note, *more]
    notes = [f"({to_line(note, MAX_NOTE)})" for note in said if note]
    taken = sum(map(len, [*head, *notes])) + len(page.url)  # it may be said again
    text = truncate(readable.text or "", MAX_ANSWER - taken - MAX_WORDS)
    end = request.offset + len(text)
    truncated = end < readable.length or page.truncated or page.is_incomplete
    if truncated or request.offset:
        notes.append(_cut_note(loaded, readable, request.offset, end))
    if not text:
        notes.append(_empty_note(loaded, readable, request.offset))
    form = request.format if readable.is_html else "text"
    note = "\n".join(notes) or None
    return PageDocument(page.url, readable.title, page.status, form, loaded.rendered, truncated, text, note)


def _cut_note(loaded: LoadedPage, readable: "ReadablePage", start: int, end: int) -> str:
    more = " and more" if loaded.page.truncated or loaded.page.is_incomplete else ""
    part = f"characters {start:,} to {end:,}" if start else f"the first {end:,}"
    url = loaded.page.url
    on = f"; read on with {url}{'&' if '#' in url else '#'}toolgate-offset={end}" if end < readable.length else ""
    return f"(cut: {part} of {readable.length:,}{more} characters are shown{on})"


def _empty_note(loaded: LoadedPage, readable: "ReadablePage", offset: int) -> str:
    if offset:
        return "(there is nothing beyond that offset)"
    if not readable.is_html:
        return "(empty)"
    if loaded.rendered:
        return "(the page shows no text; with a larger wait_ms it may)"
    return "(the page has no text; it may need scripts to show any)"


def create_error_document(loaded: LoadedPage, readable: "ReadablePage", form: Format) -> PageDocument:
    """Return an HTTP error, with the beginning of its text."""
    page = loaded.page
    text = truncate(readable.text or "", MAX_ERROR_TEXT)
    truncated = len(text) < readable.length
    head = f"{page.url} answered with HTTP status {_format_status(page.status)}"
    if wait := to_line(page.headers.get("retry-after", ""), MAX_WAIT):
        head = f"{head}; try again {f'after {wait} s' if wait.isdecimal() else f'at {wait}'}"
    return PageDocument(page.url, readable.title, page.status, form, loaded.rendered, truncated, text, head)


def _format_status(status: int) -> str:
    from http import HTTPStatus  # start-up

    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
