"""The answers of each engine in its own format: with results, without, and refusals."""

import json
from collections.abc import Callable, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from tests.tools.fake_web_site import Answer

Results = Sequence[tuple[str, str, str]]  # title, URL, snippet

RESULTS: Results = (
    ("The frob guide", "https://frobs.example/guide?a=1&b=%2Fx", "All about & around frobs"),
    ("Frobs, plainly", "https://plain.example/", "A frob is < a thing"),
)
CAPTCHA = {
    "duckduckgo": b"""<html><head><title>DuckDuckGo</title></head><body>
<form id="challenge-form" action="//duckduckgo.com/anomaly.js">
<div class="anomaly-modal__title">Unfortunately, bots use DuckDuckGo too.</div></form></body></html>""",
    "brave": b"""<!doctype html><html><head><title>PoW Captcha - Brave Search</title></head><body>
<main class="captcha">Confirm you're human</main><script>results=[]</script></body></html>""",
    "mojeek": b"<html><head><title>403 - Forbidden</title></head><body><h1>Sorry your network appears to be sending "
    b"automated queries</h1></body></html>",
    "startpage": b"""<html><body><form action="/sp/captcha"><p>Suspicious activity</p>
<div class="g-recaptcha"></div></form></body></html>""",
    "yahoo": b"<html><body><p>Sorry, unable to process request at this time. Too many requests.</p></body></html>",
}
NOTHING = {
    "duckduckgo": b"""<html><body><div class="no-results">No results.</div></body></html>""",
    "brave": b"""<html><body><div id="results"><p>Too few matches were found.</p></div>
<script>window.captcha = {"enabled": false}</script></body></html>""",
    "mojeek": b"""<html><body><p>No pages found matching: <b>frobs</b></p></body></html>""",
    "startpage": b"""<html><body><h3>Sorry, there are no results for this search</h3></body></html>""",
    "yahoo": b"""<html><body><ol><li><p>We did not find results for: frobs.</p></li></ol></body></html>""",
}
STARTPAGE_HOME = b"""<html><body><form id="search" action="/sp/search"><input name="query">
<input name="sc" value="SeCreT1"></form></body></html>"""


def page(body: str) -> Answer:
    return (
        200,
        {"content-type": "text/html; charset=utf-8"},
        f"<!doctype html><html><body>{body}</body></html>".encode(),
    )


def data(value: Any, status: int = 200) -> Answer:
    return status, {"content-type": "application/json"}, json.dumps(value).encode()


def _duckduckgo(results: Results) -> Answer:
    ad = _duckduckgo_block("Ad", "https://duckduckgo.com/y.js?ad_domain=x", "buy")
    blocks = "".join(_duckduckgo_block(*one) for one in results)
    return page(f'<div id="links" class="results">{ad}{blocks}</div>')


def _duckduckgo_block(title: str, url: str, snippet: str) -> str:
    return f"""<div class="result results_links results_links_deep web-result">
<div class="links_main links_deep result__body">
<h2 class="result__title"><a rel="nofollow" class="result__a" href="{escape(url)}"><b>{escape(title)}</b></a></h2>
<div class="result__extras"><a class="result__url" href="{escape(url)}">frobs</a></div>
<a class="result__snippet" href="{escape(url)}">{escape(snippet)}</a><div class="clear"></div></div></div>"""


def _brave(results: Results) -> Answer:
    blocks = "".join(
        f"""<div class="snippet svelte-1" data-pos="{n}" data-type="web"><div class="result-wrapper">
<a href="{escape(url)}" class="svelte-1 l1"><span class="favicon"></span>
<div class="title search-snippet-title">{escape(title)}</div></a>
<div class="generic-snippet svelte-1"><div class="content t-primary">{escape(snippet)}</div></div></div></div>"""
        for n, (title, url, snippet) in enumerate(results)
    )
    return page(f'<div id="results">{blocks}</div><div data-type="videos"></div>')


def _mojeek(results: Results) -> Answer:
    blocks = "".join(
        f"""<li class="r{n}"><a class="ob" href="{escape(url)}"><p class="i"><span class="url">frobs</span></p></a>
<h2><a class="title" href="{escape(url)}">{escape(title)}</a></h2><p class="s">{escape(snippet)}</p></li>"""
        for n, (title, url, snippet) in enumerate(results, start=1)
    )
    return page(f'<ul class="results-standard">{blocks}</ul>')


def _startpage(results: Results) -> Answer:
    blocks = "".join(
        f"""<div class="result css-o7i03b"><a class="result-title result-link css-1" href="{escape(url)}">
<h2 class="wgl-title">
{escape(title)}</h2></a><p class="description css-2">{escape(snippet)}</p></div>"""
        for title, url, snippet in results
    )
    return page(f'<section class="w-gl">{blocks}</section>')


def _yahoo(results: Results) -> Answer:
    blocks = "".join(
        f"""<li><div class="dd algo algo-sr relsrch Sr"><div class="compTitle options-toggle"><h3 class="title">
<a href="https://r.search.yahoo.com/_ylt=Awr;_ylu=Y29s/RV=2/RO=10/RU={quote(url, safe="")}/RK=2/RS=ab-">
{escape(title)}</a></h3></div>
<div class="compText aAbs"><p class="fc-dustygray">{escape(snippet)}</p></div></div></li>"""
        for title, url, snippet in results
    )
    return page(f'<div id="web"><ol class="reg searchCenterMiddle">{blocks}</ol></div>')


def _atom(results: Results) -> Answer:
    entries = "".join(
        f"<entry><id>{escape(url)}</id><title>{escape(title)}</title><summary> {escape(snippet)}\n</summary></entry>"
        for title, url, snippet in results
    )
    feed = f'<?xml version="1.0"?><feed xmlns="http://www.w3.org/2005/Atom"><title>query</title>{entries}</feed>'
    return 200, {"content-type": "application/atom+xml"}, feed.encode()


def _rows(results: Results, title: str, url: str, snippet: str) -> list[dict[str, str]]:
    return [{title: one[0], url: one[1], snippet: one[2].replace("<", "&lt;")} for one in results]


def _wikipedia(results: Results) -> Answer:
    found = [{"id": 1, "key": url.rpartition("/")[2] or "Frob", "title": t, "excerpt": s} for t, url, s in results]
    return data({"pages": found})


SHAPES: dict[str, Callable[[Results], Answer]] = {
    "duckduckgo": _duckduckgo,
    "brave": _brave,
    "mojeek": _mojeek,
    "startpage": _startpage,
    "yahoo": _yahoo,
    "wikipedia": _wikipedia,
    "stackexchange": lambda given: data(
        {"items": _rows(given, "title", "link", "body"), "has_more": True, "quota_max": 300, "quota_remaining": 299}
    ),
    "hackernews": lambda given: data({"hits": _rows(given, "title", "url", "story_text"), "nbHits": 2}),
    "github": lambda given: data({"total_count": 2, "items": _rows(given, "full_name", "html_url", "description")}),
    "marginalia": lambda given: data({"license": "CC", "results": _rows(given, "title", "url", "description")}),
    "crossref": lambda given: data(
        {
            "status": "ok",
            "message": {"items": [{"title": [t], "URL": u, "abstract": f"<jats:p>{s}</jats:p>"} for t, u, s in given]},
        }
    ),
    "arxiv": _atom,
    "mdn": lambda given: data(
        {"documents": [{"title": t, "mdn_url": "/en-US/docs/Web/Frob", "summary": s} for t, _, s in given]}
    ),
    "mwmbl": lambda given: data(
        [
            {
                "url": u,
                "title": [{"value": t[:3], "is_bold": True}, {"value": t[3:]}],
                "extract": [{"value": s.replace("<", "&lt;")}],
            }
            for t, u, s in given
        ]
    ),
    "europepmc": lambda given: data(
        {
            "resultList": {
                "result": [{"title": t, "pmid": str(n), "authorString": s} for n, (t, _, s) in enumerate(given)]
            }
        }
    ),
    "searxng": lambda given: data({"query": "x", "results": _rows(given, "title", "url", "content")}),
    "brave-api": lambda given: data(
        {"type": "search", **({"web": {"results": _rows(given, "title", "url", "description")}} if given else {})}
    ),
    "tavily": lambda given: data({"query": "x", "results": _rows(given, "title", "url", "content")}),
    "exa": lambda given: data({"requestId": "x", "results": _rows(given, "title", "url", "text")}),
    "kagi": lambda given: data({"meta": {"ms": 1}, "data": _rows(given, "title", "url", "snippet")}),
    "serper": lambda given: data(
        {"searchParameters": {}, **({"organic": _rows(given, "title", "link", "snippet")} if given else {})}
    ),
}


def with_results(name: str, results: Results = RESULTS) -> Answer:
    return SHAPES[name](results)


def without(name: str) -> Answer:
    return (200, {"content-type": "text/html"}, NOTHING[name]) if name in NOTHING else SHAPES[name](())


def refusing(name: str) -> Answer:
    """Return a CAPTCHA instead of results, with status 200."""
    return (
        200,
        {"content-type": "text/html"},
        CAPTCHA.get(name, b"<html><title>Just a moment...</title> CAPTCHA</html>"),
    )
