"""Read a page: the words on it, its links, and what is filled into its forms."""

import ctypes
import math
import re
from collections.abc import Iterator
from functools import partial
from itertools import groupby

import msgspec

from toolgate.tools.reading.pdf.library import Box, Handle, iterate, load_library, read_bytes, read_wide, to_box

MAX_CHARACTERS = 300_000  # of a page; the fullest pages of maps and tables have about 100,000
MAX_OBJECTS = 1_000_000  # of a page, drawn by one operator each
MAX_ANNOTATIONS = 5_000  # of a page
URI_ACTION = 3  # fpdf_doc.h, PDFACTION_URI
TEXT_OBJECT, FORM_OBJECT = 1, 5  # fpdf_edit.h, FPDF_PAGEOBJ_TEXT and FPDF_PAGEOBJ_FORM
WIDGET = 20  # fpdf_annot.h, FPDF_ANNOT_WIDGET
CHECK_BOX, RADIO_BUTTON, COMBO_BOX, LIST_BOX, TEXT_FIELD = 2, 3, 4, 5, 6  # fpdf_formfill.h, FPDF_FORMFIELD_…
FIXED_PITCH = 1  # of the flags of a font (ISO 32000-1, table 123)
FIXED_FONT = re.compile(r"(?i)mono|courier|consol|typewriter|menlo|^(?:[A-Z]{6}\+)?(?:CM|SF|EC|LM)[A-Z]*TT")
WORD = re.compile(r"[^\s\0-\x1f\x7f-\x9f\u200b]+")
LINE = re.compile(r"[^\s\0-\x1f\x7f-\x9f\u200b](?:[^\r\n]*[^\s\0-\x1f\x7f-\x9f\u200b])?")
NO_PHRASE = re.compile(r"[^\S ]|  |[\0-\x1f\x7f-\x9f\u200b]")  # what makes a text more than words and single spaces
SINGLE_SPACE = re.compile(" ")
SPACES = frozenset(" \r\n\t\0\xa0\u3000\u200b" + "".join(map(chr, range(0x2000, 0x200B))))
UNKNOWN = "\ufffd"
HYPHEN = re.compile("[\x02\ufffe]")  # what PDFium puts for a hyphen at the end of a line


class Word(msgspec.Struct):
    """A word that one operator draws, or all its words if they stand apart by plain spaces.

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

    def __init__(self, document: Handle, form: Handle, handle: Handle, text: Handle) -> None:
        self._library = load_library()
        self._document = document
        self._form = form
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

    def read_words(self, *, splits_phrases: bool = True) -> list[Word]:
        """Return the words in the order in which they are drawn, which is not always PDFium's. If phrases need not be
        split, words that one operator draws with plain spaces may be one."""
        order = {drawn: place for place, drawn in enumerate(self._list_objects())}
        return sorted(
            self._read_words(splits_phrases=splits_phrases), key=lambda word: order.get(word.owner, len(order))
        )

    def _list_objects(self) -> Iterator[int]:
        """Yield numbers of the page's text objects in the order in which they are drawn."""
        library = self._library
        waiting = [iterate(library.FPDFPage_CountObjects, library.FPDFPage_GetObject, self._handle)]
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
                waiting.append(iterate(library.FPDFFormObj_CountObjects, library.FPDFFormObj_GetObject, drawn))

    def _read_words(self, *, splits_phrases: bool) -> Iterator[Word]:
        """Yield the words in PDFium's order, or the whole text of an operator that has plain spaces alone."""
        text = self._read_text(min(self._library.FPDFText_CountChars(self._text), MAX_CHARACTERS))
        for line in LINE.finditer(text):
            start, end = line.span()
            if not splits_phrases and self._is_phrase(line[0], start):
                owner = self._library.FPDFText_GetTextObject(self._text, start) or 0
                yield self._measure(line[0], start, owner, after_space=start > 0)
            else:
                for word in WORD.finditer(text, start, end):
                    yield from self._read_word(word[0], word.start(), after_space=_is_after_space(text, word.start()))

    def _is_phrase(self, text: str, start: int) -> bool:
        """Return whether one operator draws a text whose spaces all stand in the file."""
        read_owner, is_generated, page = (
            self._library.FPDFText_GetTextObject,
            self._library.FPDFText_IsGenerated,
            self._text,
        )
        if NO_PHRASE.search(text) or read_owner(page, start) != read_owner(page, start + len(text) - 1):
            return False
        return not any(is_generated(page, start + space.start()) for space in SINGLE_SPACE.finditer(text))

    def _read_word(self, text: str, start: int, *, after_space: bool) -> Iterator[Word]:
        """Yield a word, or its parts if several operators draw it."""
        read_owner, page, end = self._library.FPDFText_GetTextObject, self._text, start + len(text)
        owner, last_owner = read_owner(page, start), read_owner(page, end - 1)
        if owner == last_owner:
            yield self._measure(text, start, owner or 0, after_space=after_space)
            return
        owners = (read_owner(page, index) for index in range(start, end))
        for owner, part in groupby(enumerate(owners, start), key=lambda pair: pair[1]):
            first, *rest = (index for index, _ in part)
            letters = text[first - start : first - start + 1 + len(rest)]
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
            name = read_bytes(partial(library.FPDFFont_GetBaseFontName, font))
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
                target = read_bytes(partial(library.FPDFAction_GetURIPath, self._document, action))
                if found and target:
                    links.append(Link(to_box(rectangle), target))
        return links

    def read_fields(self) -> list[Field]:
        """Return the form fields that are filled in, and all boxes to check."""
        library, form = self._library, self._form
        fields: list[Field] = []
        for index in range(min(library.FPDFPage_GetAnnotCount(self._handle), MAX_ANNOTATIONS)):
            note = library.FPDFPage_GetAnnot(self._handle, index)
            if note and library.FPDFAnnot_GetSubtype(note) == WIDGET and form:
                value = self._read_value(note)
                rectangle = library.FS_RECTF()
                if value and library.FPDFAnnot_GetRect(note, ctypes.byref(rectangle)):
                    name = read_wide(library.FPDFAnnot_GetFormFieldName, form, note)
                    fields.append(Field(to_box(rectangle), name, value))
            library.FPDFPage_CloseAnnot(note)
        return fields

    def _read_value(self, note: Handle) -> str:
        library, form = self._library, self._form
        kind = library.FPDFAnnot_GetFormFieldType(form, note)
        if kind in (CHECK_BOX, RADIO_BUTTON):
            state = read_wide(library.FPDFAnnot_GetStringValue, note, b"AS")
            return "[ ]" if state in ("", "Off") else "[x]"
        if kind in (COMBO_BOX, LIST_BOX):
            options = range(min(max(0, library.FPDFAnnot_GetOptionCount(form, note)), MAX_ANNOTATIONS))
            chosen = [option for option in options if library.FPDFAnnot_IsOptionSelected(form, note, option)]
            labels = [read_wide(library.FPDFAnnot_GetOptionLabel, form, note, option) for option in chosen]
            if labels:
                return ", ".join(labels)
        if kind in (COMBO_BOX, LIST_BOX, TEXT_FIELD):
            return read_wide(library.FPDFAnnot_GetFormFieldValue, form, note)
        return ""


def _is_after_space(text: str, index: int) -> bool:
    return index > 0 and text[index - 1] in SPACES
