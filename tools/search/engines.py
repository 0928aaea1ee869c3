"""The table of engines, none of which needs a key. Knows their addresses and answers; knows nothing else.

An entry of the setting `engines` is a name, or `name=URL` to ask that engine's interface at another address:
a mirror, a proxy, or a stand-in in a test.
"""

from collections.abc import Sequence

import msgspec

from toolgate.tools.errors import ToolError
from toolgate.tools.search import arxiv, duckduckgo
from toolgate.tools.search.engine import Engine, Pick

ENGINES: tuple[Engine, ...] = (
    Engine(
        "duckduckgo",
        "https://html.duckduckgo.com/html/",
        {"q": "{query}"},
        duckduckgo.parse,
        {"accept-language": "en"},
    ),
    Engine(
        "marginalia",
        "https://api2.marginalia-search.com/search",
        {"query": "{query}", "count": "10"},
        Pick("results", "title", ("url",), "description"),
        {"api-key": "public"},  # shared by everyone: often over its limit
    ),
    Engine(
        "mwmbl",
        "https://api.mwmbl.org/search",
        {"s": "{query}"},
        Pick("", "title.*.value", ("url",), "extract.*.value"),
    ),
    Engine(
        "wikipedia",
        "https://en.wikipedia.org/w/rest.php/v1/search/page",
        {"q": "{query}", "limit": "10"},
        Pick("pages", "title", ("https://en.wikipedia.org/wiki/{key}",), "excerpt"),
    ),
    Engine(
        "stackexchange",
        "https://api.stackexchange.com/2.3/search/advanced",
        {
            "q": "{query}",
            "site": "stackoverflow",
            "sort": "relevance",
            "order": "desc",
            "pagesize": "10",
            "filter": "withbody",
        },
        Pick("items", "title", ("link",), "body"),
    ),
    Engine(
        "hackernews",
        "https://hn.algolia.com/api/v1/search",
        {"query": "{query}", "tags": "story", "hitsPerPage": "10"},
        Pick("hits", "title", ("url", "https://news.ycombinator.com/item?id={objectID}"), "story_text"),
    ),
    Engine(
        "github",
        "https://api.github.com/search/repositories",
        {"q": "{query}", "per_page": "10"},
        Pick("items", "full_name", ("html_url",), "description"),
        {"accept": "application/vnd.github+json"},
    ),
    Engine(
        "mdn",
        "https://developer.mozilla.org/api/v1/search",
        {"q": "{query}", "locale": "en-US"},
        Pick("documents", "title", ("https://developer.mozilla.org{mdn_url}",), "summary"),
    ),
    Engine(
        "arxiv",
        "https://export.arxiv.org/api/query",
        {"search_query": "all:{query}", "max_results": "10"},
        arxiv.parse,
    ),
    Engine(
        "crossref",
        "https://api.crossref.org/works",
        {"query": "{query}", "rows": "10", "select": "title,URL,abstract"},
        Pick("message.items", "title", ("URL",), "abstract"),
    ),
    Engine(
        "europepmc",
        "https://www.ebi.ac.uk/europepmc/webservices/rest/search",
        {"query": "{query}", "format": "json", "pageSize": "10"},
        Pick(
            "resultList.result",
            "title",
            ("https://doi.org/{doi}", "https://europepmc.org/abstract/MED/{pmid}"),
            "authorString",
        ),
    ),
)


def verify(entries: Sequence[str]) -> None:
    """Raise ValueError for an entry that names no engine, or an address that is no http URL. For the start."""
    try:
        engines = chosen(entries)
    except ToolError as error:
        raise ValueError(error.text) from None
    for engine in engines:
        if not engine.url.startswith(("http://", "https://")):
            raise ValueError(f"{engine.name} can't be asked at {engine.url!r}: give an http or https URL")


def chosen(entries: Sequence[str]) -> list[Engine]:
    """The engines that `entries` name; all of them for no entries. Raises ToolError for an unknown name."""
    known = {engine.name: engine for engine in ENGINES}
    if not entries:
        return list(ENGINES)
    engines: dict[str, Engine] = {}
    for entry in entries:
        name, _, url = entry.partition("=")
        engine = known.get(name.strip().lower())
        if engine is None:
            raise ToolError(f"unknown search engine {name!r} in the option --engines; known: {', '.join(known)}")
        engines[engine.name] = msgspec.structs.replace(engine, url=url.strip()) if url else engine
    return list(engines.values())
