"""Each kind of content of foreign pages becomes text that a model reads.

tests/tools/reading/browser reads them in Chromium.
"""

import sys
from pathlib import Path
from types import FrameType

import pytest

from tests.tools.reading.web.page_kinds import KINDS, Fragment, page
from toolgate.tools.reading.web import convert as convert_module
from toolgate.tools.reading.web.convert import RawPage, ReadablePage, read

FRAGMENTS = [(kind, fragment) for kind, fragments in KINDS.items() for fragment in fragments]


def convert(body: bytes, form: str = "markdown") -> ReadablePage:
    return read(RawPage(body, "text/html; charset=utf-8", "http://site/page", form))


def markdown(body: bytes) -> str:
    text = convert(body).text
    assert text is not None
    return text


@pytest.mark.parametrize(
    ("kind", "fragment"), FRAGMENTS, ids=[f"{kind}: {fragment.name}" for kind, fragment in FRAGMENTS]
)
def test_a_kind_of_content_becomes_text(kind: str, fragment: Fragment) -> None:
    text = markdown(page(fragment.html))
    for words in fragment.present:
        assert words in text
    for words in fragment.absent:
        assert words not in text
    assert (text.count("passes"), text.count("lens")) >= (4, 4)  # what stands around it is there, too


def test_plain_text_has_the_same_lines_and_formulas() -> None:
    fragments = [fragment.html for kind in ("code", "superscripts", "formulas") for fragment in KINDS[kind]]
    text = convert(page(*fragments), "text").text or ""
    for words in (
        "def hexo():\n    return 2",
        "eins()\n\n  zwei()",
        "2^32 bytes",
        "x₁+x₂",
        "So $a^2+b_1$.",
        "$x = 4711$",
    ):
        assert words in text


DEEP = {
    "unclosed fonts": "".join(f"<font size=2>Line {number} of an old page.<br>" for number in range(300)) + "THE END",
    "divisions": "<div>" * 300 + "<p>Line 0 of. Line 299 of. THE END</p>" + "</div>" * 300,
    "five thousand divisions": "<div>" * 5_000 + "<p>Line 0 of. Line 299 of. THE END</p>" + "</div>" * 5_000,
    "quotations": "<blockquote>" * 400 + "Line 0 of. Line 299 of. THE END" + "</blockquote>" * 400,
    "lists": "".join(f"<ul><li>Line {number} of" for number in range(300)) + "THE END" + "</ul>" * 300,
    "tables": "<table><tr><td>" * 150 + "Line 0 of. Line 299 of. THE END" + "</table>" * 150,
    "unclosed links and bold": "".join(f"<b><i>Line {number} of<br>" for number in range(3_000)) + "THE END",
    "own elements": "<x-y>" * 3_000 + "<p>Line 0 of. Line 299 of. THE END</p>",
    "ends that don't match": "<b><div></b>" * 3_000 + "<p>Line 0 of. Line 299 of. THE END</p>",
}


@pytest.mark.parametrize("name", DEEP)
def test_depth_is_no_limit(name: str) -> None:
    text = markdown(page(DEEP[name]))
    for words in ("Line 0 of", "Line 299 of", "THE END"):
        assert words in text
    assert text.count("passes") >= 4 and text.count("lens") >= 4


def test_items_without_end_tags_are_not_deep() -> None:
    text = markdown(page("<ul>" + "".join(f"<li>entry {number}<p>more" for number in range(300)) + "</ul>"))
    assert [line for line in text.splitlines() if line.startswith("- entry")] == [f"- entry {n}" for n in range(300)]


def test_a_table_takes_no_more_than_its_text() -> None:
    long = f"<tr><td>{'long_name_' * 15}</td><td>{'Union[int] ' * 12}</td><td>{'one long text ' * 15}</td></tr>"
    rows = "".join(f"<tr><td>opt{number}</td><td>int</td><td>short</td></tr>" for number in range(400))
    table = f"<table><tr><th>Name</th><th>Type</th><th>About</th></tr>{long}{rows}</table>"
    text = markdown(page(table))
    assert "| opt399 | int | short |" in text
    assert len(text) < len(table)


def test_a_page_that_hides_all_of_its_text_until_its_scripts_run_is_read() -> None:
    text = markdown(
        b"<title>t</title><body><p>Loading</p><div style='display:none'><p>The tide is low at nine.</p></div>"
    )
    assert "The tide is low at nine." in text
    text = markdown(b"<title>t</title><body hidden style='visibility:hidden'><p>The tide is high at three.</p>")
    assert "The tide is high at three." in text


def test_a_lazy_picture_has_the_source_for_readers_without_scripts() -> None:
    lazy = '<p><img src="/blank.gif" alt="Buoy"><noscript><img src="/real.png" alt="Buoy"></noscript> in the bay.</p>'
    assert "![Buoy](http://site/real.png)" in markdown(page(lazy))


def test_the_frames_of_a_frameset_are_named() -> None:
    body = b'<html><frameset cols="1,2"><frame src="/a" name="menu"><frame src="b.html"></frameset>'
    text = markdown(body)
    assert "[Frame menu](http://site/a)" in text
    assert "(http://site/b.html)" in text


def test_the_title_has_no_invisible_characters() -> None:
    assert convert("<title>Kapi&shy;täns\u00admütze&#8203;</title><p>x".encode()).title == "Kapitänsmütze"


# What is repeated, and what stands around it
HOSTILE = {
    "lines": ("<pre>", "<span class=line>x</span>", "</pre>"),
    "line numbers": ("<pre>", "<span class=lineno>1</span>x\n", "</pre>"),
    "listings in cells": ("<table>", "<tr><td><pre>1</pre><td><pre>x\ny</pre>", "</table>"),
    "rows of inner tables": ("<table><tr><td>" * 30, "<tr><td>x", "</table>"),
    "superscripts": ("<p>", "x<sup>2</sup>", ""),
    "formulas": ("<p>", "<math><mi>x</mi></math> and ", ""),
    "formulas in a frame": ("<span class=katex>", "<math><mi>x</mi></math>", "</span>"),
    "rows of a formula": ("<p><math>", "<mi>x</mi><mo>+</mo>", "</math>"),
    "rows of a deep formula": ("<p><math>" + "<mrow>" * 50, "<mi>x</mi><mo>+</mo>", "</math>"),
    "tabs": ("", "<div role=tablist><button role=tab aria-controls=p>x</button></div>", "<div id=p role=tabpanel>y"),
    "lists of tabs": ("", "<div role=tablist></div><div role=tabpanel>y</div>", ""),
    "panels": ("", "<button aria-expanded=false>x</button><div hidden>y</div>", ""),
    "targets": ("<p hidden id=a>y</p>", "<a href='#a'>x</a>", ""),
    "buttons in a heading": ("<h2>", "<button>x</button>", "</h2>"),
    "boxes": ("<ul>", "<li><input type=checkbox>x", "</ul>"),
    "numbers": ("<ol reversed>", "<li value=7>x", "</ol>"),
    "links in code": ("<code>", "<a href=x>y</a>z", "</code>"),
    "links in deep code": ("<code>" * 90, "<a href=x>y</a>z", "</code>"),
    "links in deep listings": ("<pre>" * 90, "<a href=x>y</a>z", "</pre>"),
    "empty links": ("<p>", "<a href=x></a>text", ""),
    "blocks in a cell": ("<table><tr><th>a<tr><td>", "<div>x</div>", "</table>"),
    "embeds": ("<p>", "<embed src=x>text", ""),
    "footers": ("<article>", "<footer><ol><li>x</ol></footer>", ""),
    "soft hyphens": ("<p>", "&shy;a\u00ad", ""),
    "scripts of formulas": ("<p>", "<script type='math/tex'>x</script>and", ""),
    "delimited formulas": ("<p>", r"<span class=math>\(x\)</span>and", ""),
    "deep soft hyphens": ("<p>", "<font>&shy;a", ""),
    "deep blocks": ("", "<div>a", ""),
}
HERE = str(Path(convert_module.__file__).parent)


def count_lines(body: bytes) -> int:
    """Return the lines of tools/reading/web that run to read a page."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename.startswith(HERE) else None

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        convert(body)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("count", [200, pytest.param(300, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", HOSTILE)
def test_twice_the_page_makes_at_most_twice_the_work(name: str, count: int) -> None:
    begin, repeated, end = HOSTILE[name]
    small, large = (count_lines(page(begin + repeated * each + end)) for each in (count, 2 * count))
    assert large <= 2.2 * small


@pytest.mark.parametrize("count", [300, pytest.param(1_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_page_makes_a_text_of_its_size(name: str, count: int) -> None:
    begin, repeated, end = HOSTILE[name]
    text = markdown(page(begin + repeated * count + end))
    assert len(text) < 100 * count
