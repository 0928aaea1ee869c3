"""What stays of a page: its content whole, and not the menus, notices and links around it."""

import sys
from types import FrameType

import pytest

from toolgate.tools.reading.web.convert import RawPage, prepare, read

SENTENCE = "The keeper of the light number {} writes down each ship that passes the tower at night, and its course. "
STORY = "".join(f"<p>{SENTENCE.format(number) * 2}</p>" for number in range(12))
MENU = "<nav><ul>" + "".join(f"<li><a href=/m{n}>Menu entry {n}</a></li>" for n in range(9)) + "</ul></nav>"
SIDE = "<div class=sidebar><h3>Related stories</h3><ul>" + "".join(f"<li><a href=/s{n}>Side story {n}</a></li>" for n in range(9)) + "</ul></div>"  # fmt: skip  # noqa: E501
FOOT = "<footer><p>Imprint of the lighthouse society</p><a href=/t>Terms of use</a></footer>"
AROUND = ("Menu entry 3", "Side story 4", "Related stories", "Imprint of")


def markdown(html: str, form: str = "markdown") -> str:
    page = read(RawPage(html.encode(), "text/html; charset=utf-8", "http://site/page", form, max_whole=2**30))
    return page.text or ""


def site(content: str, head: str = "") -> str:
    """Return a page of a site: content between a menu, a column and a footer."""
    return f"<!doctype html><title>T</title>{head}<body>{MENU}<div id=wrap><div id=main>{content}</div>{SIDE}</div>{FOOT}</body>"  # noqa: E501


def test_the_story_stays_and_what_is_around_it_goes() -> None:
    text = markdown(site(f"<h1>The log</h1>{STORY}"))
    assert text.startswith("# The log")
    assert text.count("writes down") == 24
    assert [words for words in AROUND if words in text] == []


CODE = "rule: this | that\n" + "name: STRING other\n" * 200
HEADING = "<h1>The log of the tower</h1>"
BEGINNINGS = {
    "a short introduction before one long section": f"<div>{HEADING}<p>Never do this at sea.</p><div>{STORY}</div></div>",  # noqa: E501
    "a short section, then a long one": f"<section>{HEADING}<section><h2>Upgrade</h2><p>Never do this at sea.</p></section><section><h2>Log</h2>{STORY}</section></section>",  # noqa: E501
    "a heading in a header beside the content": f"<div id=header>{HEADING}<h2>NAME</h2><div class=sectionbody><p>log - Never do this at sea</p></div></div><div id=content>{STORY}</div>",  # noqa: E501
    "a listing explained above it": f"{HEADING}<p>Never do this at sea.</p><div class=highlight><pre>{CODE}</pre></div>",  # noqa: E501
    "an introduction named as one": f"<article>{HEADING}<p class=article-lead>Never do this at sea, says a keeper</p><div class=body>{STORY}</div></article>",  # noqa: E501
    "a note behind a long section": f"<article>{HEADING}<div>{STORY}</div><p>Never do this at sea, says a note at the end.</p></article>",  # noqa: E501
}


@pytest.mark.parametrize("content", BEGINNINGS.values(), ids=BEGINNINGS.keys())
@pytest.mark.parametrize("wrapped", [True, False], ids=["in a site", "alone"])
def test_the_beginning_and_the_end_of_the_content_stay(content: str, wrapped: bool) -> None:
    text = markdown(site(content) if wrapped else f"<!doctype html><title>T</title><body>{content}</body>")
    assert "# The log of the tower" in text
    assert "Never do this at sea" in text
    assert [words for words in AROUND if words in text] == []


def test_each_heading_of_the_content_stays() -> None:
    sections = "".join(f"<h2>Part {n}</h2>{STORY[:600]}</p><h3>Detail {n}</h3>{STORY[:600]}</p>" for n in range(5))
    text = markdown(site(f"<h1>All</h1>{sections}"))
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# All",
        *(line for n in range(5) for line in (f"## Part {n}", f"### Detail {n}")),
    ]


def test_two_equal_paragraphs_both_stay() -> None:
    paragraph = f"<p>{SENTENCE.format(1) * 4}</p>"
    assert markdown(site(f"<h1>Twice</h1>{paragraph}{paragraph}")).count("writes down") == 8


MANUAL = "".join(
    f"<dt><code>--option-{n}</code></dt><dd><p>Set it to <kbd>{n}</kbd>.</p><pre>tool --option-{n}\n  {n}</pre></dd>"
    for n in range(30)
)


@pytest.mark.parametrize("head", ["<meta name=generator content='DocBook XSL Stylesheets'>", ""])
def test_a_manual_is_whole_but_for_its_menus(head: str) -> None:
    text = markdown(site(f"<h1>tool(1)</h1><h2>NAME</h2><p>tool - do it</p><h2>OPTIONS</h2><dl>{MANUAL}</dl>", head))
    for words in ("tool(1)", "tool - do it", "OPTIONS", *(f"tool --option-{n}\n  {n}" for n in range(30))):
        assert words in text
    assert "Menu entry 3" not in text
    assert "Imprint of" not in text


def test_a_table_of_data_and_a_list_stay_whole() -> None:
    rows = "".join(f"<tr><td>{n}</td><td>ship {n}</td><td>{n * n} t</td></tr>" for n in range(40))
    items = "".join(f"<li>port {n}</li>" for n in range(30))
    text = markdown(site(f"<h1>Ships</h1>{STORY}<table><tr><th>no<th>name<th>load</tr>{rows}</table><ul>{items}</ul>"))
    assert [n for n in range(40) if f"ship {n} " not in text] == []
    assert [n for n in range(30) if f"port {n}\n" not in text + "\n"] == []


def test_a_list_of_links_beside_the_content_goes_and_links_in_it_stay() -> None:
    linked = STORY.replace("each ship", "<a href=/ship>each ship</a>")
    text = markdown(site(f"<h1>Links</h1>{linked}"))
    assert text.count("[each ship](http://site/ship)") == 24
    assert "Side story 4" not in text


LISTING = "".join(
    f"<div class=item><h3><a href=/{n}>Result number {n}</a></h3><p>What page {n} says of the lights.</p></div>"
    for n in range(20)
)
FORUM = "".join(
    f"<div class=post><div class=author>user{n}</div><div class=body>{SENTENCE.format(n)} I think so, too.</div></div>"
    for n in range(15)
)
LANGUAGES = {
    "Chinese": "灯塔的看守人每天晚上记录经过的每一艘船，以及它的航向和速度。" * 3,
    "Japanese": "灯台守は毎晩、通り過ぎるすべての船とその針路を書き留めています。" * 3,
    "Arabic": "يسجل حارس المنارة كل سفينة تمر بالبرج ليلا، ويكتب مسارها وسرعتها. " * 3,
    "Hebrew": "שומר המגדלור רושם כל ספינה שעוברת ליד המגדל בלילה, ואת מסלולה. " * 3,
    "Thai": "ผู้ดูแลประภาคารบันทึกเรือทุกลำที่ผ่านหอคอยในเวลากลางคืน และเส้นทางของมัน " * 3,
}


def test_a_page_of_results_has_each_result() -> None:
    text = markdown(site(f"<h1>Results</h1>{LISTING}"))
    assert [n for n in range(20) if f"Result number {n}]" not in text or f"What page {n} says" not in text] == []


def test_a_thread_has_each_post() -> None:
    text = markdown(site(f"<h1>Which light?</h1>{FORUM}"))
    assert [n for n in range(15) if f"number {n} writes" not in text] == []


@pytest.mark.parametrize("sentence", LANGUAGES.values(), ids=LANGUAGES.keys())
def test_a_language_without_spaces_or_from_right_to_left_is_read(sentence: str) -> None:
    paragraphs = "".join(f"<p>{n} {sentence}</p>" for n in range(8))
    text = markdown(site(f"<h1>{sentence[:8]}</h1>{paragraphs}"))
    assert text.count(sentence.strip()) == 8
    assert [words for words in AROUND if words in text] == []


SHORT = {
    "one word": ("<body>Maintenance", ["Maintenance"]),
    "one sentence": (f"<body>{MENU}<p>We are closed today.</p>", ["We are closed today."]),
    "a heading": ("<body><h1>404</h1>", ["404"]),
    "a picture and a paragraph": (
        "<body><img src=/tower.png alt='The tower'><p>The tower in the year it was built.</p>",
        ["![The tower](http://site/tower.png)", "in the year"],
    ),
    "a picture alone": ("<body><img src=/tower.png alt='The tower'>", ["The tower"]),
    "links alone": ("<body><ul><li><a href=/a>Alpha</a><li><a href=/b>Beta</a></ul>", ["Alpha", "Beta"]),
    "cells alone": ("<body><table><tr><td>1<td>2</table>", ["1", "2"]),
}


@pytest.mark.parametrize(("html", "present"), SHORT.values(), ids=SHORT.keys())
def test_a_page_with_little_text_shows_it(html: str, present: list[str]) -> None:
    text = markdown(f"<!doctype html><title>T</title>{html}")
    assert [words for words in present if words not in text] == []


def test_text_beside_blocks_is_content_and_words_do_not_meet_where_something_goes() -> None:
    text = markdown(
        site(f"<h1>Runs</h1><div>First words.<div class=share-bar><a href=/x>Share</a></div>Last words.{STORY}</div>")
    )
    assert "First words.Last" not in text
    assert "First words." in text
    assert "Last words." in text


def test_a_picture_in_the_content_stays_and_one_in_a_menu_goes() -> None:
    text = markdown(
        f"<body><nav><img src=/logo.png alt=Logo></nav><h1>P</h1>{STORY}<div><img src=/a.png alt=Light></div>{STORY}"
    )
    assert "![Light](http://site/a.png)" in text
    assert "logo.png" not in text


def test_text_has_the_same_content_as_markdown() -> None:
    text = markdown(site(f"<h1>The log</h1>{STORY}"), "text")
    assert text.count("writes down") == 24
    assert [words for words in AROUND if words in text] == []


KINDS: dict[str, tuple[str, list[str], list[str]]] = {
    "an element around the page named for its layout": (
        f"<div class='site has-sidebar'><h1>A</h1><p>Short.</p>{STORY}</div>",
        ["# A", "Short."],
        [],
    ),
    "a page in a form": (f"<form>{MENU}<h1>A</h1>{STORY}</form>", ["# A", "number 3"], ["Menu entry 3"]),
    "lines with breaks": ("<h1>Poem</h1>" + "Line one of it<br>Line two of it<br>" * 20, ["# Poem", "Line two"], []),
    "a list of changes": (
        site("<h1>Changes</h1>" + "".join(f"<h2>1.{n}</h2><ul><li>Fix {n} of it.<li>Add {n}</ul>" for n in range(20))),
        ["## 1.19", *(f"Fix {n} of it" for n in range(20)), *(f"Add {n}" for n in range(20))],
        ["Side story 4"],
    ),
    "a file of code": (
        site(f"<h1>run.py</h1><pre>{CODE}</pre>"),
        ["# run.py", "rule: this | that\nname: STRING other\n"],
        ["Menu entry 3"],
    ),
    "a title of the second level": (site(f"<h2>My post</h2><div class=meta>3 May</div>{STORY}"), ["## My post"], []),
    "a title in a header": (
        f"<header class=site-header>{MENU}</header><article><header><h1>My post</h1>"
        f"<p class=subtitle>What it is about, in short</p></header>{STORY}</article>{FOOT}",
        ["# My post", "What it is about"],
        ["Menu entry 3"],
    ),
    "a warning before one long section": (
        f"<div><h1>A</h1><div class=warning><h3>Warning</h3><p>Not in production.</p></div><div>{STORY}</div></div>",
        ["Not in production", "Warning"],
        [],
    ),
    "a note in a column of its own": (
        f"<article><h1>A</h1>{STORY}<aside class=note><p>Mind the step.</p></aside>{STORY}</article>",
        ["Mind the step"],
        [],
    ),
    "a note at the end": (f"<article><div>{STORY}</div><div class=note>See also.</div></article>", ["See also."], []),
    "footnotes": (f"<article>{STORY}<ol class=footnotes><li>First note of it.</ol></article>", ["First note"], []),
    "a picture with a caption": (
        f"<article>{STORY}<figure><img src=/a.png alt=L><figcaption>By Ada.</figcaption></figure>{STORY}</article>",
        ["![L](http://site/a.png)"],
        [],
    ),
    "short descriptions of functions": (
        site("<h1>Lamp</h1><p>A lamp.</p>" + "".join(f"<h3>lamp.f{n}(x)</h3><p>Do {n}.</p>" for n in range(30))),
        ["A lamp.", *(f"lamp.f{n}(x)" for n in range(30)), *(f"Do {n}." for n in range(30))],
        ["Side story 4"],
    ),
    "code in a column, and of links alone": (
        f"<h1>A</h1>{STORY}<aside class=sidebar><pre>turn(90)</pre></aside>{STORY}<h5>pid</h5>"
        "<pre><a href=/Pid.html>OtpErlangPid</a> pid</pre>",
        ["turn(90)", "OtpErlangPid pid"],
        [],
    ),
    "a glossary": (
        site("<h1>Words</h1><dl>" + "".join(f"<dt>Term{n}</dt><dd>What {n} is.</dd>" for n in range(30)) + "</dl>"),
        [*(f"Term{n}" for n in range(30)), *(f"What {n} is." for n in range(30))],
        [],
    ),
    "an index of links": (
        site(
            "<h1>Terms</h1><ul>" + "".join(f"<li><a href=/t{n}>Term number {n}</a></li>" for n in range(60)) + "</ul>"
        ),
        [f"Term number {n}]" for n in range(60)],
        [],
    ),
    "short sections of a law": (
        site("<h1>Terms</h1>" + "".join(f"<h2>\u00a7 {n}</h2><p>Rule {n}.</p>" for n in range(20))),
        [*(f"\u00a7 {n}" for n in range(20)), *(f"Rule {n}." for n in range(20))],
        [],
    ),
    "a recipe": (
        site(
            "<h1>Cake</h1><h2>You need</h2><ul><li>200 g flour<li>2 eggs</ul><h2>Steps</h2><ol><li>Mix.<li>Bake.</ol>"
        ),
        ["200 g flour", "2 eggs", "Mix.", "Bake.", "You need"],
        ["Side story 4"],
    ),
    "a question and its answers": (
        "<div id=question><h1>Why?</h1><p>My light does not turn, why?</p></div><div id=answers>"
        f"<div class=answer><p>Oil it. {SENTENCE}</p></div><div class=answer><p>Or wait some days.</p></div></div>",
        ["does not turn", "Oil it", "Or wait"],
        [],
    ),
    "a banner on cookies": (
        f"<div id=cookie-banner><p>We use cookies to make this site better. Accept?</p></div><h1>A</h1>{STORY}",
        ["# A"],
        ["We use cookies"],
    ),
    "facts beside an article": (
        f"<h1>Lamp</h1><table class=infobox><tr><th>Built<td>1901</tr><tr><th>Tall<td>30 m</tr></table>{STORY}",
        ["1901", "30 m"],
        [],
    ),
}


@pytest.mark.parametrize(("html", "present", "absent"), KINDS.values(), ids=KINDS.keys())
def test_each_kind_of_page_is_whole(html: str, present: list[str], absent: list[str]) -> None:
    text = markdown(html if html.startswith("<!") else f"<!doctype html><title>T</title><body>{html}</body>")
    assert [words for words in present if words not in text] == []
    assert [words for words in absent if words in text] == []


HOSTILE = {
    "runs": lambda n: "<div>" + "word<p>sentence of some words, and more.</p>" * n + "</div>",
    "links": lambda n: "<ul>" + "<li><a href=/x>a link of some words</a></li>" * n + "</ul>",
    "menus between texts": lambda n: "<div>" + "A text of many words, too.<nav>m</nav>" * n + "</div>",
    "cells": lambda n: "<table>" + "<tr><td>one cell<td>two</tr>" * n + "</table>",
    "nested lists": lambda n: "<ul><li>a word or two, or more" * n,
    "names": lambda n: f"<p class='{'share-bar ' * 90}'>text, text and text</p>" * n,
    "headings": lambda n: "<h2>A heading of words</h2>" * n,
    "one paragraph": lambda n: "<p>" + "Words, and more words of a text. " * n,
    "pre in pre": lambda n: "<pre>code " * n,
    "words that differ": lambda n: "".join(f"<p>Line {x} of {x * 7919} and {x * x} ships.</p>" for x in range(n)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_choice_takes_steps_in_proportion_to_the_page(kind: str) -> None:
    prepare()
    build = HOSTILE[kind]
    few, many = _count_steps(build(100)), _count_steps(build(400))
    assert many < 6 * few, (few, many)


def _count_steps(html: str) -> int:
    """Return the calls of the choice's own functions, which no other load of the machine changes."""
    steps = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal steps
        steps += event == "call" and "/web/content/" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        read(RawPage(f"<body>{html}".encode(), "text/html", "http://site/", "markdown"))
    finally:
        sys.setprofile(None)
    return steps


def test_a_page_of_more_elements_than_the_votes_read_loses_its_menus_alone() -> None:
    paragraphs = "".join(f"<p>Paragraph {number} of a <b>long</b> page.</p>" for number in range(15_500))
    text = markdown(site(f"<h1>Long</h1>{paragraphs}"))
    assert text.startswith("# Long")
    assert text.count("Paragraph ") == 15_500
    assert [words for words in AROUND if words in text] == []
