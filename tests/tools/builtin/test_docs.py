"""ReadDocs against a real server on loopback."""

import asyncio
import functools
import gzip
import io
import json
import re
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec
import pytest
from pypdf import PdfWriter

from tests.tools.fake_web_site import Answer, Request, never, redirect, site
from tests.tools.tool_calls import call, text
from toolgate.tools.api.content import Output
from toolgate.tools.api.context.services import Settings
from toolgate.tools.api.outbound.fetch import Web
from toolgate.tools.builtin.docs import read_docs
from toolgate.tools.reading.pages.local_page_reader import LocalPageReader
from toolgate.tools.reading.web import convert
from toolgate.tools.reading.workers.pool import Workers

PROSE = "A paragraph of running text which is long enough to be taken for the content of a page by anyone. " * 3


class Shared:
    """One event loop, and workers in it, for all tests of this file: a worker takes a third of a second to start."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.workers = Workers()

    def close(self) -> None:
        self.runner.run(self.workers.close())
        self.runner.close()


shared = functools.cache(Shared)


class Reader(LocalPageReader):
    @property
    def workers(self) -> Workers:
        return shared().workers


@pytest.fixture(scope="module", autouse=True)
def closing() -> Iterator[None]:
    yield
    shared().close()
    shared.cache_clear()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return shared().runner.run(asyncio.wait_for(work, 40))


def read(answers: dict[str, Answer], path: str = "/", settings: Settings | None = None, **arguments: Any) -> Output:
    """Read `path` of a site; its address in the answer is written as http://site."""

    async def scenario() -> Output:
        async with site(answers) as place:
            reader = Reader(Web(["127.0.0.1"]))
            try:
                arguments_ = {"url": place.url(path), **arguments}
                output = await call(read_docs, arguments_, reader=reader, settings=settings)
            finally:
                await reader.close()
            plain = msgspec.json.encode(msgspec.to_builtins(output)).decode()
            return msgspec.json.decode(plain.replace(place.url("").rstrip("/"), "http://site"), type=Output)

    return run(scenario())


def page(body: str, head: str = "<title>The  title\n of it</title>", kind: str = "text/html; charset=utf-8") -> Answer:
    html = f"<!doctype html><html><head>{head}</head><body>{body}</body></html>"
    return 200, {"content-type": kind}, html.encode()


GUIDE = f"""
<nav><a href="/home">Home page</a><a href="/about">About us</a></nav>
<div id="wrap"><h1>The guide</h1>
<p>{PROSE} See <a href="install.html#x">the installation</a> and <code>inline</code> and <b>bold</b>.</p>
<ul><li>one<ul><li>nested one</li><li>nested two</li></ul></li><li>two</li></ul>
<ol><li>first</li><li>second</li></ol>
<pre><code class="language-python">def f(x):


    return x * 2
</code></pre>
<div class="highlight-source-rust"><pre>fn main() {{}}</pre></div>
<div class="highlight-js notranslate"><div class="highlight"><pre><span class="k">let</span> a = 1;</pre></div></div>
<table><thead><tr><th>Name</th><th>Size</th></tr></thead><tbody><tr><td>a</td><td>1</td></tr></tbody></table>
<p><img src="img/a.png" alt="A frob"> {PROSE}</p>
<h2 id="h">Heading<a class="headerlink" href="#h">¶</a></h2>
<p>{PROSE} <a href="javascript:alert(1)">bad link</a></p>
</div>
<script>evil()</script><style>p {{ color: red }}</style>
<footer>Copyright <a href="/terms">terms of use</a></footer>
"""


def test_markdown_is_the_main_content_with_title_url_and_absolute_links() -> None:
    output = read({"/docs/page": page(GUIDE)}, "/docs/page")
    answer = text(output)
    assert not output.is_error
    assert output.structured == {
        "url": "http://site/docs/page",
        "title": "The title of it",
        "status": 200,
        "format": "markdown",
        "rendered": False,
        "truncated": False,
        "text": answer.partition("\n\n")[2],
        "note": "(fetched without a browser: scripts did not run)",
    }
    assert answer.startswith("Title: The title of it\nURL: http://site/docs/page\n(fetched without a browser")
    for expected in (
        "# The guide",
        "[the installation](http://site/docs/install.html#x)",
        "`inline`",
        "**bold**",
        "- one\n  * nested one\n  * nested two\n- two",
        "1. first\n2. second",
        "```python\ndef f(x):\n\n\n    return x * 2\n```",
        "```rust\nfn main() {}\n```",
        "```js\nlet a = 1;\n```",
        "| Name | Size |",
        "![A frob](http://site/docs/img/a.png)",
        "## Heading\n",
        "bad link",
    ):
        assert expected in answer, expected
    for unwanted in ("evil", "color: red", "javascript:", "Home page", "terms of use", "¶"):
        assert unwanted not in answer, unwanted


@pytest.mark.parametrize("tag", ["div", "section", "blockquote", "span", "div><span"])
def test_the_text_of_a_page_that_is_nested_too_deep_is_read(tag: str) -> None:
    paragraphs = "".join(f"<p>Paragraph {number}. {PROSE}</p>" for number in range(20))
    ends = "".join(f"</{each}>" for each in reversed(tag.split("><")))
    answer = text(read({"/": page(f"<{tag}>" * 800 + paragraphs + ends * 800)}))
    assert re.findall(r"Paragraph (\d+)\.", answer) == [str(number) for number in range(20)]
    assert "Title: The title of it" in answer


def test_links_follow_the_base_of_the_page() -> None:
    answer = text(read({"/a/b": page(GUIDE, '<base href="/other/place/">')}, "/a/b"))
    assert "[the installation](http://site/other/place/install.html#x)" in answer
    answer = text(read({"/a/b": page(GUIDE, '<base href="javascript:1">')}, "/a/b"))
    assert "[the installation](http://site/a/install.html#x)" in answer


def test_text_has_no_markup() -> None:
    output = read({"/": page(GUIDE)}, format="text")
    answer = text(output)
    assert output.structured["format"] == "text"
    assert "The guide" in answer
    assert "def f(x):" in answer
    assert "nested two" in answer
    for markup in ("# The", "](", "```", "**", "<p", "Home page"):
        assert markup not in answer


def test_html_is_the_page_as_it_is() -> None:
    output = read({"/": page(GUIDE)}, format="html")
    assert output.structured["format"] == "html"
    assert "<script>evil()</script>" in text(output)
    assert "The title of it" in text(output)


def test_a_page_without_a_main_part_is_read_whole() -> None:
    answer = text(read({"/": page("<p>Just this.</p><p>And <a href=x>that</a>.</p>")}))
    assert "Just this." in answer
    assert "And [that](http://site/x)." in answer


def test_a_page_that_leaves_out_the_tag_of_its_body_is_read_whole() -> None:
    page = (
        "<!doctype html><title>Lamps</title><article><h1>Oil</h1><p>It burns.</article>And<section><p>Whale</section>"
    )
    got = convert.read(convert.RawPage(page.encode(), "text/html", "https://example.org/", "markdown"))
    assert (got.title, got.text) == ("Lamps", "# Oil\n\nIt burns.\n\nAnd\n\nWhale")


def test_a_page_of_many_short_pieces_keeps_them_all() -> None:
    cards = "".join(f"<div class=card><h3>Card {n}</h3><p>Short words number {n}.</p></div>" for n in range(60))
    answer = text(read({"/": page(cards)}))
    for n in range(60):
        assert f"Card {n}\n" in answer
        assert f"Short words number {n}." in answer


def test_a_page_that_scripts_would_fill_shows_what_it_says_without_them() -> None:
    answer = text(read({"/": page("<div id=root></div><noscript>You need scripts.</noscript><script>x</script>")}))
    assert "You need scripts." in answer
    answer = text(read({"/": page("<div id=root></div><script>let a</script>")}))
    assert "the page has no text; it may need scripts" in answer


async def half(request: Request) -> None:
    body = f"<title>t</title><p>Half: {PROSE}".encode()
    await request.send(200, {"content-type": "text/html", "content-length": "100000"}, body)


async def half_of_the_chunks(request: Request) -> None:
    body = f"<title>t</title><p>Half: {PROSE}".encode()
    head = {"content-type": "text/html", "transfer-encoding": "chunked"}
    await request.send(200, head, b"%x\r\n%s\r\n" % (len(body), body))


PACKED_HALF = gzip.compress(f"<title>t</title><p>Half: {PROSE * 20}".encode(), mtime=0)[:-30]
HALVES: dict[str, Answer] = {
    "a length": half,
    "chunks": half_of_the_chunks,
    "gzip": (200, {"content-type": "text/html", "content-encoding": "gzip"}, PACKED_HALF),
    "gzip of plain text": (200, {"content-type": "text/plain", "content-encoding": "gzip"}, PACKED_HALF),
}


@pytest.mark.parametrize("name", HALVES)
def test_a_page_that_breaks_off_is_read_as_far_as_it_came(name: str) -> None:
    output = read({"/": HALVES[name]})
    assert not output.is_error
    assert "Half: A paragraph" in text(output)
    assert "(it broke off: read as far as it came)" in text(output)
    assert output.structured["truncated"]


def test_markdown_is_asked_for_and_not_where_the_source_is() -> None:
    async def scenario() -> None:
        async with site({"/": b"<p>x"}) as place:
            reader = Reader(Web(["127.0.0.1"]))
            for form in ("markdown", "text", "html"):
                await call(read_docs, {"url": place.url(), "format": form}, reader=reader)
            await reader.close()
            kinds = [request.headers["accept"].split(",")[:2] for request in place.requests]
            markdown, html = ["text/markdown", "text/html"], ["text/html", "application/xhtml+xml"]
            assert kinds == [markdown, markdown, html]

    run(scenario())


def test_an_error_names_the_time_after_which_to_try_again() -> None:
    output = read({"/": (429, {"content-type": "text/html", "retry-after": "120"}, b"<p>Too fast")})
    assert "answered with HTTP status 429 Too Many Requests; try again after 120 s" in text(output)
    date = "Fri, 01 Jan 2027 00:00:00 GMT"
    output = read({"/": (503, {"content-type": "text/html", "retry-after": date}, b"<p>Closed")})
    assert f"503 Service Unavailable; try again at {date}" in text(output)


def test_control_characters_are_gone() -> None:
    answer = text(read({"/": page("<p>a\x1b[31mred\x07\u202ehidden\U000e0041 &#27;x &#x9b;y</p>")}))
    assert not any(character in answer for character in "\x1b\x07\x9b\u202e\U000e0041")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", '{"a": [1, 2]}'),
        ("application/problem+json; charset=utf-8", '{"a":  "ü"}'),
        ("text/plain; charset=utf-8", "plain <b>text</b>\n  indented ü"),
        ("application/rss+xml", "<?xml version='1.0'?><rss><channel/></rss>"),
        ("text/markdown", "# Read me"),
        ("application/octet-stream", "# really text"),
        ("", "no type at all"),
        ("video/mp2t", "type A = 1"),
        ("text/x-python-code", "print(1)"),
        ("application/x-python-code", "print('ü')"),
        ("application/x-tex", "\\documentclass{article}"),
        ("application/x-protobuf", 'syntax = "proto3";'),
        ("application/x-log", "12:00 error"),
        ("application/postscript", "%!PS-Adobe-3.0\n/a 1 def"),
        ("application/vnd.apple.mpegurl", "#EXTM3U"),
        ("message/rfc822", "Subject: tide"),
    ],
)
def test_text_that_is_no_html_stays_as_it_is(kind: str, body: str) -> None:
    output = read({"/": (200, {"content-type": kind} if kind else {}, body.encode())})
    assert text(output) == f"URL: http://site/\n\n{body}"
    assert output.structured["format"] == "text"


@pytest.mark.parametrize(
    ("kind", "body", "named"),
    [
        ("application/pdf", b"%PDF-1.7 ...", "PDF"),
        ("text/html", b"%PDF-1.7 ...", "PDF"),
        ("image/png", b"\x89PNG\r\n", "image/png"),
        ("application/zip", b"PK\x03\x04", "application/zip"),
        ("application/octet-stream", b"\x00\x01\x02", "application/octet-stream"),
        ("video/mp2t", b"G@\x00\x10\x00\x00", "video/mp2t"),
        ("application/x-protobuf", b"\x08\x96\x01", "application/x-protobuf"),
        ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", b"PK\x03\x04", "wordprocessingml"),
        ("application/octet-stream", b"PK\x03\x04 [Content_Types].xml word/document.xml", "wordprocessingml"),
        ("application/zip", b"PK\x03\x04 [Content_Types].xml xl/workbook.xml", "spreadsheetml"),
        ("application/zip", b"PK\x03\x04mimetypeapplication/epub+zipPK\x03\x04", "application/epub+zip"),
        ("text/html", b"PK\x03\x04", "application/zip"),
        ("video/mp4\x1b[31m", b"x", "video/mp4"),
    ],
)
def test_a_page_that_is_not_text_is_named_and_refused(kind: str, body: bytes, named: str) -> None:
    output = read({"/": (200, {"content-type": kind}, body)})
    assert output.is_error
    assert named in text(output)
    assert "\x1b" not in text(output)
    assert output.structured is None


def locked(password: str, algorithm: str) -> Answer:
    writer = PdfWriter()
    writer.add_blank_page(100, 100)
    writer.add_metadata({"/Title": "Locked"})
    writer.encrypt(password, "the owner's", algorithm=algorithm)
    body = io.BytesIO()
    writer.write(body)
    return 200, {"content-type": "application/pdf"}, body.getvalue()


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-128", "AES-256"])
def test_a_pdf_with_a_password_is_refused_and_one_that_only_forbids_printing_is_read(algorithm: str) -> None:
    output = read({"/": locked("secret", algorithm)})
    assert output.is_error
    assert text(output) == "http://site/ is a PDF that needs a password; look for an open version of it"
    output = read({"/": locked("", algorithm)})
    assert not output.is_error
    assert output.structured["title"] == "Locked"


def test_a_fault_is_an_error_with_its_status_and_what_the_page_says() -> None:
    body = f"<html><title>Gone</title><p>It was moved away. {'x' * 5000}</p></html>".encode()
    output = read({"/": (404, {"content-type": "text/html"}, body)})
    assert output.is_error
    assert "http://site/ answered with HTTP status 404 Not Found" in text(output)
    assert "It was moved away." in text(output)
    assert len(text(output)) < 2_200
    assert output.structured == {
        "url": "http://site/",
        "title": "Gone",
        "status": 404,
        "format": "markdown",
        "rendered": False,
        "truncated": True,
        "text": text(output).partition("\n\n")[2],
        "note": "http://site/ answered with HTTP status 404 Not Found",
    }
    output = read({"/": (599, {"content-type": "image/png"}, b"\x89PNG")})
    assert output.is_error
    assert text(output) == "http://site/ answered with HTTP status 599"


def test_the_url_is_the_one_redirects_led_to() -> None:
    output = read({"/": redirect("/real/"), "/real/": page(GUIDE)})
    assert output.structured["url"] == "http://site/real/"
    assert "http://site/real/install.html" in text(output)


@pytest.mark.parametrize(("status", "headers"), [(300, {}), (305, {}), (300, {"location": "/other"}), (302, {})])
def test_a_3xx_page_that_is_no_redirect_is_read(status: int, headers: dict[str, str]) -> None:
    headers = {"content-type": "text/html", **headers}
    output = read({"/": (status, headers, b"<p>Several choices</p>")})
    assert text(output).endswith("Several choices")
    assert output.structured["status"] == status
    assert output.structured["truncated"] is False


def test_a_long_page_is_cut_under_a_hundred_thousand_characters() -> None:
    body = "".join(f"line {n} of a long text\n" for n in range(20_000))
    output = read({"/": (200, {"content-type": "text/plain"}, body.encode())})
    assert 99_000 < len(text(output)) < 100_000
    assert output.structured["truncated"] is True
    assert f"of {len(body):,} characters" in text(output)
    assert text(output).splitlines()[-1].endswith("of a long text")
    output = read({"/": page("<p>many words here</p>" * 30_000)})
    assert len(text(output)) < 100_000
    assert output.structured["truncated"] is True


ENCODED = [
    ("text/plain; charset=iso-8859-1", "héé “q”".encode("cp1252"), "héé “q”"),
    ('text/plain; charset="Shift_JIS"', "日本語".encode("shift_jis"), "日本語"),
    ("text/plain; charset=gb2312", "中文".encode("gbk"), "中文"),
    ("text/plain", "日本語".encode(), "日本語"),
    ("text/plain", "h\xe9".encode("latin-1"), "hé"),
    ("text/plain; charset=latin-1", b"\xef\xbb\xbfmark \xc3\xbc", "mark ü"),
    ("text/plain; charset=utf-16", "wide ü".encode("utf-16"), "wide ü"),
    ("text/plain; charset=unicode_escape", rb"\x41 ", r"\x41"),
    ("text/plain; charset=zlib", b"text", "text"),
    ("text/plain; charset=idna", b"xn--fa-hia", "xn--fa-hia"),
    ("text/plain; charset=no such thing", b"text", "text"),
    ("text/plain; charset=utf-8", b"broken \xff here", "broken \ufffd here"),
    ("text/html", '<meta charset="windows-1251"><p>Привет'.encode("cp1251"), "Привет"),
    (
        "text/html",
        '<meta http-equiv=x content="text/html; charset=koi8-r"><p>Привет'.encode("koi8-r"),
        "Привет",
    ),
    ("text/html", '<meta charset="utf-16"><p>Привет'.encode(), "Привет"),
    ("application/xml", "<?xml version='1.0' encoding='iso-8859-1'?><a>é</a>".encode("latin-1"), "<a>é</a>"),
]


@pytest.mark.parametrize(("kind", "body", "expected"), ENCODED)
def test_a_page_is_read_in_its_encoding(kind: str, body: bytes, expected: str) -> None:
    readable = convert.read(convert.RawPage(body, kind, "http://site/", "text"))
    assert readable.text is not None
    assert readable.text.strip().endswith(expected)


def test_a_private_address_is_refused() -> None:
    async def scenario() -> None:
        reader = Reader(Web([]))
        output = await call(read_docs, {"url": "http://127.0.0.1:1/"}, reader=reader)
        await reader.close()
        assert output.is_error
        assert "--allow-private" in text(output)
        assert output.structured is None

    run(scenario())


def test_a_page_that_takes_too_long_is_given_up_within_the_hold() -> None:
    output = read({"/": never}, settings=Settings(hold=0.3))
    assert output.is_error
    assert "0.3 s" in text(output)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"url": "x", "format": "pdf"},
        {"url": "x", "wait_ms": 30_001},
        {"url": "x", "wait_ms": -1},
        {"url": 1},
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any]) -> None:
    output = run(call(read_docs, arguments))
    assert output.is_error
    assert text(output).startswith("ReadDocs: ")


HOSTILE: dict[str, Callable[[int], str]] = {  # name → the page of so many tenths
    "deep": lambda n: "<div>" * 10_000 * n + "deep",
    "lists": lambda n: "<ul><li>" * 3_000 * n + "deep",
    "links": lambda n: "<a href=x>y" * 5_000 * n,
    "angles": lambda n: "<" * 30_000 * n,
    "elements": lambda n: "<div>x</div>" * 10_000 * n,
    "breaks": lambda n: "<br>" * 10_000 * n,
    "wide table": lambda n: "<table>" + "<tr>" + "<td>x" * 2_000 * n + "<tr><td>y" * 2_000 * n + "</table>",
    "spans": lambda n: "<table><tr><td colspan=999999999>x<td rowspan=999999>y<tr><td>z</table>" * n,
    "frames": lambda n: "<frameset><frame src=x></frameset>" * n,
    "empty": lambda n: "",
    "comment": lambda n: "<!-- " + "-" * 10_000 * n,
    "nul": lambda n: "\x00" * 100 * n + "<p>text",
    "text between what is dropped": lambda n: "<p>" + "<svg></svg>lorem ipsum" * 10_000 * n,
    "text between permalinks": lambda n: "<p>" + '<a href="#x">#</a>some text' * 5_000 * n,
    "a long class over many listings": lambda n: (
        f"<div class='{'x ' * 20_000 * n}'>" + "<pre>x</pre>" * 2_000 * n + "</div>"
    ),
}


@pytest.mark.parametrize("tenths", [1, pytest.param(10, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_page_is_read_in_bounded_time_and_size(name: str, tenths: int) -> None:
    page = HOSTILE[name](tenths)
    start = time.process_time()
    readable = convert.read(convert.RawPage(page.encode(), "text/html", "http://site/", "markdown"))
    assert time.process_time() - start < 3.0 + tenths * 0.45  # a second or two for all tenths
    assert readable.text is not None
    assert len(readable.text) <= convert.MAX_TEXT


def test_the_description_is_small_and_true() -> None:
    assert len(read_docs.description) < 450
    assert read_docs.input["required"] == ["url"]
    assert read_docs.input["properties"]["format"]["enum"] == ["text", "html", "markdown"]
    hints = read_docs.annotations
    assert (hints.read_only, hints.destructive, hints.idempotent, hints.open_world) == (
        True,
        False,
        True,
        True,
    )
    assert read_docs.scope == "tools:web"
    assert json.dumps(read_docs.input)
