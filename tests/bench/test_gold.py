"""The gold bench reads its sets, compares answers with them, and says what it left out."""

import json
from pathlib import Path

import pytest

from tests.bench.gold import measure, sets
from tests.bench.gold.measure import GoldFolders
from tests.bench.gold.readers import READABILITY
from tests.bench.gold.report import report
from tests.bench.gold.scores import Share, compare_article, compare_manual, compare_strings
from tests.bench.gold.sets import ArticlePage, ManualPage, StringsPage
from tests.bench.gold.text import element_text, markdown_text

STORY = "".join(
    f"<p>The keeper of light {n} writes down each ship that passes his tower at night.</p>" for n in range(9)
)
PAGE = (
    f"<!doctype html><title>T</title><body><nav><a href=/>Home of all</a></nav><main><h1>Log</h1>{STORY}</main></body>"
)
CODE = "<pre>a = 1\n\nb = 2</pre>"


def test_an_article_is_compared_by_runs_of_four_words() -> None:
    page = ArticlePage("a", b"", "one two three four five")
    assert compare_article(page, "One two three four five.").f1 == 1
    half = compare_article(page, "one two three four")
    assert (half.recall, half.precision) == (0.5, 1)
    assert compare_article(page, "").f1 == 0


def test_strings_are_found_whatever_the_white_space_is() -> None:
    page = StringsPage("a", b"", ("the keeper", "no such"), ("Home",))
    assert compare_strings(page, "the\n keeper, at Home") == (Share(1, 2), Share(1, 1))


def test_the_parts_of_a_manual_are_compared_by_letters_and_lines() -> None:
    page = ManualPage(
        "a", b"", ("a = 1\n\nb = 2", "lost"), ("a cell",), ("A paragraph.",), ("NAME",), ("Next: options",)
    )
    text = "NAME\nA  paragraph. a - cell\na=1\nb=2\n Next: options"
    scores = {part: str(share) for part, share in compare_manual(page, text).items()}
    assert scores == {"pre": "1/2", "cells": "1/1", "paragraphs": "1/1", "beginnings": "1/1", "around": "1/1"}


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("# A [link](/a_(b) \"t\") and ![a picture](/p.png)", "A link and "),
        ("- **bold** _it_ snake_case", "bold it snake_case"),
        ("[![p](/p.png) says](/a)", " says"),
        ("a \\* b &lt; c<br>d", "a * b < c d"),
        ("```python\nx = 1\n```", "\nx = 1\n"),
    ],
)  # fmt: skip
def test_the_syntax_of_markdown_does_not_count(markdown: str, text: str) -> None:
    assert markdown_text(markdown) == text


def test_blocks_are_lines_and_scripts_are_no_text() -> None:
    tree = sets.parse(b"<body>a<p>b <b>c</b></p>d<script>x</script>e<br>f</body>")
    assert [line for line in element_text(tree).splitlines() if line] == ["a", "b c", "de", "f"]


def test_every_set_is_read_and_reported_beside_the_peers(tmp_path: Path) -> None:
    article = tmp_path / "readability" / "test" / "test-pages" / "log"
    cache = tmp_path / "trafilatura" / "tests" / "cache"
    manual = tmp_path / "manuals" / "usr" / "share" / "doc" / "git-doc"
    for folder in (article, cache, manual):
        folder.mkdir(parents=True)
    (article / "source.html").write_text(PAGE)
    (article / "expected.html").write_text(f"<div><h1>Log</h1>{STORY}</div>")
    (cache / "log.html").write_text(PAGE)
    row = {"file": "log.html", "with": ["keeper of light 3"], "without": ["Home of all"]}
    (cache.parent / "evaldata.json").write_text(json.dumps({"http://site.example/": row}))
    footer = "<div id=footer><a href=/>Last updated today</a></div>"
    (manual / "git-log.html").write_text(f"<body><h1>git-log(1)</h1>{STORY * 10}{CODE}{footer}</body>")
    folders = GoldFolders(tmp_path / "readability", tmp_path / "trafilatura", tmp_path / "manuals")
    figures = measure.measure(folders, 1, lambda _: None)
    (ours,) = figures.readings["articles"]["Toolgate"]
    assert ours.overlap.recall > 0.9
    (ours,) = figures.readings["strings"]["Toolgate"]
    assert (str(ours.wanted), str(ours.unwanted)) == ("1/1", "0/1")
    (ours,) = figures.readings["manuals"]["Toolgate"]
    assert (str(ours.parts["pre"]), ours.parts["paragraphs"]) == ("1/1", Share(90, 90))
    lines = report(figures).splitlines()
    assert [line.split(",")[0] for line in lines if line.endswith("1 pages")] == ["articles", "strings", "manuals"]
    assert sum(line.startswith("trafilatura ") for line in lines) == 3
    if READABILITY in figures.readings["articles"]:  # make peers installs it
        (peer,) = figures.readings["articles"][READABILITY]
        assert peer.overlap.recall > 0.9


def test_a_set_without_a_folder_or_without_a_page_is_said(tmp_path: Path) -> None:
    assert report(measure.measure(GoldFolders(manuals=tmp_path), 1, lambda _: None)).splitlines() == [
        "left out: articles: --readability names no folder of github.com/mozilla/readability",
        "left out: strings: --trafilatura names no folder of github.com/adbar/trafilatura",
        f"left out: manuals: no page in {tmp_path}",
    ]
