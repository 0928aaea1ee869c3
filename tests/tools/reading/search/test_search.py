"""WebSearch, and each engine in its own format, against fakes on loopback: the reported outcome of each answer."""

import asyncio
import functools
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.tools.engines import answers as shapes
from tests.tools.engines.fake_engines import KEYS, FakeEngines, street, table
from tests.tools.fake_web_site import Answer, Request, never, redirect
from tests.tools.tool_calls import text
from toolgate.tools.api.content import Output
from toolgate.tools.api.text.cleaning import strip_markup
from toolgate.tools.reading.search.engines import ENGINES, choose_engines
from toolgate.tools.reading.search.json_engine import JsonPaths
from toolgate.tools.reading.search.outcome import EngineResult
from toolgate.tools.reading.search.tool import EngineRank, SearchResult, fuse_rankings, web_search

NAMES = tuple(engine.name for engine in ENGINES)
PAGES = ("duckduckgo", "brave", "mojeek", "startpage", "yahoo")  # made for people
GUIDE, PLAIN = shapes.RESULTS
OWN_URLS = {  # engines whose results lie on their own site
    "mdn": ["https://developer.mozilla.org/en-US/docs/Web/Frob"],  # the fake names one page twice
    "wikipedia": ["https://en.wikipedia.org/wiki/guide%3Fa%3D1%26b%3D%252Fx", "https://en.wikipedia.org/wiki/Frob"],
    "europepmc": ["https://europepmc.org/abstract/MED/0", "https://europepmc.org/abstract/MED/1"],
}


def answered(body: Any, status: int = 200, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"content-type": "application/json", **given}, data


def search(answers: Mapping[str, Answer], query: str = "frobs", seconds: Mapping[str, float] | None = None) -> Output:
    async def scenario() -> Output:
        async with street(answers, seconds=seconds) as place:
            return await place.find(query)

    return asyncio.run(scenario())


def hn(*urls: str) -> Answer:
    return answered({"hits": [{"title": f"Story of {url}", "url": url, "story_text": ""} for url in urls]})


def github(*urls: str) -> Answer:
    return answered(
        {"items": [{"full_name": f"code/{url}", "html_url": url, "description": "code of it"} for url in urls]}
    )


@functools.cache
def everyone() -> tuple[Output, list[Request]]:
    """Query all engines at once; return the output and their requests."""

    async def scenario() -> tuple[Output, list[Request]]:
        async with street(
            {name: shapes.with_results(name) for name in NAMES}, contact="https://me.example/bot"
        ) as all_:
            return await all_.find("frobs & é"), all_.site.requests

    return asyncio.run(scenario())


@pytest.mark.parametrize("name", NAMES)
def test_every_engine_is_asked_and_read_in_its_own_format(name: str) -> None:
    output, requests = everyone()
    found = {hit["rank"]: one for one in output.structured["results"] for hit in one["engines"] if hit["name"] == name}
    urls = OWN_URLS.get(name, [GUIDE[1], PLAIN[1]])
    assert [found[rank]["url"] for rank in sorted(found)] == urls
    assert (found[1]["title"], found[1]["snippet"]) == (GUIDE[0], GUIDE[2])
    assert table(output)[name] == ("ok", len(urls))
    (request,) = (one for one in requests if one.path in (f"/{name}", f"/{name}/search"))
    asked = parse_qs(urlsplit(request.target).query) or _body(request)
    assert any("frobs & é" in value for values in asked.values() for value in values)
    assert request.headers["user-agent"] == "Mozilla/5.0 (compatible; toolgate; +https://me.example/bot)"
    assert [name for name in KEYS if f"key-of-{name}" in str(request.headers)] == ([name] if name in KEYS else [])


def _body(request: Request) -> dict[str, list[str]]:
    if "json" in request.headers["content-type"]:
        return {name: [str(value)] for name, value in json.loads(request.body).items()}
    return parse_qs(request.body.decode())


def test_startpage_is_asked_with_the_token_of_its_own_page() -> None:
    _, requests = everyone()
    (request,) = (one for one in requests if one.path == "/startpage")
    assert _body(request)["sc"] == ["SeCreT1"]


def test_eleven_engines_are_asked_without_a_key() -> None:
    names = [engine.name for engine in choose_engines()]
    assert names == list(NAMES[:11]) == list(dict.fromkeys(names))
    assert set(PAGES) <= set(names)


async def dripping(request: Request) -> None:
    await request.send(200, {"content-type": "text/html"})
    for _ in range(400):
        request.writer.write(b" ")
        await request.writer.drain()
        await asyncio.sleep(0.05)


BEHAVIOURS: dict[str, tuple[Answer | None, str, str]] = {  # a behaviour of all engines, its status, and its reason
    "nothing": (None, "empty", "no results"),
    "slow": (never, "timeout", "no answer by the deadline"),
    "dripping": (dripping, "timeout", "no answer by the deadline"),
    "failing": (answered("boom", 500), "error", "HTTP 500"),
    "captcha": (None, "blocked", "it asks for proof of being human instead of giving results"),
    "refusing": (answered("slow down", 429, retry_after="60"), "blocked", "HTTP 429"),
    "forbidding": (answered("no", 403), "blocked", "HTTP 403"),
    "redirecting": (redirect("/sorry/index?continue=x"), "blocked", "HTTP"),
    "malformed": (answered(b'{"items": [{"title": "<div <<'), "error", "read"),
    "nonsense": (answered({"no": [1]}), "error", "read"),
    "empty": (answered(b""), "error", "read"),
    "huge": (answered(b"[" * 3 * 2**20), "error", "too large"),
    "deep": (answered(b"[" * 100_000), "error", "read"),
}


@pytest.mark.brief("nothing", "dripping", "captcha", "refusing", "malformed", "huge")
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_each_behaviour_of_an_engine_has_its_status(behaviour: str) -> None:
    answer, status, why = BEHAVIOURS[behaviour]
    of = {"nothing": shapes.without, "captcha": shapes.refusing}.get(behaviour, lambda _: answer)
    names = [name for name in NAMES if behaviour != "nonsense" or name not in ("brave-api", "serper")]

    async def scenario() -> Output:
        async with street(
            {name: of(name) for name in names}, deadline=1.0 if answer in (never, dripping) else 15.0
        ) as all_:
            all_.site.pages["/sorry/index"] = (200, {}, b"Please solve the CAPTCHA")
            return await all_.find()

    output = asyncio.run(scenario())
    assert table(output) == dict.fromkeys(names, (status, 0))
    assert output.is_error == (status != "empty")
    assert output.structured["results"] == []
    assert why in text(output)


def test_a_page_about_refusals_that_found_nothing_is_not_one() -> None:
    page = b"<html><body><p>No pages found matching: <b>captcha  Solver</b></p></body></html>"
    output = search({"mojeek": (200, {"content-type": "text/html"}, page)}, "captcha solver")
    assert table(output) == {"mojeek": ("empty", 0)}


def test_an_engine_that_has_changed_its_pages_does_not_look_like_one_without_results() -> None:
    output = search({"mojeek": shapes.page("<article><a href='https://a.example/'>A</a></article>")})
    assert table(output) == {"mojeek": ("error", 0)}
    assert "no results could be read from its page" in text(output)


def test_a_page_that_would_take_for_ever_to_read_costs_its_engine_alone() -> None:
    nested = "<div class='body'>" * 250 + "<h2>" + "&lt;" * 400_000 + "</h2>"
    output = search({"duckduckgo": shapes.page(nested), "mojeek": shapes.with_results("mojeek")})
    assert table(output)["mojeek"] == ("ok", 2)
    assert table(output)["duckduckgo"][0] in ("error", "timeout")


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
    told = "1. code/http://both.example/a\n   http://both.example/a\n   code of it\n   [github #1, hackernews #2]"
    assert told in text(output)
    assert text(output).splitlines()[-1].startswith("engines: hackernews ok 2 (")


def test_no_engine_holds_up_or_hides_the_others() -> None:
    output = search(
        {
            "hackernews": hn("https://fast.example/"),
            "github": never,
            "marginalia": answered({"error": "slow down"}, 429),
            "stackexchange": answered({"error_id": 502, "error_name": "throttle_violation"}, 400),
            "mdn": answered({"documents": []}),
            "crossref": answered({"no": "items"}),
            "arxiv": answered(b"<!DOCTYPE x [<!ENTITY a 'b'>]><feed/>"),
            "duckduckgo": answered(b"<html><div class='anomaly-modal'>", 202),
        },
        seconds={"github": 0.5},
    )
    assert not output.is_error
    assert [one["url"] for one in output.structured["results"]] == ["https://fast.example/"]
    assert table(output) == {
        "hackernews": ("ok", 1),
        "github": ("timeout", 0),
        "marginalia": ("blocked", 0),
        "stackexchange": ("blocked", 0),
        "mdn": ("empty", 0),
        "crossref": ("error", 0),
        "arxiv": ("error", 0),
        "duckduckgo": ("blocked", 0),
    }
    assert all(row["ms"] >= 0 for row in output.structured["engines"])


def test_an_engine_has_a_time_of_its_own_that_is_not_the_deadline() -> None:
    async def scenario() -> None:
        async with street(
            {"github": never, "hackernews": hn("https://fast.example/")}, seconds={"github": 2.0}
        ) as place:
            output = await place.find()
            assert table(output) == {"github": ("timeout", 0), "hackernews": ("ok", 1)}
            assert "no answer within 2 s" in text(output)

    asyncio.run(scenario())


def test_when_no_engine_answers_it_is_an_error_with_the_table() -> None:
    output = search({"github": answered("x", 500), "hackernews": never}, seconds={"hackernews": 0.2})
    assert output.is_error
    assert table(output) == {"github": ("error", 0), "hackernews": ("timeout", 0)}
    assert "no engine answered" in text(output)
    assert "github error 0" in text(output)


def test_nothing_found_is_not_an_error() -> None:
    output = search({"github": github(), "hackernews": answered("x", 503)})
    assert not output.is_error
    assert "no results" in text(output)


@pytest.mark.parametrize(
    "target", ["http://127.0.0.2:1/", "http://localhost:1/", "http://[::ffff:10.0.0.1]/", "file:///etc/passwd"]
)
def test_an_engine_may_not_lead_to_a_private_address(target: str) -> None:
    answers = {"github": redirect(target), "mojeek": redirect(target), "hackernews": hn("https://a.example/")}
    assert table(search(answers)) == {"github": ("error", 0), "mojeek": ("error", 0), "hackernews": ("ok", 1)}


def test_a_post_does_not_follow_a_redirect() -> None:
    async def scenario() -> None:
        async with street({"serper": redirect("/elsewhere", 307), "startpage": redirect("/elsewhere", 307)}) as place:
            assert await place.statuses() == {"serper": ("error", 0), "startpage": ("error", 0)}
            assert not place.asked("elsewhere")

    asyncio.run(scenario())


def test_results_of_engines_are_cleaned() -> None:
    odd = [
        {
            "full_name": "<b>bold</b> &amp; \x1b[31mred\x00\n  li\u202e\u2063\U000e0141\U000e0061ne",
            "html_url": "https://a.example/",
            "description": f"<script>alert(1)</script>{'word ' * 500}",
        },
        {"full_name": "js", "html_url": "javascript:alert(1)", "description": ""},
        {"full_name": "file", "html_url": "file:///etc/passwd", "description": ""},
        {"full_name": "user", "html_url": "https://a:b@c.example/", "description": ""},
        {"full_name": "control", "html_url": "https://c.example/\x1b[2J", "description": ""},
        {"full_name": "bidi", "html_url": "https://c.example/\u202egpj", "description": ""},
        {"full_name": "long", "html_url": "https://c.example/" + "x" * 5000, "description": ""},
        {"full_name": 7, "html_url": ["https://list.example/"], "description": {"a": 1}},
        "not an object",
        None,
    ]
    link = '<a href="https://m.example/?a=%26b">&lt;b&gt;x&lt;/b&gt; \u202e\u200by</a>'
    page = f'<ul class="results-standard"><li><h2>{link}</h2></li></ul>'
    output = search({"github": answered({"items": odd}), "mojeek": shapes.page(page)})
    results = {one["url"]: one for one in output.structured["results"]}
    assert {url: one["title"] for url, one in results.items()} == {
        "https://a.example/": "bold & [31mred line",
        "https://list.example/": "7",
        "https://m.example/?a=%26b": "x y",
    }
    assert len(results["https://a.example/"]["snippet"]) <= 300
    assert "<script" not in text(output)
    assert table(output) == {"github": ("ok", 2), "mojeek": ("ok", 1)}


def test_markup_without_an_end_takes_no_time_that_grows_with_its_square() -> None:
    start = time.process_time()
    for _ in range(20):
        assert strip_markup("a<!--" * 5_000, 1_000) == "a"
    assert time.process_time() - start < 1  # it was five


def test_a_redirect_link_of_an_engine_is_replaced_by_its_target() -> None:
    href = "//duckduckgo.com/l/?uddg=https%3A%2F%2Ffrobs.example%2Fguide%3Fa%3D1&amp;rut=x"
    page = f'<div class="result__body"><h2>F</h2><a class="result__snippet" href="{href}">f</a></div>'
    (found,) = search({"duckduckgo": shapes.page(page)}).structured["results"]
    assert found["url"] == "https://frobs.example/guide?a=1"


def test_the_query_is_trimmed_bounded_and_not_empty() -> None:
    async def scenario(place: FakeEngines) -> None:
        await place.find("  two\n\twords\x00 ")
        assert parse_qs(urlsplit(place.site.requests[0].target).query)["q"] == ["two words"]
        for query in ("", "  \n", "\x00", "x" * 401):
            output = await place.find(query)
            assert output.is_error
            assert output.structured is None
        assert place.asked("github") == 1

    _in({"github": github()}, scenario)


def _in(answers: Mapping[str, Answer], scenario: Any) -> None:
    async def body() -> None:
        async with street(answers) as place:
            await asyncio.wait_for(scenario(place), 20)

    asyncio.run(body())


def test_an_engine_that_names_a_page_twice_counts_once() -> None:
    found = [
        EngineResult("A", "http://a.example/", ""),
        EngineResult("A", "http://a.example", ""),
        EngineResult("B", "http://b.example/", ""),
    ]
    assert fuse_rankings([("one", found)]) == [
        SearchResult("A", "http://a.example/", "", [EngineRank("one", 1)], round(1 / 61, 6)),
        SearchResult("B", "http://b.example/", "", [EngineRank("one", 3)], round(1 / 63, 6)),
    ]


def test_at_most_twenty_results_are_given() -> None:
    found = [EngineResult("x", f"https://x{n}.example/", "") for n in range(30)]
    assert len(fuse_rankings([("one", found), ("two", found[::-1])])) == 20


def test_a_missing_list_of_results_is_an_error_with_its_path() -> None:
    with pytest.raises(ValueError, match=r"a\.b"):
        JsonPaths("a.b", "title", ("url",))(b'{"a": {"b": {}}}')


def test_the_description_is_small_and_true() -> None:
    assert len(web_search.description) < 450
    assert web_search.input["required"] == ["query"]
    hints = web_search.annotations
    assert (hints.read_only, hints.destructive, hints.idempotent, hints.open_world) == (True, False, True, True)
    assert web_search.scope == "tools:web"
