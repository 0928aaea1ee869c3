"""ReadDocs reads text in every encoding of the web: declared, misdeclared or undeclared."""

import asyncio
from typing import Any
from unicodedata import normalize

import pytest

from tests.tools.fake_web_site import site
from tests.tools.tool_calls import call, text
from toolgate.tools.api.outbound.fetch import Web
from toolgate.tools.builtin.docs import read_docs
from toolgate.tools.reading.encodings.decoders import decode_as
from toolgate.tools.reading.encodings.detection import SAMPLE, detect_encoding
from toolgate.tools.reading.encodings.labels import LABELS
from toolgate.tools.reading.pages.local_page_reader import LocalPageReader
from toolgate.tools.reading.web import convert
from toolgate.tools.reading.web.media_types import find_media_type

RUSSIAN = "Привет, мир. Это проверка."
UKRAINIAN = "Привіт, світе. Це ще одна перевірка їжі та ґанку."
JAPANESE = "日本語の文字です。"
# Encoding → a text, and Python's codec of it
SAMPLES = {
    "utf-8": (JAPANESE, "utf-8"),
    "ibm866": (RUSSIAN, "cp866"),
    "iso-8859-2": ("Zażółć gęślą jaźń", "iso8859-2"),
    "iso-8859-3": ("Ĉiuj ĥoroj ŝatas", "iso8859-3"),
    "iso-8859-4": ("Ģērbonis ķēves", "iso8859-4"),
    "iso-8859-5": (RUSSIAN, "iso8859-5"),
    "iso-8859-6": ("مرحبا بالعالم", "iso8859-6"),
    "iso-8859-7": ("Καλημέρα κόσμε", "iso8859-7"),
    "iso-8859-8": ("שלום עולם", "iso8859-8"),
    "iso-8859-8-i": ("שלום עולם", "iso8859-8"),
    "iso-8859-10": ("Þórðr ąęį", "iso8859-10"),
    "iso-8859-13": ("Ąžuolas ir ėglė", "iso8859-13"),
    "iso-8859-14": ("Ŵyth ŷd ḃó", "iso8859-14"),
    "iso-8859-15": ("Œuvre à 5 €", "iso8859-15"),
    "iso-8859-16": ("Țară și apă", "iso8859-16"),
    "koi8-r": (RUSSIAN, "koi8-r"),
    "koi8-u": (UKRAINIAN, "koi8-u"),
    "macintosh": ("Déjà vu à Noël", "mac-roman"),
    "windows-874": ("สวัสดีชาวโลก", "cp874"),
    "windows-1250": ("Příliš žluťoučký kůň", "cp1250"),
    "windows-1251": (RUSSIAN, "cp1251"),
    "windows-1252": ("“Déjà vu” – 5 €", "cp1252"),
    "windows-1253": ("Καλημέρα κόσμε, Άννα", "cp1253"),
    "windows-1254": ("Işık ve gölge, çağ", "cp1254"),
    "windows-1255": ("שלום עולם", "cp1255"),
    "windows-1256": ("مرحبا بالعالم", "cp1256"),
    "windows-1257": ("Ąžuolas ir ėglė", "cp1257"),
    "windows-1258": ("Ti\u00eang Vi\u00ea\u0323t đươ\u0300ng", "cp1258"),
    "x-mac-cyrillic": (RUSSIAN, "mac-cyrillic"),
    "gbk": ("这是中文文件，価格 €", "gb18030"),
    "gb18030": ("这是中文文件𠀀", "gb18030"),
    "big5": ("這是中文文件", "big5"),
    "euc-jp": (JAPANESE, "euc_jp"),
    "iso-2022-jp": (JAPANESE, "iso2022_jp"),
    "shift_jis": (JAPANESE + "①㈱", "cp932"),
    "euc-kr": ("한국어 문서입니다 뷁", "cp949"),
    "utf-16be": (JAPANESE, "utf-16-be"),
    "utf-16le": (JAPANESE, "utf-16-le"),
}
ALL_LABELS = [(label, name) for name, labels in LABELS.items() for label in labels.split()]


def read(body: bytes, content_type: str = "text/plain") -> str:
    found = convert.read(convert.RawPage(body, content_type, "http://site/", "text")).text
    assert found is not None
    return found


def test_the_standard_has_228_labels_of_40_encodings() -> None:
    assert (len(ALL_LABELS), len(LABELS)) == (228, 40)
    assert len(dict(ALL_LABELS)) == 228


@pytest.mark.parametrize("name", SAMPLES)
def test_each_label_of_an_encoding_is_read_in_the_header_and_in_the_page(name: str) -> None:
    words, codec = SAMPLES[name]
    for label in LABELS[name].split():
        for written in (label, label.upper(), f'" {label} "'):
            assert read(words.encode(codec), f"text/plain; charset={written}") == words, label
        if not name.startswith("utf-16"):
            page = f"<!doctype html><meta charset={label}><p>{words}"
            assert read(page.encode(codec), "text/html") == normalize("NFC", words), label


@pytest.mark.parametrize("label", LABELS["replacement"].split())
def test_an_encoding_that_browsers_refuse_shows_nothing_of_the_body_and_says_so(label: str) -> None:
    raw = convert.RawPage(b"<script>", f"text/plain; charset={label}", "http://site/", "text")
    readable = convert.read(raw)
    assert readable.text == "\ufffd"
    assert "an encoding that browsers refuse" in readable.note


def test_x_user_defined_is_private_characters_in_a_header_and_windows_1252_in_a_page() -> None:
    assert read(b"a\x80\xff", "text/plain; charset=x-user-defined") == "a\uf780\uf7ff"
    assert read(b"<meta charset=x-user-defined><p>caf\xe9", "text/html") == "café"


@pytest.mark.parametrize("label", ["utf-7", "unicode_escape", "zlib", "rot13", "punycode", "utf-32", "cp037", "no", ""])
def test_no_other_label_names_an_encoding(label: str) -> None:
    assert read(b"+AGE- \\x41", f"text/plain; charset={label}") == "+AGE- \\x41"


@pytest.mark.parametrize(
    ("name", "body", "expected"),
    [
        ("gbk", b"5 \x80", "5 €"),
        ("euc-jp", b"\xad\xa1\x8e\xb1\xa1\xc1", "①ｱ～"),
        ("big5", b"\xa3\xe1\x87\x40\xc6\xa1", "€䏰①"),
        ("iso-2022-jp", b"\x1b(J\\ \x1b(I1\x1b$B-!F|\x1b(B x", "¥ ｱ①日 x"),
        ("koi8-u", b"\xae\xbe", "ўЎ"),
        ("windows-1255", b"\xca", "\u05ba"),
        ("windows-1252", b"\x81\x93", "\x81“"),
        ("windows-1253", b"\xaa\xd2", "\ufffd\ufffd"),
        ("shift_jis", b"\x81", "\ufffd"),
        ("iso-2022-jp", b"\x1b$B!", ""),
    ],
)
def test_the_tables_are_the_standards_where_pythons_differ(name: str, body: bytes, expected: str) -> None:
    assert decode_as(body, name) == expected


CYRILLIC_META = '<meta charset="windows-1251">'
DECLARED = {
    "a comment": ('<!-- <meta charset="iso-8859-1"> --><meta charset="windows-1251">', "cp1251"),
    "an empty comment": ('<!--><meta charset="windows-1251">', "cp1251"),
    "a comment that is not closed": ('<!-- <meta charset="koi8-r"> ', None),
    "a script": ("<script>a = '<meta charset=koi8-r>'</script>" + CYRILLIC_META, "cp1251"),
    "a style": ("<STYLE>/* <meta charset=koi8-r> */</STYLE>" + CYRILLIC_META, "cp1251"),
    "a title": ("<title><meta charset=koi8-r></title>" + CYRILLIC_META, "cp1251"),
    "an attribute": ("<p title='<meta charset=koi8-r>'>" + CYRILLIC_META, "cp1251"),
    "another name": ("<metadata charset=koi8-r>" + CYRILLIC_META, "cp1251"),
    "data-charset": ("<meta data-charset=koi8-r>" + CYRILLIC_META, "cp1251"),
    "a name that says charset": ("<meta name=charset content=koi8-r>" + CYRILLIC_META, "cp1251"),
    "a content without http-equiv": ("<meta name=x content='a; charset=koi8-r'>" + CYRILLIC_META, "cp1251"),
    "an unknown label": ("<meta charset=klingon>" + CYRILLIC_META, "cp1251"),
    "the first of two": (CYRILLIC_META + "<meta charset=koi8-r>", "cp1251"),
    "the first of two attributes": ("<meta charset=windows-1251 charset=koi8-r>", "cp1251"),
    "http-equiv": ('<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">', "cp1251"),
    "content first": ("<META CONTENT='text/html;charset = windows-1251' HTTP-EQUIV=content-type>", "cp1251"),
    "spaces": ("<meta\n  charset  =\n 'windows-1251' />", "cp1251"),
    "a slash": ("<meta/charset=windows-1251>", "cp1251"),
    "a declaration of XML": ('<?xml version="1.0" encoding="windows-1251"?>', "cp1251"),
    "behind a long head": ("<style>" + "a{}" * 1_500 + "</style>" + CYRILLIC_META, "cp1251"),
    "behind a link": ("<link rel=x href='a>b'><base href=/ >" + CYRILLIC_META, "cp1251"),
}


@pytest.mark.parametrize("place", DECLARED)
def test_a_page_declares_its_encoding_where_the_html_standard_looks(place: str) -> None:
    head, codec = DECLARED[place]
    body = f"<!doctype html><html>{head}<p>{UKRAINIAN}".encode(codec or "cp1251")
    if codec is None:
        assert detect_encoding(body) == "windows-1251"
        return
    if head.startswith("<?xml"):
        body = body.removeprefix(b"<!doctype html><html>")
    assert UKRAINIAN in read(body, "text/html")
    assert UKRAINIAN in convert.read(convert.RawPage(body, "text/html", "http://site/", "html")).text  # type: ignore[operator]


def test_the_byte_order_mark_wins_then_the_header_then_the_page() -> None:
    page = CYRILLIC_META + f"<p>{RUSSIAN}"
    assert RUSSIAN in read(b"\xef\xbb\xbf" + page.encode(), "text/html; charset=koi8-r")
    assert RUSSIAN in read(b"\xff\xfe" + page.encode("utf-16-le"), "text/html; charset=koi8-r")
    assert RUSSIAN in read(b"\xfe\xff" + page.encode("utf-16-be"), "")
    assert RUSSIAN in read(page.encode("koi8-r"), "text/html; charset=koi8-r")
    assert "Привет" not in read(page.encode(), "text/html; charset=windows-1251")


def test_utf_8_that_calls_itself_something_else_is_read_as_utf_8() -> None:
    for label, words in (
        ("gb2312", "这是中文文件"),
        ("windows-1252", "déjà"),
        ("euc-kr", "한국어 문서"),
        ("big5", "中文檔案"),
    ):
        assert words in read(f"<meta charset={label}><p>{words}".encode(), "text/html")
        assert words in read(f"<?xml version='1.0' encoding='{label}'?><a>{words}</a>".encode(), "text/xml")


BY_CHANCE = [("euc-kr", b"\xc8\xa3\xc7\xa5"), ("gbk", b"\xd2\xbb\xd0\xa1"), ("big5", b"\xc2\xb2")]


def test_a_short_word_that_is_utf_8_by_chance_stays_what_it_declares() -> None:
    for label, word in BY_CHANCE:
        assert len(word.decode()) == len(word) // 2  # valid UTF-8
        assert read(f"<meta charset={label}><p>".encode() + word, "text/html") == word.decode(label)


OTHER_DECLARATIONS = {
    "CSS": ("text/css", '@charset "windows-1251";\n/* Привет */', "cp1251"),
    "Python": ("text/x-python", "#!/usr/bin/python\n# -*- coding: koi8-r -*-\n# Й", "koi8-r"),
    "C": ("text/plain", "/* vim: set fileencoding=cp1251: */\n// Й", "cp1251"),
    "XML": ("application/xml", "<?xml version='1.0' encoding='koi8-r'?><a>Й</a>", "koi8-r"),
    "XML in UTF-16": ("application/xml", "<?xml version='1.0' encoding='utf-16'?><a>Й</a>", "utf-16-be"),
}


@pytest.mark.parametrize("kind", OTHER_DECLARATIONS)
def test_other_texts_declare_their_encoding_in_their_own_way(kind: str) -> None:
    content_type, words, codec = OTHER_DECLARATIONS[kind]
    assert read(words.encode(codec), content_type) == words


# What files without a declaration say, by Python's codec
UNDECLARED = {
    "cp1251": "имя,город,возраст\nИван,Москва,34\nМария,Тверь,27\n",
    "koi8-r": "# Настройки программы\nцвет = красный  # по умолчанию\n",
    "cp866": "Том в устройстве C не имеет метки\r\nСерийный номер тома\r\n",
    "iso8859-5": "Это письмо написано довольно давно, но его еще можно прочитать.\n",
    "koi8-u": "Привіт, це перевірка української мови. Її чути ще всюди.\n",
    "cp932": "日本語の文字です。設定を変更します。\n",
    "euc_jp": "日本語の文字です。設定を変更します。\n",
    "iso2022_jp": "日本語の文字です。設定を変更します。\n",
    "cp949": "한국어 문서입니다. 설정을 변경합니다.\n",
    "big5": "這是一個中文檔案，請使用正確的編碼來讀取。\n",
    "gbk": "这是一个中文文件，请使用正确的编码来读取。\n",
    "cp1250": "Zażółć gęślą jaźń, proszę. Większość plików źródłowych się zmieniła.\n",
    "iso8859-2": "Příliš žluťoučký kůň úpěl ďábelské ódy. Soubor nelze otevřít.\n",
    "cp1253": "Καλημέρα κόσμε. Το αρχείο δεν βρέθηκε. Άλλη μία φορά.\n",
    "cp1254": "Işık hızı çok yüksek. Dosya bulunamadı, şimdi değiştirildi.\n",
    "cp1255": "שלום עולם. הקובץ לא נמצא.\n",
    "cp1256": "مرحبا بالعالم. لم يتم العثور على الملف.\n",
    "cp1257": "Failas nerastas. Ąžuolas, ėglė ir šermukšnis žaliuoja.\n",
    "cp874": "สวัสดีชาวโลก ไม่พบไฟล์นี้ในระบบ\n",
    "cp1252": "“Déjà vu” – le café coûte 5 €. Très élégant, n’est-ce pas ?\n",
    "latin-1": "Straße,Größe,Übung\nMüller,groß,schön\n",
    "utf-16-le": "Windows writes such logs: naïve, Größe, 5 €.\n",
    "utf-16-be": "Windows writes such logs: naïve, Größe, 5 €.\n",
}


@pytest.mark.parametrize("codec", UNDECLARED)
def test_the_encoding_of_an_undeclared_text_is_detected(codec: str) -> None:
    words = UNDECLARED[codec]
    rows = "id,name,city\n" + "1,Ann,Oslo\n" * 300
    for content_type in ("text/plain", "text/csv", "application/json", "application/octet-stream"):
        for body in (words, words * 20, rows + words, f'{{"a": "{words.strip()}"}}'):
            given = body.encode(codec)
            assert read(given, content_type).strip() == body.replace("\r\n", "\n").strip(), (content_type, body[:9])
    if not codec.startswith("utf-16"):
        page = f"<!doctype html><title>x</title><p>{words}"
        assert words.split()[0] in read(page.encode(codec), "text/html")


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_utf_16_of_plain_letters_is_detected(codec: str) -> None:
    raw = convert.RawPage("a,b\r\n1,2\r\n".encode(codec), "text/csv", "http://site/", "text")
    readable = convert.read(raw)
    assert (readable.text, readable.note[-8:]) == ("a,b\n1,2\n", f"utf-16{codec[-2:]}")


def test_a_guess_is_told_and_utf_8_is_not() -> None:
    for body, note in (
        (RUSSIAN.encode("cp1251"), "its encoding is not declared: read as windows-1251"),
        (RUSSIAN.encode(), ""),
        (b"plain", ""),
    ):
        assert convert.read(convert.RawPage(body, "text/plain", "http://site/", "text")).note == note


def test_a_text_in_utf_8_with_a_few_broken_letters_stays_utf_8() -> None:
    body = (RUSSIAN * 20).encode()
    assert read(body[:-1] + b"\n\xff\xfe!").startswith(RUSSIAN)
    assert read(body[:301]).startswith(RUSSIAN[:20])


def test_detection_reads_a_part_of_a_long_body_alone() -> None:
    line = UNDECLARED["cp1251"].encode("cp1251")
    many = line * (SAMPLE // len(line) + 1)
    assert detect_encoding(many + "日本語".encode("euc_jp") * 100_000) == "windows-1251"
    assert detect_encoding(b"a" * 300_000 + line) == "windows-1251"


def test_read_docs_detects_undeclared_text_and_says_which_encoding_it_read() -> None:
    async def main() -> Any:
        body = (RUSSIAN * 20).encode("cp1251")
        async with site({"/": (200, {"content-type": "text/plain"}, body)}) as place:
            reader = LocalPageReader(Web(["127.0.0.1"]))
            try:
                return await call(read_docs, {"url": place.url("/")}, reader=reader)
            finally:
                await reader.close()

    output = asyncio.run(asyncio.wait_for(main(), 30))
    assert RUSSIAN in text(output)
    assert "(its encoding is not declared: read as windows-1251)" in text(output)


def test_the_bytes_show_what_a_type_that_says_nothing_hides() -> None:
    kinds = {
        b"%PDF-1.7\n": "application/pdf",
        b"\n\n%PDF-1.7\n": "application/pdf",
        b"\xff\xfe<\0h\0t\0m\0l\0>\0": "text/html",
        "Größe".encode("utf-16-le"): "text/plain",
        b"\x7fELF\2\1\1\0\0\0\0\0\0\0\0\0": "application/octet-stream",
        b"\0\1\2\3": "application/octet-stream",
    }
    for body, kind in kinds.items():
        assert find_media_type("application/octet-stream", body) == kind, body
    assert find_media_type("application/pdf", b"\n\n%PDF-1.7\n") == "application/pdf"
