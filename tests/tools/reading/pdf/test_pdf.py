"""ReadDocs reads PDFs: letters of every kind, tables, scripts, forms, links, damaged and locked files."""

import io
import zlib

import pytest
from pypdf import PdfReader, PdfWriter

from tests.tools.reading.pdf.pdf_file import HELVETICA, PdfFile, show
from toolgate.tools.api.errors import ToolError
from toolgate.tools.reading.pdf.page import MAX_CHARACTERS
from toolgate.tools.reading.pdf.reading import read_pdf
from toolgate.tools.reading.web.convert import RawPage, ReadablePage
from toolgate.tools.reading.web.media_types import PDF


def read(body: bytes) -> ReadablePage:
    return read_pdf(RawPage(body, PDF, "http://site/a.pdf", "text", 0, 10**7))


def read_text(body: bytes) -> str:
    text = read(body).text
    assert text is not None
    return text


def read_page(content: str, font: int | str = HELVETICA, keys: str = "") -> str:
    file = PdfFile()
    file.add_page(content, font, keys)
    return read_text(file.to_bytes())


# --- letters ---

# Predefined CMap → character collection, Python's codec, text
CMAPS: dict[str, tuple[str, str, str]] = {
    **dict.fromkeys(("GB-EUC", "GBpc-EUC"), ("GB1", "gb2312", "这是中文文件")),
    **dict.fromkeys(("GBK-EUC", "GBKp-EUC"), ("GB1", "gbk", "这是中文文件")),
    "GBK2K": ("GB1", "gb18030", "这是中文文件"),
    **dict.fromkeys(("UniGB-UCS2", "UniGB-UTF16"), ("GB1", "utf-16-be", "这是中文文件")),
    **dict.fromkeys(("B5pc", "ETen-B5", "ETenms-B5"), ("CNS1", "big5", "這是中文文件")),
    "HKscs-B5": ("CNS1", "big5hkscs", "這是中文文件"),
    **dict.fromkeys(("UniCNS-UCS2", "UniCNS-UTF16"), ("CNS1", "utf-16-be", "這是中文文件")),
    **dict.fromkeys(("83pv-RKSJ", "90ms-RKSJ", "90msp-RKSJ", "90pv-RKSJ"), ("Japan1", "cp932", "日本語の文書です")),
    **dict.fromkeys(("Add-RKSJ", "Ext-RKSJ"), ("Japan1", "cp932", "日本語の文書です")),
    "EUC": ("Japan1", "euc_jp", "日本語の文書です"),
    **dict.fromkeys(("UniJIS-UCS2", "UniJIS-UCS2-HW", "UniJIS-UTF16"), ("Japan1", "utf-16-be", "日本語の文書です")),
    **dict.fromkeys(("KSC-EUC", "KSCpc-EUC"), ("Korea1", "euc_kr", "한국어 문서입니다")),
    **dict.fromkeys(("KSCms-UHC", "KSCms-UHC-HW"), ("Korea1", "cp949", "한국어 문서입니다")),
    **dict.fromkeys(("UniKS-UCS2", "UniKS-UTF16"), ("Korea1", "utf-16-be", "한국어 문서입니다")),
}


def with_cmap(name: str, ordering: str, codes: bytes, to_unicode: bytes = b"") -> bytes:
    """Return a PDF whose font is not in the file, and has a predefined CMap."""
    file = PdfFile()
    descriptor = file.add(
        "<</Type/FontDescriptor/FontName/X/Flags 4/FontBBox[0 -200 1000 900]/ItalicAngle 0/Ascent 900/Descent -200>>"
    )
    system = f"/CIDSystemInfo<</Registry(Adobe)/Ordering({ordering})/Supplement 2>>"
    inner = file.add(f"<</Type/Font/Subtype/CIDFontType0/BaseFont/X{system}/FontDescriptor {descriptor} 0 R/DW 1000>>")
    map_key = f"/ToUnicode {file.add_stream(to_unicode)} 0 R" if to_unicode else ""
    font = file.add(f"<</Type/Font/Subtype/Type0/BaseFont/X/Encoding/{name}/DescendantFonts[{inner} 0 R]{map_key}>>")
    file.add_page(f"BT /F1 16 Tf 50 700 Td <{codes.hex()}> Tj ET", font)
    return file.to_bytes()


@pytest.mark.parametrize("direction", ["H", "V"])
@pytest.mark.parametrize("name", CMAPS)
def test_each_predefined_cmap_gives_the_right_letters(name: str, direction: str) -> None:
    ordering, codec, words = CMAPS[name]
    assert read_text(with_cmap(f"{name}-{direction}", ordering, words.encode(codec))) == words


def test_the_cmaps_of_jis_and_the_identity_give_the_right_letters() -> None:
    for direction in ("H", "V"):
        assert read_text(with_cmap(direction, "Japan1", bytes.fromhex("467c4b5c386c"))) == "日本語"
    assert read_text(with_cmap("Identity-H", "Japan1", bytes.fromhex("0d9d0f0b"))) != ""


def test_letters_that_are_drawn_one_below_the_other_keep_their_order() -> None:
    letters = "".join(f"1 0 0 1 300 {700 - 14 * number} Tm ({letter}) Tj " for number, letter in enumerate("down"))
    assert read_page(f"BT /F1 12 Tf {letters} ET").split() == list("down")


def test_ligatures_are_read_as_letters() -> None:
    codes = {"01": "FB01", "02": "FB02", "03": "FB00", "04": "FB03", "05": "FB04", "06": "FB06", "07": "0066006A"}
    rows = "\n".join(f"<{code}> <{unicode}>" for code, unicode in codes.items())
    cmap = (
        "/CIDInit /ProcSet findresource begin begincmap /CMapName /X def 1 begincodespacerange <00> <FF> "
        f"endcodespacerange {len(codes)} beginbfchar\n{rows}\nendbfchar endcmap end"
    )
    file = PdfFile()
    map_number = file.add_stream(cmap)
    font = file.add(f"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode {map_number} 0 R>>")
    file.add_page("BT /F1 12 Tf 50 700 Td <01020304050607> Tj ET", font)
    assert read_text(file.to_bytes()) == "fiflffffifflstfj"


@pytest.mark.parametrize("names", ["/fi/fl/ff/ffi/ffl", "/f_i/f_l/f_f/f_f_i/f_f_l", "/uniFB01/uniFB02/uniFB00"])
def test_ligatures_are_known_by_the_names_of_their_glyphs(names: str) -> None:
    encoding = f"<</Type/Encoding/Differences[1{names}]>>"
    font = f"<</Type/Font/Subtype/Type1/BaseFont/Times-Roman/Encoding{encoding}>>"
    text = read_page("BT /F1 12 Tf 50 700 Td (of\\001ce \\002at e\\003ect) Tj ET", font)
    assert text == "office flat effect"


# --- lines, tables and scripts ---


def test_the_cells_of_a_row_stand_on_one_line() -> None:
    rows = [("Name", "Age", "City"), ("Ann", "34", "Oslo"), ("Bob", "27", "Rome")]
    cells = [(50 + 150 * x, 700 - 20 * y, cell) for y, row in enumerate(rows) for x, cell in enumerate(row)]
    table = "Name | Age | City\nAnn | 34 | Oslo\nBob | 27 | Rome"
    assert read_page(show(*cells)) == table
    each_alone = "".join(show(cell) for cell in cells)
    assert read_page(each_alone) == table
    by_column = sorted(cells, key=lambda cell: cell[0])
    assert read_page(show(*by_column)) == table
    from_the_right = sorted(cells, key=lambda cell: (-cell[1], -cell[0]))
    assert read_page(show(*from_the_right)) == table
    moved = "BT /F1 12 Tf 50 700 Td (a) Tj 150 0 Td (b) Tj 150 0 Td (c) Tj -300 -20 Td (d) Tj 150 0 Td (e) Tj ET"
    assert read_page(moved) == "a | b | c\nd | e"
    assert read_page("BT /F1 12 Tf 50 700 Td [(a) -9000 (b) -9000 (c)] TJ ET") == "a | b | c"


def test_the_lines_of_a_cell_stay_together() -> None:
    row = [(50, 700, "key"), (150, 700, "a long text that"), (150, 686, "goes on here"), (350, 700, "10")]
    following = [(50, 660, "other"), (150, 660, "short"), (350, 660, "20")]
    expected = "key | a long text that goes on here | 10\nother | short | 20"
    assert read_page(show(*row, *following)) == expected
    in_the_middle = [(50, 693, "key"), *row[1:3], (350, 693, "10"), *following]
    assert read_page(show(*in_the_middle)) == expected
    beside_two_cells = [(50, 693, "key"), (150, 693, "10"), (250, 700, "a long text that"), (250, 686, "goes on here")]
    assert read_page(show(*beside_two_cells)) == "key | 10 | a long text that goes on here"
    first_is_tall = [(50, 700, "a long key"), (50, 686, "of two lines"), (150, 700, "short"), (350, 700, "10")]
    assert read_page(show(*first_is_tall, *following)) == "a long key of two lines | short | 10\nother | short | 20"


def test_empty_cells_before_others_keep_their_columns() -> None:
    rows = [(50, 700, "Name"), (150, 700, "Age"), (250, 700, "City"), (50, 680, "Ann"), (250, 680, "Oslo")]
    last = [(150, 660, "27"), (250, 660, "Rome"), (50, 640, "Cleo"), (150, 640, "5")]
    assert read_page(show(*rows, *last)) == "Name | Age | City\nAnn |  | Oslo\n | 27 | Rome\nCleo | 5"


def test_a_tight_heading_of_a_table_is_split_where_its_columns_are() -> None:
    heading = [(50, 700, "Name"), (91.3, 700, "Age"), (250, 700, "City")]  # 8 points from "Name" to "Age"
    rows = [
        (50, 680, "Ann"),
        (93, 680, "34"),
        (250, 680, "Oslo"),
        (50, 660, "Bob"),
        (93, 660, "27"),
        (250, 660, "Rome"),
    ]
    assert read_page(show(*heading, *rows)) == "Name | Age | City\nAnn | 34 | Oslo\nBob | 27 | Rome"
    assert read_page(show(*heading)) == "Name Age | City"


def test_labels_of_headings_and_items_are_no_cells() -> None:
    lines = [
        (50, 700, "1.2"),
        (80, 700, "A heading"),
        (50, 680, "\\225"),
        (70, 680, "An item"),
        (50, 660, "Total"),
        (300, 660, "5"),
    ]
    assert read_page(show(*lines)) == "1.2 A heading\n• An item\nTotal | 5"


def test_code_keeps_its_indentation_and_its_columns() -> None:
    font = "<</Type/Font/Subtype/Type1/BaseFont/Courier>>"
    lines = [(50, 700, "def f(x):"), (78.8, 688, "return x"), (250, 688, "# twice"), (50, 676, "f(1)")]
    assert read_page(show(*lines), font) == "def f(x):\n    return x                # twice\nf(1)"


def test_columns_of_prose_are_read_one_after_the_other() -> None:
    words = "the keeper writes down each ship that passes"
    left = [(50, 700 - 14 * line, f"left {line} {words}") for line in range(20)]
    right = [(330, 700 - 14 * line, f"right {line} {words}") for line in range(20)]
    lines = read_page(show(*left, *right, size=9)).splitlines()
    assert lines == [text for _, _, text in (*left, *right)]


def test_a_page_of_too_many_letters_is_cut_and_says_so() -> None:
    line = "(" + "w" * 5_000 + ") Tj "
    file = PdfFile()
    file.add_page(f"BT /F1 1 Tf 50 700 Td {line * (MAX_CHARACTERS // 5_000 + 1)} ET")
    readable = read(file.to_bytes())
    assert readable.note == f"of page 1 only the first {MAX_CHARACTERS:,} characters were read"
    assert 0 < readable.length <= MAX_CHARACTERS


def test_prose_is_read_line_by_line_with_its_spaces() -> None:
    assert read_page("BT /F1 12 Tf 14 TL 50 700 Td (One line) Tj T* (and another) Tj ET") == "One line\nand another"
    assert read_page("BT /F1 12 Tf 50 700 Td [(Wo) -20 (rd) -300 (and) 20 ( more)] TJ ET") == "Word and more"
    assert read_page("BT /F1 12 Tf 50 700 Td 8 Tw (wide words stay) Tj ET") == "wide words stay"
    assert read_page("BT /F1 12 Tf 50 700 Td (one  two ) Tj ( three) Tj ET") == "one two three"
    assert read_page(show((86.7, 700, "world"), (50, 700, "Hello"))) == "Hello world"


def test_hebrew_and_arabic_are_read_from_the_right() -> None:
    words = "שלום עולם"
    codes = {letter: number for number, letter in enumerate(sorted(set(words) - {" "}), 65)}
    rows = "\n".join(f"<{number:02x}> <{ord(letter):04x}>" for letter, number in codes.items())
    cmap = (
        f"begincmap 1 begincodespacerange <00> <FF> endcodespacerange {len(codes)} beginbfchar {rows} endbfchar endcmap"
    )
    file = PdfFile()
    map_number = file.add_stream(cmap)
    font = file.add(f"<</Type/Font/Subtype/Type1/BaseFont/Courier/ToUnicode {map_number} 0 R>>")
    places = [(50 + 7.2 * place, 700, chr(codes[letter])) for place, letter in enumerate(words[::-1]) if letter != " "]
    file.add_page("".join(show(place) for place in places), font)  # one letter after the other, from the left
    assert read_text(file.to_bytes()) == words


SCRIPTS = {
    "10⁶ bytes": "(10) Tj 5 Ts /F1 8 Tf (6) Tj 0 Ts /F1 12 Tf ( bytes) Tj",
    "10⁻⁶ s": "(10) Tj 5 Ts /F1 7 Tf (-6) Tj 0 Ts /F1 12 Tf ( s) Tj",
    "2³²": "(2) Tj 4 Ts (32) Tj",
    "x₁ + x₂": "(x) Tj -3 Ts /F1 8 Tf (1) Tj 0 Ts /F1 12 Tf ( + x) Tj -3 Ts /F1 8 Tf (2) Tj",
    "H₂O": "(H) Tj -3 Ts /F1 8 Tf (2) Tj 0 Ts /F1 12 Tf (O) Tj",
    "e^x": "(e) Tj 5 Ts /F1 8 Tf (x) Tj",
    "a_{max}": "(a) Tj -3 Ts /F1 8 Tf (max) Tj",
    "the 1st day": "(the 1) Tj 5 Ts /F1 7 Tf (st) Tj 0 Ts /F1 12 Tf ( day) Tj",
    "word¹": "(word) Tj 5 Ts /F1 6 Tf (1) Tj",
    "¹A note": "5 Ts /F1 6 Tf (1) Tj 0 Ts /F1 12 Tf (A note) Tj",
}


@pytest.mark.parametrize("expected", SCRIPTS)
def test_superscripts_and_subscripts_stay_on_their_line(expected: str) -> None:
    assert read_page(f"BT /F1 12 Tf 50 700 Td {SCRIPTS[expected]} ET") == expected


def test_a_superscript_in_a_cell_and_one_at_its_own_place_stay_with_their_number() -> None:
    number = "BT /F1 12 Tf 1 0 0 1 200 700 Tm (10) Tj /F1 7 Tf 1 0 0 1 213.4 705 Tm (6) Tj ET"
    assert read_page(show((50, 700, "size")) + number + show((350, 700, "bytes"))) == "size | 10⁶ | bytes"


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_a_turned_page_is_read_as_an_upright_one(turn: int) -> None:
    matrix = {90: "0 1 -1 0 300 100", 180: "-1 0 0 -1 500 500", 270: "0 -1 1 0 300 700"}[turn]
    content = f"q {matrix} cm " + show((0, 0, "Name"), (150, 0, "Age"), (0, -20, "Ann"), (150, -20, "34")) + "Q"
    assert read_page(content, keys=f"/Rotate {turn}") == "Name | Age\nAnn | 34"


# --- forms and links ---


def with_fields(*fields: str, content: str = "") -> bytes:
    file = PdfFile()
    numbers = [file.add(f"<</Type/Annot/Subtype/Widget{field}>>") for field in fields]
    listed = " ".join(f"{number} 0 R" for number in numbers)
    file.add_page(content or show((50, 700, "Form")), keys=f"/Annots[{listed}]")
    file.catalog = f"/AcroForm<</Fields[{listed}]>>"
    return file.to_bytes()


FIELDS = {
    "a text": ("/FT/Tx/T(first)/V(Ada)", "Ada"),
    "a text in UTF-16": ("/FT/Tx/T(first)/V<FEFF0416>", "Ж"),
    "a choice": ("/FT/Ch/Ff 131072/T(land)/Opt[[(NO)(Norway)][(IT)(Italy)]]/V(NO)", "Norway"),
    "a list": ("/FT/Ch/T(land)/Opt[(Norway)(Italy)]/V(Italy)", "Italy"),
    "a checked box": ("/FT/Btn/T(agree)/V/Yes/AS/Yes", "[x]"),
    "an empty box": ("/FT/Btn/T(agree)/V/Off/AS/Off", "[ ]"),
}


@pytest.mark.parametrize("kind", FIELDS)
def test_what_is_filled_into_a_form_is_read_at_its_place(kind: str) -> None:
    field, value = FIELDS[kind]
    content = show((50, 705, "Label:"), (50, 650, "Next line"))
    separator = " | "
    assert read_text(with_fields(f"{field}/Rect[200 700 300 720]", content=content)) == (
        f"Label:{separator}{value}\nNext line"
    )


def test_a_field_without_a_label_is_named_and_an_empty_one_is_left_out() -> None:
    body = with_fields("/FT/Tx/T(note)/V(far away)/Rect[300 300 400 320]", "/FT/Tx/T(none)/Rect[300 200 400 220]")
    assert read_text(body) == "Form\nnote: far away"


def with_links(content: str, *links: tuple[str, str]) -> str:
    notes = " ".join(f"<</Type/Annot/Subtype/Link/Rect[{box}]/A<</S/URI/URI({target})>>>>" for box, target in links)
    return read_page(content, keys=f"/Annots[{notes}]")


def test_the_targets_of_links_are_read() -> None:
    words = show((50, 700, "See the manual for more"))
    assert with_links(words, ("72 695 130 712", "https://a.example/m?x=1")) == (
        "See [the manual](https://a.example/m?x=1) for more"
    )
    lines = show((50, 700, "See the whole"), (50, 686, "manual here"))
    two = [("72 695 130 712", "https://a.example/"), ("50 682 90 694", "https://a.example/")]
    assert with_links(lines, *two) == "See [the whole\nmanual](https://a.example/) here"


def test_an_address_that_is_a_link_is_shown_once_and_that_of_a_picture_too() -> None:
    address = show((50, 700, "https://a.example/x"))
    assert with_links(address, ("50 695 200 712", "https://a.example/x")) == "https://a.example/x"
    assert with_links(show((50, 700, "me@a.example")), ("50 695 200 712", "mailto:me@a.example")) == "me@a.example"
    assert with_links(address, ("300 300 400 400", "https://b.example/")) == "https://a.example/x\n<https://b.example/>"


# --- damaged and locked files ---


def two_pages() -> PdfFile:
    file = PdfFile()
    file.add_page(show((50, 700, "The first page")))
    file.add_page(show((50, 700, "The second page")))
    return file


DAMAGED = "the PDF is damaged or cut short: what could be found of it was read"


@pytest.mark.parametrize("catalog_is", ["first", "last"])
@pytest.mark.parametrize("kind", ["no table", "wrong place", "wrong table", "no trailer", "junk before"])
def test_a_pdf_whose_table_of_objects_is_lost_is_read(kind: str, catalog_is: str) -> None:
    file = two_pages()
    file.finish()
    numbers = sorted(file.objects)
    order = numbers if catalog_is == "first" else [*numbers[2:], 2, 1]
    whole = file.to_bytes(order=order)
    body = {
        "no table": file.to_bytes(xref=False, order=order),
        "wrong place": whole[: whole.rfind(b"startxref")] + b"startxref\n12345678\n%%EOF\n",
        "wrong table": whole.replace(b" 00000 n ", b"7 0000 n "),
        "no trailer": whole[: whole.index(b"trailer")],
        "junk before": whole.replace(b"%PDF-1.7\n", b"%PDF-1.7\n% more bytes than the table knows of\n"),
    }[kind]
    readable = read(body)
    assert (readable.text, readable.note) == ("The first page\n\nThe second page", DAMAGED)


@pytest.mark.parametrize("catalog_is", ["first", "last"])
def test_a_pdf_that_is_cut_short_is_read_as_far_as_it_goes(catalog_is: str) -> None:
    file = two_pages()
    file.finish()
    numbers = sorted(file.objects)
    whole = file.to_bytes(order=numbers if catalog_is == "first" else [*numbers[2:], 2, 1])
    readable = read(whole[: whole.index(b"The second")])
    assert readable.text == "The first page"
    assert readable.note.startswith(DAMAGED)


def test_a_text_that_is_cut_within_its_stream_is_read_to_there() -> None:
    content = "".join(show((50, 780 - 7 * line, f"line {line}"), size=6) for line in range(100))
    file = PdfFile()
    file.add_page("")
    packed = zlib.compress(content.encode())
    file.objects[3] = f"<</Length {len(packed)}/Filter/FlateDecode>>\nstream\n".encode() + packed + b"\nendstream"
    numbers = sorted(file.objects)
    file.finish()
    whole = file.to_bytes(order=[number for number in numbers if number != 3] + [3])
    readable = read(whole[: whole.rindex(b"endstream") - len(packed) // 2])
    assert readable.text is not None and readable.text.startswith("line 0\nline 1\n")
    assert readable.note.startswith(DAMAGED)


def test_a_packed_pdf_that_is_cut_short_is_read() -> None:
    whole = two_pages().to_packed_bytes()
    assert read(whole).note == ""
    assert read_text(whole) == "The first page\n\nThe second page"
    readable = read(whole[: whole.rindex(b"/XRef") - 20])
    assert (readable.text, readable.note) == ("The first page\n\nThe second page", DAMAGED)


@pytest.mark.parametrize(
    "body", [b"%PDF-1.7 ...", b"%PDF-", b"%PDF-1.4\n1 0 obj\n<</Type/Catalog>>\nendobj\n", b"text"]
)
def test_what_is_no_pdf_is_refused(body: bytes) -> None:
    with pytest.raises(ToolError, match=r"a\.pdf is a PDF that can't be read: it is broken or cut short"):
        read(body)


@pytest.mark.parametrize("algorithm", ["RC4-40", "RC4-128", "AES-128", "AES-256", "AES-256-R5"])
def test_an_encrypted_pdf_without_a_password_is_read(algorithm: str) -> None:
    writer = PdfWriter(PdfReader(io.BytesIO(two_pages().to_bytes())))
    writer.encrypt("", owner_password="x", algorithm=algorithm)
    body = io.BytesIO()
    writer.write(body)
    readable = read(body.getvalue())
    assert (readable.text, readable.note) == ("The first page\n\nThe second page", "")


# --- what has no text ---

PICTURE = "q 300 0 0 300 50 300 cm BI /W 1 /H 1 /CS /G /BPC 8 ID \x80 EI Q"


def test_a_pdf_of_pictures_says_how_to_read_it() -> None:
    file = PdfFile()
    file.add_page(PICTURE)
    readable = read(file.to_bytes())
    assert readable.text == ""
    assert readable.note.startswith("the PDF has no text: its pages may be pictures, as scans are")
    assert "ReadImage" in readable.note and "OCR" in readable.note


def test_a_pdf_of_empty_pages_says_so() -> None:
    file = PdfFile()
    file.add_page("")
    assert read(file.to_bytes()).note == "the PDF has no text: its pages are empty"


def test_single_pages_of_pictures_are_named_and_empty_pages_are_not() -> None:
    file = PdfFile()
    for content in (show((50, 700, "Text")), PICTURE, "", PICTURE):
        file.add_page(content)
    readable = read(file.to_bytes())
    assert readable.text == "Text"
    assert readable.note.startswith("pages 2, 4 show no text")


def test_attached_files_are_named() -> None:
    file = PdfFile()
    file.add_page(show((50, 700, "Text")))
    stream = file.add_stream("a,b", "/Type/EmbeddedFile")
    names = ["data.csv", "notes.txt"]
    specs = [file.add(f"<</Type/Filespec/F({name})/UF({name})/EF<</F {stream} 0 R>>>>") for name in names]
    listed = " ".join(f"({name}) {number} 0 R" for name, number in zip(names, specs, strict=True))
    file.catalog = f"/Names<</EmbeddedFiles<</Names[{listed}]>>>>"
    assert read(file.to_bytes()).note == "files attached to the PDF, not shown: data.csv, notes.txt"


def test_the_title_is_read() -> None:
    file = two_pages()
    file.trailer = f"/Info {file.add('<</Title<FEFF00C9007400E9>>>')} 0 R"
    assert read(file.to_bytes()).title == "Été"
