"""Turns a PDF into its text. CPU work that may take for ever: to be done in a worker (tools/workers/worker.py)."""

import contextlib
import importlib
import io
import logging
import pkgutil
import time
from typing import Any

from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.text import clean_text, to_line
from toolgate.tools.web.convert import MAX_TEXT, MAX_TITLE, PDF, RawPage, ReadablePage, load_encodings
from toolgate.tools.web.page import shorten_url

MAX_PAGES = 2_000
MAX_LENGTH = 4_000_000  # characters of all pages
MAX_SECONDS = 15.0  # then what there is must do: the worker has 20


def prepare() -> None:
    """Load all of it, and what it reads texts with: nothing can be loaded once foreign bytes are there."""
    pypdf: Any = importlib.import_module("pypdf")
    for module in pkgutil.walk_packages(pypdf.__path__, "pypdf."):
        with contextlib.suppress(ImportError):  # what only one of its optional libraries would need
            importlib.import_module(module.name)
    load_encodings()


def read(raw: RawPage) -> ReadablePage:
    """The text of its pages, an empty line between them. Raises ToolError for one that can't be read."""
    pypdf: Any = importlib.import_module("pypdf")  # start-up
    logging.getLogger("pypdf").disabled = True  # it has much to say about what others wrote
    try:
        reader = pypdf.PdfReader(io.BytesIO(raw.body))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ToolError(f"{shorten_url(raw.url)} is a PDF that needs a password; look for an open version of it")
        text, note = _text(reader)
        title = to_line(str((reader.metadata and reader.metadata.title) or ""), MAX_TITLE)
    except (ToolError, MemoryError):
        raise
    except Exception:  # noqa: BLE001  # a library's many ways to trip over a foreign file
        raise ToolError(f"{shorten_url(raw.url)} is a PDF that can't be read: it is broken or cut short") from None
    if not text:
        note = "the PDF has no text: its pages may be pictures"
    return ReadablePage(PDF, title, text[raw.offset : raw.offset + MAX_TEXT], len(text), note)


def _text(reader: Any) -> tuple[str, str]:
    """All pages' text, and what is missing of it."""
    count = len(reader.pages)
    start = time.monotonic()
    parts: list[str] = []
    length = 0
    for number in range(count):
        if number >= MAX_PAGES or length > MAX_LENGTH or time.monotonic() - start > MAX_SECONDS:
            return "\n\n".join(parts), f"only the first {number} of its {count} pages were read"
        part = clean_text(reader.pages[number].extract_text() or "").strip()
        length += len(part)
        if part:
            parts.append(part)
    return "\n\n".join(parts), ""
