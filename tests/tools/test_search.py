"""WebSearch against stand-ins for the engines on loopback: fast, slow, blocking, broken and empty ones."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.tools.calling import call, text
from tests.tools.site import Answer, Request, Site, never, redirect, site
from toolgate.tools.content import Output
from toolgate.tools.context import Settings
from toolgate.tools.search import verify, web_search
from toolgate.tools.search.engine import Found, Pick
from toolgate.tools.search.engines import ENGINES
from toolgate.tools.search.fusion import Hit, Result, fused, page_key
from toolgate.tools.web import Web


def answered(body: Any, status: int = 200, kind: str = "application/json") -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return status, {"content-type": kind}, data


def search(
    answers: Mapping[str, Answer],
    query: str = "frobs",
    engines: Callable[[Site], Sequence[str]] | None = None,
    after: Callable[[Site], None] = lambda _: None,
    **settings: Any,
) -> Output:
    """Search with the engines that `answers` has a stand-in for, each at the path that is its name."""

    async def scenario() -> Output:
        async with site({f"/{name}": answer for name, answer in answers.items()}) as place:
            chosen = engines(place) if engines else [f"{name}={place.url('/' + name)}" for name in answers]
            web = Web(["127.0.0.1"])
            try:
                given = Settings(**{"engines": chosen, "search_deadline": 5.0, **settings})
                output = await call(web_search, {"query": query}, web=web, settings=given)
                after(place)
                return output
            finally:
                await web.close()

    return asyncio.run(scenario())


def table(output: Output) -> dict[str, tuple[str, int]]:
    return {row["name"]: (row["status"], row["count"]) for row in output.structured["engines"]}


def hn(*urls: str) -> Answer:
    return answered({"hits": [{"title": f"Story of {url}", "url": url, "story_text": ""} for url in urls]})


def github(*urls: str) -> Answer:
    return answered(
        {"items": [{"full_name": f"code/{url}", "html_url": url, "description": "code of it"} for url in urls]}
    )


DUCKDUCKGO = b"""<html><body><div id="links" class="results">
<div class="result results_links result--ad"><h2><a class="result__a" href="https://duckduckgo.com/y.js?ad=1">Ad</a></h2></div>
<div class="result results_links web-result"><h2><a rel="nofollow" class="result__a"
 href="//duckduckgo.com/l/?uddg=https%3A%2F%2Ffrobs.example%2Fguide%3Fa%3D1&amp;rut=x">The <b>frob</b> guide</a></h2>
 <a class="result__snippet" href="x">All about &amp; <b>frobs</b></a></div>
<div class="result web-result"><h2><a class="result__a" href="https://direct.example/">Direct</a></h2></div>
</div></body></html>"""

ARXIV = b"""<?xml version="1.0" encoding="UTF-8"?><feed xmlns="http://www.w3.org/2005/Atom"><title>query</title>
<entry><id>http://arxiv.org/abs/1234.5678v1</id><title>On
 frobs</title><summary> We study
 frobs. </summary></entry></feed>"""

# What each engine of the table says in its own interface, and what is to be made of it.
SAMPLES: dict[str, tuple[Answer, list[tuple[str, str, str]]]] = {
    "duckduckgo": (
        answered(DUCKDUCKGO, kind="text/html"),
        [
            ("The frob guide", "https://frobs.example/guide?a=1", "All about & frobs"),
            ("Direct", "https://direct.example/", ""),
        ],
    ),
    "marginalia": (
        answered({"results": [{"url": "https://m.example/x", "title": "T", "description": "D"}]}),
        [("T", "https://m.example/x", "D")],
    ),
    "mwmbl": (
        answered(
            [
                {
                    "url": "https://w.example/",
                    "title": [{"value": "All ", "is_bold": False}, {"value": "frobs", "is_bold": True}],
                    "extract": [{"value": "They are "}, {"value": "frobs"}],
                }
            ]
        ),
        [("All frobs", "https://w.example/", "They are frobs")],
    ),
    "wikipedia": (
        answered(
            {"pages": [{"key": "Frob_(é)", "title": "Frob", "excerpt": 'a <span class="searchmatch">frob</span>'}]}
        ),
        [("Frob", "https://en.wikipedia.org/wiki/Frob_%28%C3%A9%29", "a frob")],
    ),
    "stackexchange": (
        answered(
            {"items": [{"title": "Is 1 &lt; 2?", "link": "https://s.example/q/1", "body": "<p>Why\n<b>so</b></p>"}]}
        ),
        [("Is 1 < 2?", "https://s.example/q/1", "Why so")],
    ),
    "hackernews": (
        answered({"hits": [{"title": "Ask", "url": None, "objectID": "42", "story_text": "t"}]}),
        [("Ask", "https://news.ycombinator.com/item?id=42", "t")],
    ),
    "github": (
        answered({"items": [{"full_name": "a/b", "html_url": "https://github.com/a/b", "description": None}]}),
        [("a/b", "https://github.com/a/b", "")],
    ),
    "mdn": (
        answered({"documents": [{"title": "Frob", "mdn_url": "/en-US/docs/Web/Frob", "summary": "S"}]}),
        [("Frob", "https://developer.mozilla.org/en-US/docs/Web/Frob", "S")],
    ),
    "arxiv": (
        answered(ARXIV, kind="application/atom+xml"),
        [("On frobs", "http://arxiv.org/abs/1234.5678v1", "We study frobs.")],
    ),
    "crossref": (
        answered(
            {
                "message": {
                    "items": [
                        {"title": ["Frobs"], "URL": "https://doi.org/10.1/x", "abstract": "<jats:p>About.</jats:p>"}
                    ]
                }
            }
        ),
        [("Frobs", "https://doi.org/10.1/x", "About.")],
    ),
    "europepmc": (
        answered({"resultList": {"result": [{"title": "F", "pmid": "7", "authorString": "A B"}]}}),
        [("F", "https://europepmc.org/abstract/MED/7", "A B")],
    ),
}


@pytest.mark.parametrize("name", [engine.name for engine in ENGINES])
def test_every_engine_is_asked_and_read_in_its_own_interface(name: str) -> None:
    answer, expected = SAMPLES[name]
    asked: list[str] = []
    output = search({name: answer}, "frobs & é", after=lambda place: asked.append(place.requests[0].target))
    found = [(one["title"], one["url"], one["snippet"]) for one in output.structured["results"]]
    assert found == expected
    assert table(output) == {name: ("ok", len(expected))}
    assert any("frobs & é" in value for values in parse_qs(urlsplit(asked[0]).query).values() for value in values)


def test_all_engines_are_asked_at_once_and_each_is_in_the_table() -> None:
    output = search({name: answer for name, (answer, _) in SAMPLES.items()})
    assert list(table(output)) == [engine.name for engine in ENGINES]
    assert {status for status, _ in table(output).values()} == {"ok"}
    assert len(ENGINES) >= 11


def test_results_that_name_one_page_are_merged_and_ranked_by_both() -> None:
    output = search(
        {
            "hackernews": hn("http://only.example/hn", "https://www.both.example/a/?utm_source=x#top"),
            "github": github("http://both.example/a", "https://only.example/github"),
        }
    )
    assert not output.is_error
    assert output.structured["results"] == [
        {
            "title": "code/http://both.example/a",
            "url": "http://both.example/a",
            "snippet": "code of it",
            "engines": [{"name": "github", "rank": 1}, {"name": "hackernews", "rank": 2}],
            "score": round(1 / 61 + 1 / 62, 6),
        },
        {
            "title": "Story of http://only.example/hn",
            "url": "http://only.example/hn",
            "snippet": "",
            "engines": [{"name": "hackernews", "rank": 1}],
            "score": round(1 / 61, 6),
        },
        {
            "title": "code/https://only.example/github",
            "url": "https://only.example/github",
            "snippet": "code of it",
            "engines": [{"name": "github", "rank": 2}],
            "score": round(1 / 62, 6),
        },
    ]
    answer = text(output)
    assert (
        "1. code/http://both.example/a\n   http://both.example/a\n   code of it\n   [github #1, hackernews #2]"
        in answer
    )
    assert answer.splitlines()[-1].startswith("engines: hackernews ok 2 (")


def test_no_engine_holds_up_or_hides_the_others() -> None:
    start = time.monotonic()
    output = search(
        {
            "hackernews": hn("https://fast.example/"),
            "github": never,
            "marginalia": answered({"error": "slow down"}, 429),
            "wikipedia": answered(b"<html>Please solve this CAPTCHA", kind="text/html"),
            "stackexchange": answered(b'{"items": [', 200),
            "mdn": answered({"documents": []}),
            "crossref": answered({"no": "items"}),
            "mwmbl": answered("boom", 500),
            "arxiv": answered(b"<!DOCTYPE x [<!ENTITY a 'b'>]>" + ARXIV),
            "duckduckgo": answered(b"<html><div class='anomaly-modal'>", 202, "text/html"),
            "europepmc": answered({"error_name": "throttle_violation"}, 400),
        },
        search_deadline=1.0,
    )
    assert time.monotonic() - start < 10  # and not the sum of anything
    assert not output.is_error
    assert [one["url"] for one in output.structured["results"]] == ["https://fast.example/"]
    assert table(output) == {
        "hackernews": ("ok", 1),
        "github": ("timeout", 0),
        "marginalia": ("blocked", 0),
        "wikipedia": ("blocked", 0),
        "stackexchange": ("error", 0),
        "mdn": ("empty", 0),
        "crossref": ("error", 0),
        "mwmbl": ("error", 0),
        "arxiv": ("error", 0),
        "duckduckgo": ("blocked", 0),
        "europepmc": ("blocked", 0),
    }
    assert all(row["ms"] >= 0 for row in output.structured["engines"])


def test_when_no_engine_answers_it_is_an_error_with_the_table() -> None:
    output = search({"github": answered("x", 500), "hackernews": never}, search_deadline=0.4)
    assert output.is_error
    assert table(output) == {"github": ("error", 0), "hackernews": ("timeout", 0)}
    assert output.structured["results"] == []
    assert "no engine answered" in text(output)
    assert "github error 0" in text(output)


def test_nothing_found_is_not_an_error() -> None:
    output = search({"github": github(), "hackernews": hn()})
    assert not output.is_error
    assert "no results" in text(output)
    assert table(output) == {"github": ("empty", 0), "hackernews": ("empty", 0)}
    output = search({"github": github(), "hackernews": answered("x", 503)})
    assert not output.is_error


def test_an_engine_may_not_lead_to_a_private_address() -> None:
    output = search({"github": redirect("http://127.0.0.2:1/"), "hackernews": hn("https://a.example/")})
    assert table(output) == {"github": ("error", 0), "hackernews": ("ok", 1)}


def test_what_engines_say_is_made_plain() -> None:
    long = "word " * 500
    output = search(
        {
            "github": answered(
                {
                    "items": [
                        {
                            "full_name": "<b>bold</b> &amp; \x1b[31mred\x00\n  line",
                            "html_url": "https://a.example/",
                            "description": f"<script>alert(1)</script>{long}",
                        },
                        {"full_name": "js", "html_url": "javascript:alert(1)", "description": ""},
                        {"full_name": "file", "html_url": "file:///etc/passwd", "description": ""},
                        {"full_name": "user", "html_url": "https://a:b@c.example/", "description": ""},
                        {"full_name": "control", "html_url": "https://c.example/\x1b[2J", "description": ""},
                        {"full_name": "long", "html_url": "https://c.example/" + "x" * 5000, "description": ""},
                        {"full_name": 7, "html_url": ["https://list.example/"], "description": {"a": 1}},
                        "not an object",
                        None,
                    ]
                }
            )
        }
    )
    results = output.structured["results"]
    assert [(one["title"], one["url"]) for one in results] == [
        ("bold & [31mred line", "https://a.example/"),
        ("7", "https://list.example/"),
    ]
    assert len(results[0]["snippet"]) <= 300
    assert "<script" not in results[0]["snippet"]
    assert table(output) == {"github": ("ok", 2)}
    output = search(
        {"github": github("javascript:alert(1)", ""), "hackernews": hn("https://a.example/", "http://a.example")}
    )
    assert table(output) == {"github": ("empty", 0), "hackernews": ("ok", 1)}


def test_the_query_is_trimmed_bounded_and_not_empty() -> None:
    seen: list[str] = []
    search({"github": github()}, "  two\n\twords\x00 ", after=lambda place: seen.append(place.requests[0].target))
    assert parse_qs(urlsplit(seen[0]).query)["q"] == ["two words"]
    for query in ("", "  \n", "\x00", "x" * 401):
        output = search({"github": github()}, query)
        assert output.is_error
        assert output.structured is None


def test_an_unknown_engine_is_named_with_the_known_ones() -> None:
    output = search({}, engines=lambda _: ["altavista"])
    assert output.is_error
    assert "altavista" in text(output)
    for engine in ENGINES:
        assert engine.name in text(output)


def test_entries_for_engines_can_be_verified_at_the_start() -> None:
    verify([])
    verify(["github", " HackerNews ", "mdn=http://127.0.0.1:1/x"])
    for entry, told in (("altavista", "unknown search engine 'altavista'"), ("mdn=ftp://x/", "http or https")):
        with pytest.raises(ValueError, match=told):
            verify(["github", entry])


def test_a_cancelled_search_cancels_its_engines() -> None:
    async def scenario() -> None:
        asked = [asyncio.Event(), asyncio.Event()]

        def held(event: asyncio.Event) -> Answer:
            async def page(request: Request) -> None:
                event.set()
                await never(request)

            return page

        async with site({"/github": held(asked[0]), "/hackernews": held(asked[1])}) as place:
            web = Web(["127.0.0.1"])
            settings = Settings(engines=[f"github={place.url('/github')}", f"hackernews={place.url('/hackernews')}"])
            task = asyncio.ensure_future(call(web_search, {"query": "x"}, web=web, settings=settings))
            async with asyncio.timeout(10):
                await asyncio.gather(*(event.wait() for event in asked))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not [other for other in asyncio.all_tasks() if "_ask" in repr(other)]
            await web.close()

    asyncio.run(scenario())


SAME = [
    ("http://example.org", "https://example.org/"),
    ("https://www.example.org/a/", "http://example.org:80/a"),
    ("https://m.example.org/a", "https://EXAMPLE.org:443/a#part"),
    ("https://example.org/a?utm_source=x&b=1&UTM_medium=y", "https://example.org/a?b=1"),
    ("https://example.org/a?gclid=1&fbclid=2", "https://example.org/a"),
    ("https://example.org/%7Eme", "https://example.org/~me"),
]
OTHER = [
    ("https://example.org/a?b=1&c=2", "https://example.org/a?c=2&b=1"),
    ("https://example.org/a", "https://example.org/A"),
    ("https://example.org:8443/", "https://example.org/"),
    ("https://en.example.org/", "https://example.org/"),
    ("https://www.org/", "https://m.org/"),
]


@pytest.mark.parametrize(("one", "two"), SAME)
def test_two_spellings_of_one_page_are_one(one: str, two: str) -> None:
    assert page_key(one) == page_key(two) is not None


@pytest.mark.parametrize(("one", "two"), OTHER)
def test_two_pages_are_two(one: str, two: str) -> None:
    assert page_key(one) != page_key(two)


@pytest.mark.parametrize("url", ["", "x", "ftp://a.example/", "http://", "http://[::1/", "http://a:b/", "http://a b/"])
def test_what_is_no_web_page_has_no_key(url: str) -> None:
    assert page_key(url) is None


def test_an_engine_that_names_a_page_twice_counts_once() -> None:
    found = [
        Found("A", "http://a.example/", ""),
        Found("A", "http://a.example", ""),
        Found("B", "http://b.example/", ""),
    ]
    assert fused([("one", found)]) == [
        Result("A", "http://a.example/", "", [Hit("one", 1)], round(1 / 61, 6)),
        Result("B", "http://b.example/", "", [Hit("one", 3)], round(1 / 63, 6)),
    ]


def test_at_most_twenty_results_are_given() -> None:
    found = [Found("x", f"https://x{n}.example/", "") for n in range(30)]
    assert len(fused([("one", found), ("two", found[::-1])])) == 20


def test_a_pick_says_where_it_found_no_list() -> None:
    with pytest.raises(ValueError, match=r"a\.b"):
        Pick("a.b", "title", ("url",))(b'{"a": {"b": {}}}')


def test_what_the_model_is_told_is_small_and_true() -> None:
    assert len(web_search.description) < 450
    assert web_search.input["required"] == ["query"]
    hints = web_search.annotations
    assert (hints.read_only, hints.destructive, hints.idempotent, hints.open_world) == (True, False, True, True)
    assert web_search.scope == "tools:web"
