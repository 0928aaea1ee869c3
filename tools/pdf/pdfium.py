"""Open PDFs with PDFium, which Chromium shows them with, and read their characters, links and form fields.

PDFium knows the CMaps that Chinese, Japanese and Korean PDFs name, and rebuilds a lost table of objects. It is not
thread-safe: a worker reads one PDF at a time.
"""

import contextlib
import ctypes
import importlib
import math
import re
from collections.abc import Generator, Iterator
from functools import cache, partial
from itertools import groupby
from typing import Any

import msgspec

from toolgate.tools.pdf.names import replace_names
from toolgate.tools.pdf.repair import repair

MAX_CHARACTERS = 300_000  # of a page; the fullest pages of maps and tables have about 100,000
MAX_OBJECTS = 1_000_000  # of a page, drawn by one operator each
MAX_ANNOTATIONS = 5_000  # of a page
MAX_ATTACHMENTS = 1_000
MAX_STRING = 65_536  # characters of a field, a name or a title
NO_FILE, WRONG_PASSWORD = 3, 4  # fpdfview.h, FPDF_ERR_FORMAT and FPDF_ERR_PASSWORD
URI_ACTION = 3  # fpdf_doc.h, PDFACTION_URI
TEXT_OBJECT, FORM_OBJECT = 1, 5  # fpdf_edit.h, FPDF_PAGEOBJ_TEXT and FPDF_PAGEOBJ_FORM
WIDGET = 20  # fpdf_annot.h, FPDF_ANNOT_WIDGET
CHECK_BOX, RADIO_BUTTON, COMBO_BOX, LIST_BOX, TEXT_FIELD = 2, 3, 4, 5, 6  # fpdf_formfill.h, FPDF_FORMFIELD_…
WORD = re.compile(r"[^\s\0-\x1f\x7f-\x9f\u200b]+")
FIXED_PITCH = 1  # of the flags of a font (ISO 32000-1, table 123)
FIXED_FONT = re.compile(r"(?i)mono|courier|consol|typewriter|menlo|^(?:[A-Z]{6}\+)?(?:CM|SF|EC|LM)[A-Z]*TT")
SPACES = frozenset(" \r\n\t\0\xa0\u3000\u200b" + "".join(map(chr, range(0x2000, 0x200B))))
UNKNOWN = "\ufffd"
HYPHEN = re.compile("[\x02\ufffe]")  # what PDFium puts for a hyphen at the end of a line

Handle = Any  # ctypes has no types


class PdfBrokenError(Exception):
    """The file can't be read as a PDF."""


class PdfLockedError(Exception):
    """The file needs a password."""


class Box(msgspec.Struct, frozen=True):
    """A rectangle on a page, in points; the origin is below on the left."""

    left: float
    bottom: float
    right: float
    top: float

    def contains(self, x: float, y: float) -> bool:
        return self.left <= x <= self.right and self.bottom <= y <= self.top


class Word(msgspec.Struct):
    """Characters without a space between them, drawn by one operator.

    - `x`, `y`: the origin of the first, on the baseline
    - `last_y`: the origin of the last, which is lower in vertical text
    - `first`, `last`: the boxes of the first and the last
    - `owner`: a number of the operator
    - `size`: of the font, in points on the page
    - `angle`: of the baseline, in radians
    - `is_fixed`: all characters of the font are equally wide, as in code
    - `after_space`: a space stands before it, in the file or by PDFium's guess
    """

    text: str
    x: float
    y: float
    last_y: float
    first: Box
    last: Box
    owner: int
    size: float
    angle: float
    is_fixed: bool
    after_space: bool


class Link(msgspec.Struct, frozen=True):
    """A part of a page that leads to an address of the web, or of a person."""

    box: Box
    target: str


class Field(msgspec.Struct, frozen=True):
    """A form field with its name and what is filled in."""

    box: Box
    name: str
    value: str


class PdfPage:
    """A page of an open PDF."""

    def __init__(self, document: "PdfDocument", handle: Handle, text: Handle) -> None:
        self._library = _load_library()
        self._document = document
        self._handle = handle
        self._text = text
        self._owner, self._style = -1, (0.0, 0.0, False)
        self._fixed_fonts: dict[int, bool] = {}
        self._x, self._y, self._box = ctypes.c_double(), ctypes.c_double(), self._library.FS_RECTF()
        self._x_place, self._y_place = ctypes.byref(self._x), ctypes.byref(self._y)
        self._box_place = ctypes.byref(self._box)

    def has_content(self) -> bool:
        """Return whether anything is drawn on the page."""
        return bool(self._library.FPDFPage_CountObjects(self._handle) > 0)

    def is_cut(self) -> bool:
        """Return whether the page has more characters than are read."""
        return bool(self._library.FPDFText_CountChars(self._text) > MAX_CHARACTERS)

    def read_words(self) -> list[Word]:
        """Return the words in the order in which they are drawn, which is not always PDFium's."""
        order = {drawn: place for place, drawn in enumerate(self._list_objects())}
        return sorted(self._read_words(), key=lambda word: order.get(word.owner, len(order)))

    def _list_objects(self) -> Iterator[int]:
        """Yield numbers of the page's text objects in the order in which they are drawn."""
        library = self._library
        waiting = [_iterate(library.FPDFPage_CountObjects, library.FPDFPage_GetObject, self._handle)]
        count = 0
        while waiting and count < MAX_OBJECTS:
            drawn = next(waiting[-1], None)
            if drawn is None:
                waiting.pop()
                continue
            count += 1
            kind = library.FPDFPageObj_GetType(drawn)
            if kind == TEXT_OBJECT:
                yield ctypes.cast(drawn, ctypes.c_void_p).value or 0
            elif kind == FORM_OBJECT:
                waiting.append(_iterate(library.FPDFFormObj_CountObjects, library.FPDFFormObj_GetObject, drawn))

    def _read_words(self) -> Iterator[Word]:
        """Yield the words in PDFium's order."""
        read_owner, page = self._library.FPDFText_GetTextObject, self._text
        text = self._read_text(min(self._library.FPDFText_CountChars(page), MAX_CHARACTERS))
        for found in WORD.finditer(text):
            start, end = found.span()
            after_space = start > 0 and text[start - 1] in SPACES
            owner, last_owner = read_owner(page, start), read_owner(page, end - 1)
            if owner == last_owner:
                yield self._measure(found[0], start, owner or 0, after_space=after_space)
                continue
            owners = (read_owner(page, index) for index in range(start, end))
            for owner, part in groupby(enumerate(owners, start), key=lambda pair: pair[1]):
                first, *rest = (index for index, _ in part)
                letters = text[first : first + 1 + len(rest)]
                yield self._measure(letters, first, owner or 0, after_space=after_space and first == start)

    def _read_text(self, count: int) -> str:
        """Return the page's characters, one for each of PDFium's."""
        units = (ctypes.c_ushort * (count + 1))()
        written = self._library.FPDFText_GetText(self._text, 0, count, units) - 1
        text = bytes(units)[: 2 * max(0, written)].decode("utf-16-le", "replace")
        if len(text) != count or written != count:  # PDFium leaves out some, and writes others as two
            codes = (self._library.FPDFText_GetUnicode(self._text, index) for index in range(count))
            text = "".join(chr(code) if code < 0x110000 else UNKNOWN for code in codes)
        return HYPHEN.sub("-", text)

    def _measure(self, text: str, start: int, owner: int, *, after_space: bool) -> Word:
        """Return the word of the characters from the index `start` on."""
        if owner != self._owner:
            self._owner, self._style = owner, (*self._read_style(start), self._has_fixed_font(owner))
        library, page, x, y = self._library, self._text, self._x, self._y
        library.FPDFText_GetCharOrigin(page, start, self._x_place, self._y_place)
        first = last = self._read_box(start)
        if len(text) > 1:
            last = self._read_box(start + len(text) - 1)
        last_y = y.value + last.bottom - first.bottom
        return Word(text, x.value, y.value, last_y, first, last, owner, *self._style, after_space)

    def _read_box(self, index: int) -> Box:
        """Return a character's box, as wide as its advance and as high as its font."""
        box = self._box
        self._library.FPDFText_GetLooseCharBox(self._text, index, self._box_place)
        return Box(box.left, box.bottom, box.right, box.top)

    def _read_style(self, index: int) -> tuple[float, float]:
        """Return a character's size and the angle of its baseline."""
        matrix = self._library.FS_MATRIX()
        nominal = self._library.FPDFText_GetFontSize(self._text, index)
        if not self._library.FPDFText_GetMatrix(self._text, index, ctypes.byref(matrix)):
            return abs(nominal), 0.0
        return abs(nominal) * math.hypot(matrix.c, matrix.d), math.atan2(matrix.b, matrix.a)

    def _has_fixed_font(self, owner: int) -> bool:
        library = self._library
        font = library.FPDFTextObj_GetFont(ctypes.cast(owner, library.FPDF_PAGEOBJECT)) if owner else None
        if not font:
            return False
        number = ctypes.cast(font, ctypes.c_void_p).value or 0
        if number not in self._fixed_fonts:
            name = _read_bytes(partial(library.FPDFFont_GetBaseFontName, font))
            is_named = FIXED_FONT.search(name) is not None
            self._fixed_fonts[number] = is_named or bool(library.FPDFFont_GetFlags(font) & FIXED_PITCH == FIXED_PITCH)
        return self._fixed_fonts[number]

    def read_links(self) -> list[Link]:
        """Return the links that leave the document."""
        library = self._library
        position, handle = ctypes.c_int(0), library.FPDF_LINK()
        links: list[Link] = []
        while len(links) < MAX_ANNOTATIONS and library.FPDFLink_Enumerate(
            self._handle, ctypes.byref(position), ctypes.byref(handle)
        ):
            rectangle = library.FS_RECTF()
            action = library.FPDFLink_GetAction(handle)
            if action and library.FPDFAction_GetType(action) == URI_ACTION:
                found = library.FPDFLink_GetAnnotRect(handle, ctypes.byref(rectangle))
                target = _read_bytes(partial(library.FPDFAction_GetURIPath, self._document.handle, action))
                if found and target:
                    links.append(Link(_to_box(rectangle), target))
        return links

    def read_fields(self) -> list[Field]:
        """Return the form fields that are filled in, and all boxes to check."""
        library, form = self._library, self._document.form
        fields: list[Field] = []
        for index in range(min(library.FPDFPage_GetAnnotCount(self._handle), MAX_ANNOTATIONS)):
            note = library.FPDFPage_GetAnnot(self._handle, index)
            if note and library.FPDFAnnot_GetSubtype(note) == WIDGET and form:
                value = self._read_value(note)
                rectangle = library.FS_RECTF()
                if value and library.FPDFAnnot_GetRect(note, ctypes.byref(rectangle)):
                    name = _read_wide(library.FPDFAnnot_GetFormFieldName, form, note)
                    fields.append(Field(_to_box(rectangle), name, value))
            library.FPDFPage_CloseAnnot(note)
        return fields

    def _read_value(self, note: Handle) -> str:
        library, form = self._library, self._document.form
        kind = library.FPDFAnnot_GetFormFieldType(form, note)
        if kind in (CHECK_BOX, RADIO_BUTTON):
            state = _read_wide(library.FPDFAnnot_GetStringValue, note, b"AS")
            return "[ ]" if state in ("", "Off") else "[x]"
        if kind in (COMBO_BOX, LIST_BOX):
            options = range(min(max(0, library.FPDFAnnot_GetOptionCount(form, note)), MAX_ANNOTATIONS))
            chosen = [option for option in options if library.FPDFAnnot_IsOptionSelected(form, note, option)]
            labels = [_read_wide(library.FPDFAnnot_GetOptionLabel, form, note, option) for option in chosen]
            if labels:
                return ", ".join(labels)
        if kind in (COMBO_BOX, LIST_BOX, TEXT_FIELD):
            return _read_wide(library.FPDFAnnot_GetFormFieldValue, form, note)
        return ""


class PdfDocument:
    """An open PDF. `is_damaged`: its table of objects is lost, so what it says may be incomplete."""

    def __init__(self, handle: Handle, form: Handle, *, is_damaged: bool) -> None:
        self._library = _load_library()
        self.handle = handle
        self.form = form
        self.is_damaged = is_damaged

    @property
    def page_count(self) -> int:
        return int(self._library.FPDF_GetPageCount(self.handle))

    @property
    def title(self) -> str:
        return _read_wide(self._library.FPDF_GetMetaText, self.handle, b"Title")

    def read_attachments(self) -> list[str]:
        """Return the names of the files that the PDF contains."""
        library = self._library
        count = min(library.FPDFDoc_GetAttachmentCount(self.handle), MAX_ATTACHMENTS)
        found = (library.FPDFDoc_GetAttachment(self.handle, index) for index in range(count))
        return [name for name in (_read_wide(library.FPDFAttachment_GetName, each) for each in found if each) if name]

    @contextlib.contextmanager
    def open_page(self, number: int) -> Generator[PdfPage | None]:
        """Yield a page, or None for one that can't be read."""
        library = self._library
        page = library.FPDF_LoadPage(self.handle, number)
        text = library.FPDFText_LoadPage(page) if page else None
        try:
            yield PdfPage(self, page, text) if text else None
        finally:
            if text:
                library.FPDFText_ClosePage(text)
            if page:
                library.FPDF_ClosePage(page)


@contextlib.contextmanager
def open_pdf(body: bytes) -> Generator[PdfDocument]:
    """Open a PDF, repaired if its objects can't be found. Raises PdfBrokenError and PdfLockedError."""
    library = _load_library()
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


@cache
def _load_library() -> Any:
    """Return PDFium's functions. It looks for no fonts of the system: they don't change a text."""
    library: Any = importlib.import_module("pypdfium2_raw")  # start-up
    config = library.FPDF_LIBRARY_CONFIG(version=2)
    no_folders = (ctypes.POINTER(ctypes.c_char) * 1)()
    config.m_pUserFontPaths = ctypes.cast(no_folders, type(config.m_pUserFontPaths))
    library.FPDF_InitLibraryWithConfig(ctypes.byref(config))
    library.FPDFText_GetTextObject.restype = ctypes.c_void_p  # a number, which is faster than an object
    return library


def prepare() -> None:
    """Load the library."""
    _load_library()


def _iterate(count: Any, get: Any, container: Handle) -> Iterator[Handle]:
    return (get(container, index) for index in range(max(0, count(container))))


def _to_box(rectangle: Any) -> Box:
    left, right = sorted((rectangle.left, rectangle.right))
    bottom, top = sorted((rectangle.bottom, rectangle.top))
    return Box(left, bottom, right, top)


def _read_wide(function: Any, *arguments: Any) -> str:
    """Return a string that PDFium writes as UTF-16 into a buffer of bytes."""
    library = _load_library()
    kind = ctypes.POINTER(library.FPDF_WCHAR)
    size = function(*arguments, None, 0)
    if not 2 < size <= 2 * MAX_STRING:
        return ""
    buffer = ctypes.create_string_buffer(size)
    function(*arguments, ctypes.cast(buffer, kind), size)
    return buffer.raw[: size - 2].decode("utf-16-le", "replace")


def _read_bytes(function: Any) -> str:
    size = function(None, 0)
    if not 1 < size <= MAX_STRING:
        return ""
    buffer = ctypes.create_string_buffer(size)
    function(buffer, size)
    return buffer.raw[: size - 1].decode("utf-8", "replace")
