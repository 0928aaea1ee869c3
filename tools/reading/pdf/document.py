"""Open a PDF, and read what is not on its pages."""

import contextlib
from collections.abc import Generator

from toolgate.tools.reading.pdf.library import Handle, load_library, read_wide
from toolgate.tools.reading.pdf.names import replace_names
from toolgate.tools.reading.pdf.page import PdfPage
from toolgate.tools.reading.pdf.repair import repair

MAX_ATTACHMENTS = 1_000
WRONG_PASSWORD = 4  # fpdfview.h, FPDF_ERR_PASSWORD


class PdfBrokenError(Exception):
    """The file can't be read as a PDF."""


class PdfLockedError(Exception):
    """The file needs a password."""


class PdfDocument:
    """An open PDF. `is_damaged`: its table of objects is lost, so what it says may be incomplete."""

    def __init__(self, handle: Handle, form: Handle, *, is_damaged: bool) -> None:
        self._library = load_library()
        self.handle = handle
        self.form = form
        self.is_damaged = is_damaged

    @property
    def page_count(self) -> int:
        return int(self._library.FPDF_GetPageCount(self.handle))

    @property
    def title(self) -> str:
        return read_wide(self._library.FPDF_GetMetaText, self.handle, b"Title")

    def read_attachments(self) -> list[str]:
        """Return the names of the files that the PDF contains."""
        library = self._library
        count = min(library.FPDFDoc_GetAttachmentCount(self.handle), MAX_ATTACHMENTS)
        found = (library.FPDFDoc_GetAttachment(self.handle, index) for index in range(count))
        return [name for name in (read_wide(library.FPDFAttachment_GetName, each) for each in found if each) if name]

    @contextlib.contextmanager
    def open_page(self, number: int) -> Generator[PdfPage | None]:
        """Yield a page, or None for one that can't be read."""
        library = self._library
        page = library.FPDF_LoadPage(self.handle, number)
        text = library.FPDFText_LoadPage(page) if page else None
        try:
            yield PdfPage(self.handle, self.form, page, text) if text else None
        finally:
            if text:
                library.FPDFText_ClosePage(text)
            if page:
                library.FPDF_ClosePage(page)


@contextlib.contextmanager
def open_pdf(body: bytes) -> Generator[PdfDocument]:
    """Open a PDF, repaired if its objects can't be found. Raises PdfBrokenError and PdfLockedError."""
    library = load_library()
    body = replace_names(body)
    handle, is_repaired = library.FPDF_LoadMemDocument64(body, len(body), None), False
    if not handle and library.FPDF_GetLastError() == WRONG_PASSWORD:
        raise PdfLockedError
    if not (handle and library.FPDF_GetPageCount(handle)):
        if handle:
            library.FPDF_CloseDocument(handle)
        body, is_repaired = repair(body), True
        handle = library.FPDF_LoadMemDocument64(body, len(body), None)
    if not (handle and library.FPDF_GetPageCount(handle)):
        raise PdfBrokenError
    callbacks = library.FPDF_FORMFILLINFO(version=2)
    form = library.FPDFDOC_InitFormFillEnvironment(handle, callbacks)
    try:
        is_damaged = is_repaired or not library.FPDF_DocumentHasValidCrossReferenceTable(handle)
        yield PdfDocument(handle, form, is_damaged=is_damaged)
    finally:
        if form:
            library.FPDFDOC_ExitFormFillEnvironment(form)
        library.FPDF_CloseDocument(handle)
        del callbacks, body  # PDFium reads both until here
