"""List the search engines: where to query each, and how to read its answer.

An entry of the option `engines` is a name, or `name=URL` for another address of its interface: a mirror, a proxy, or a
stand-in in a test. A new engine is a row, and a function if it answers neither in JSON nor as `ddgs` can read.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from toolgate.tools.api.text.cleaning import closest
from toolgate.tools.reading.search.engine import Engine, EngineAnswer, clean_results
from toolgate.tools.reading.search.html_engine import HtmlEngine
from toolgate.tools.reading.search.json_engine import JsonEngine, JsonPaths

GITHUB = {"accept": "application/vnd.github+json"}
STACK = {"site": "stackoverflow", "sort": "relevance", "order": "desc", "pagesize": "10", "filter": "withbody"}

ATOM = "{http://www.w3.org/2005/Atom}"


def parse_arxiv(body: bytes) -> EngineAnswer:
    """Parse an Atom feed (info.arxiv.org/help/api). Raises ValueError for another document, or one with a document
    type. XML attacks use entities, which a document type declares."""
    from xml.etree import ElementTree  # start-up

    text = body.decode()  # as UTF-8, whatever it declares, so that no encoding hides a document type
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("the feed declares a document type")
    try:
        feed = ElementTree.fromstring(text)  # noqa: S314  # no entities get here
    except ElementTree.ParseError as error:
        raise ValueError(f"not XML: {error}") from None
    if feed.tag != f"{ATOM}feed":
        raise ValueError("not an Atom feed")
    names = [f"{ATOM}{name}" for name in ("title", "id", "summary")]
    entries = ([entry.findtext(name, "") for name in names] for entry in feed.iterfind(f"{ATOM}entry"))
    return EngineAnswer(clean_results((title, url, snippet) for title, url, snippet in entries))


ENGINES: tuple[Engine, ...] = (
    HtmlEngine("duckduckgo"),
    HtmlEngine("brave"),
    HtmlEngine("mojeek"),
    HtmlEngine("startpage"),
    HtmlEngine("yahoo"),
    JsonEngine(
        "wikipedia",
        "https://en.wikipedia.org/w/rest.php/v1/search/page",
        JsonPaths("pages", "title", ("https://en.wikipedia.org/wiki/{key}",), "excerpt"),
        {"q": "{query}", "limit": "10"},
    ),
    JsonEngine(
        "stackexchange",
        "https://api.stackexchange.com/2.3/search/advanced",
        JsonPaths("items", "title", ("link",), "body", wait="backoff"),
        {"q": "{query}", **STACK},
    ),
    JsonEngine(
        "hackernews",
        "https://hn.algolia.com/api/v1/search",
        JsonPaths("hits", "title", ("url", "https://news.ycombinator.com/item?id={objectID}"), "story_text"),
        {"query": "{query}", "tags": "story", "hitsPerPage": "10"},
    ),
    JsonEngine(
        "github",
        "https://api.github.com/search/repositories",
        JsonPaths("items", "full_name", ("html_url",), "description"),
        {"q": "{query}", "per_page": "10"},
        headers=GITHUB,
    ),
    JsonEngine(
        "marginalia",
        "https://api2.marginalia-search.com/search",
        JsonPaths("results", "title", ("url",), "description"),
        {"query": "{query}", "count": "10"},
        headers={"api-key": "public"},  # shared by all users: often over its limit
    ),
    JsonEngine(
        "crossref",
        "https://api.crossref.org/works",
        JsonPaths("message.items", "title", ("URL",), "abstract"),
        {"query": "{query}", "rows": "10", "select": "title,URL,abstract"},
    ),
    # -- used when chosen by name: of narrower interest, or less often reachable
    JsonEngine(
        "arxiv",
        "https://export.arxiv.org/api/query",
        parse_arxiv,
        {"search_query": "all:{query}", "max_results": "10"},
        standard=False,  # it wants three seconds between two queries
    ),
    JsonEngine(
        "mdn",
        "https://developer.mozilla.org/api/v1/search",
        JsonPaths("documents", "title", ("https://developer.mozilla.org{mdn_url}",), "summary"),
        {"q": "{query}", "locale": "en-US"},
        standard=False,
    ),
    JsonEngine(
        "mwmbl",
        "https://api.mwmbl.org/search",
        JsonPaths("", "title.*.value", ("url",), "extract.*.value"),
        {"s": "{query}"},
        standard=False,
    ),
    JsonEngine(
        "europepmc",
        "https://www.ebi.ac.uk/europepmc/webservices/rest/search",
        JsonPaths(
            "resultList.result",
            "title",
            ("https://doi.org/{doi}", "https://europepmc.org/abstract/MED/{pmid}"),
            "authorString",
        ),
        {"query": "{query}", "format": "json", "pageSize": "10"},
        standard=False,
    ),
    # -- used when an address is configured
    JsonEngine(
        "searxng",
        "",
        JsonPaths("results", "title", ("url",), "content"),
        {"q": "{query}", "format": "json"},
        standard=False,
    ),
    # -- used when a key is configured
    JsonEngine(
        "brave-api",
        "https://api.search.brave.com/res/v1/web/search",
        JsonPaths("web.results", "title", ("url",), "description", sparse=True),
        {"q": "{query}", "count": "20"},
        key=("x-subscription-token", "{key}"),
        standard=False,
    ),
    JsonEngine(
        "tavily",
        "https://api.tavily.com/search",
        JsonPaths("results", "title", ("url",), "content"),
        body={"query": "{query}", "max_results": 10},
        key=("authorization", "Bearer {key}"),
        standard=False,
    ),
    JsonEngine(
        "exa",
        "https://api.exa.ai/search",
        JsonPaths("results", "title", ("url",), "text"),
        body={"query": "{query}", "numResults": 10, "contents": {"text": {"maxCharacters": 400}}},
        key=("x-api-key", "{key}"),
        standard=False,
    ),
    JsonEngine(
        "kagi",
        "https://kagi.com/api/v0/search",
        JsonPaths("data", "title", ("url",), "snippet"),
        {"q": "{query}", "limit": "10"},
        key=("authorization", "Bot {key}"),
        standard=False,
    ),
    JsonEngine(
        "serper",
        "https://google.serper.dev/search",
        JsonPaths("organic", "title", ("link",), "snippet", sparse=True),
        body={"q": "{query}", "num": 10},
        key=("x-api-key", "{key}"),
        standard=False,
    ),
)
KEYED = tuple(engine.name for engine in ENGINES if isinstance(engine, JsonEngine) and engine.key is not None)
NO_KEYS: Mapping[str, str] = {}


def choose_engines(
    entries: Sequence[str] = (), searxng: str | None = None, keys: Mapping[str, str] = NO_KEYS
) -> list[Engine]:
    """Return the engines that `entries` name; without entries the standard ones and those with `searxng` or `keys`.

    Raises ValueError for an unknown engine, a missing key or address, or an address that is no http URL. Called at the
    start.
    """
    known = {engine.name: _with_options(engine, searxng, keys) for engine in ENGINES}
    if not entries:
        return [engine for engine in known.values() if engine.standard]
    engines: dict[str, Engine] = {}
    for entry in entries:
        name, _, url = (part.strip() for part in entry.partition("="))
        engine = known.get(name.lower())
        if engine is None:
            similar = closest(name, known)
            hint = f" (did you mean {similar}?)" if similar else ""
            raise ValueError(f"unknown search engine {name!r}{hint}; known: {', '.join(known)}")
        engines[engine.name] = _check_usable(_with_address(engine, url) if url else engine)
    return list(engines.values())


def _with_options(engine: Engine, searxng: str | None, keys: Mapping[str, str]) -> Engine:
    if not isinstance(engine, JsonEngine):
        return engine
    if engine.name == "searxng" and searxng:
        return engine.at(_search_address(searxng), standard=True)
    return engine.with_key(keys[engine.name]) if engine.name in keys else engine


def _with_address(engine: Engine, url: str) -> Engine:
    try:
        is_usable = urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname
    except ValueError:
        is_usable = None
    if not is_usable:
        raise ValueError(f"{engine.name} can't be asked at {url!r}: give an http or https URL")
    return engine.at(_search_address(url) if engine.name == "searxng" else url)


def _search_address(url: str) -> str:
    """Return the search address of the SearXNG instance at `url`."""
    return url if urlsplit(url).path.endswith("/search") else f"{url.rstrip('/')}/search"


def _check_usable(engine: Engine) -> Engine:
    if engine.name == "searxng" and not engine.url:
        raise ValueError("searxng needs an address: --searxng URL")
    if isinstance(engine, JsonEngine) and engine.key is not None:
        variable = f"TOOLGATE_{key_variable(engine.name)}"
        raise ValueError(f"{engine.name} needs a key: {variable}, or a line in --search-keys FILE")
    return engine


def key_variable(name: str) -> str:
    """Return the variable's name: `brave-api` → `BRAVE_API_KEY`."""
    return f"{name.removesuffix('-api').replace('-', '_').upper()}_API_KEY"
