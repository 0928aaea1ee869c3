"""The table of engines. Knows their addresses and answers; knows nothing else.

An entry of the option `engines` is a name, or `name=URL` to ask that engine's interface at another address: a mirror,
a proxy, or a stand-in in a test. A new engine is a row, and a small file if it answers neither in JSON nor as `ddgs`
can read.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from toolgate.tools.search import arxiv
from toolgate.tools.search.engine import Engine
from toolgate.tools.search.html_engine import Scraped
from toolgate.tools.search.json_engine import Interface, Pick

GITHUB = {"accept": "application/vnd.github+json"}
STACK = {"site": "stackoverflow", "sort": "relevance", "order": "desc", "pagesize": "10", "filter": "withbody"}

ENGINES: tuple[Engine, ...] = (
    Scraped("duckduckgo"),
    Scraped("brave"),
    Scraped("mojeek"),
    Scraped("startpage"),
    Scraped("yahoo"),
    Interface(
        "wikipedia",
        "https://en.wikipedia.org/w/rest.php/v1/search/page",
        Pick("pages", "title", ("https://en.wikipedia.org/wiki/{key}",), "excerpt"),
        {"q": "{query}", "limit": "10"},
    ),
    Interface(
        "stackexchange",
        "https://api.stackexchange.com/2.3/search/advanced",
        Pick("items", "title", ("link",), "body", wait="backoff"),
        {"q": "{query}", **STACK},
    ),
    Interface(
        "hackernews",
        "https://hn.algolia.com/api/v1/search",
        Pick("hits", "title", ("url", "https://news.ycombinator.com/item?id={objectID}"), "story_text"),
        {"query": "{query}", "tags": "story", "hitsPerPage": "10"},
    ),
    Interface(
        "github",
        "https://api.github.com/search/repositories",
        Pick("items", "full_name", ("html_url",), "description"),
        {"q": "{query}", "per_page": "10"},
        headers=GITHUB,
    ),
    Interface(
        "marginalia",
        "https://api2.marginalia-search.com/search",
        Pick("results", "title", ("url",), "description"),
        {"query": "{query}", "count": "10"},
        headers={"api-key": "public"},  # shared by everyone: often over its limit
    ),
    Interface(
        "crossref",
        "https://api.crossref.org/works",
        Pick("message.items", "title", ("URL",), "abstract"),
        {"query": "{query}", "rows": "10", "select": "title,URL,abstract"},
    ),
    # -- asked when chosen by name: for fewer people, or less often reachable
    Interface(
        "arxiv",
        "https://export.arxiv.org/api/query",
        arxiv.parse,
        {"search_query": "all:{query}", "max_results": "10"},
        standard=False,  # it wants three seconds between two questions
    ),
    Interface(
        "mdn",
        "https://developer.mozilla.org/api/v1/search",
        Pick("documents", "title", ("https://developer.mozilla.org{mdn_url}",), "summary"),
        {"q": "{query}", "locale": "en-US"},
        standard=False,
    ),
    Interface(
        "mwmbl",
        "https://api.mwmbl.org/search",
        Pick("", "title.*.value", ("url",), "extract.*.value"),
        {"s": "{query}"},
        standard=False,
    ),
    Interface(
        "europepmc",
        "https://www.ebi.ac.uk/europepmc/webservices/rest/search",
        Pick(
            "resultList.result",
            "title",
            ("https://doi.org/{doi}", "https://europepmc.org/abstract/MED/{pmid}"),
            "authorString",
        ),
        {"query": "{query}", "format": "json", "pageSize": "10"},
        standard=False,
    ),
    # -- asked when there is an address for it
    Interface(
        "searxng",
        "",
        Pick("results", "title", ("url",), "content"),
        {"q": "{query}", "format": "json"},
        standard=False,
    ),
    # -- asked when there is a key for it
    Interface(
        "brave-api",
        "https://api.search.brave.com/res/v1/web/search",
        Pick("web.results", "title", ("url",), "description", sparse=True),
        {"q": "{query}", "count": "20"},
        key=("x-subscription-token", "{key}"),
        standard=False,
    ),
    Interface(
        "tavily",
        "https://api.tavily.com/search",
        Pick("results", "title", ("url",), "content"),
        body={"query": "{query}", "max_results": 10},
        key=("authorization", "Bearer {key}"),
        standard=False,
    ),
    Interface(
        "exa",
        "https://api.exa.ai/search",
        Pick("results", "title", ("url",), "text"),
        body={"query": "{query}", "numResults": 10, "contents": {"text": {"maxCharacters": 400}}},
        key=("x-api-key", "{key}"),
        standard=False,
    ),
    Interface(
        "kagi",
        "https://kagi.com/api/v0/search",
        Pick("data", "title", ("url",), "snippet"),
        {"q": "{query}", "limit": "10"},
        key=("authorization", "Bot {key}"),
        standard=False,
    ),
    Interface(
        "serper",
        "https://google.serper.dev/search",
        Pick("organic", "title", ("link",), "snippet", sparse=True),
        body={"q": "{query}", "num": 10},
        key=("x-api-key", "{key}"),
        standard=False,
    ),
)
KEYED = tuple(engine.name for engine in ENGINES if isinstance(engine, Interface) and engine.key is not None)
NO_KEYS: Mapping[str, str] = {}


def chosen(entries: Sequence[str] = (), searxng: str | None = None, keys: Mapping[str, str] = NO_KEYS) -> list[Engine]:
    """The engines that `entries` name; for none, the standard ones and those `searxng` and `keys` are given for.

    Raises ValueError for an entry that names no engine, one that lacks its key or address, or an address that is no
    http URL. For the start.
    """
    known = {engine.name: _opened(engine, searxng, keys) for engine in ENGINES}
    if not entries:
        return [engine for engine in known.values() if engine.standard]
    engines: dict[str, Engine] = {}
    for entry in entries:
        name, _, url = (part.strip() for part in entry.partition("="))
        engine = known.get(name.lower())
        if engine is None:
            raise ValueError(f"unknown search engine {name!r}; known: {', '.join(known)}")
        engines[engine.name] = _usable(_placed(engine, url) if url else engine)
    return list(engines.values())


def _opened(engine: Engine, searxng: str | None, keys: Mapping[str, str]) -> Engine:
    if not isinstance(engine, Interface):
        return engine
    if engine.name == "searxng" and searxng:
        return engine.at(_searches(searxng), standard=True)
    return engine.with_key(keys[engine.name]) if engine.name in keys else engine


def _placed(engine: Engine, url: str) -> Engine:
    try:
        is_usable = urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname
    except ValueError:
        is_usable = None
    if not is_usable:
        raise ValueError(f"{engine.name} can't be asked at {url!r}: give an http or https URL")
    return engine.at(_searches(url) if engine.name == "searxng" else url)


def _searches(url: str) -> str:
    """Where an instance of SearXNG, at `url`, searches."""
    return url if urlsplit(url).path.endswith("/search") else f"{url.rstrip('/')}/search"


def _usable(engine: Engine) -> Engine:
    if engine.name == "searxng" and not engine.url:
        raise ValueError("searxng needs an address: --searxng URL")
    if isinstance(engine, Interface) and engine.key is not None:
        raise ValueError(
            f"{engine.name} needs a key: TOOLGATE_{variable(engine.name)}, or a line in --search-keys FILE"
        )
    return engine


def variable(name: str) -> str:
    """`brave-api` → `BRAVE_API_KEY`."""
    return f"{name.removesuffix('-api').replace('-', '_').upper()}_API_KEY"
