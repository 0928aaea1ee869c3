"""Makes one ranked list of several. Knows when two URLs name one page; knows engines by name alone.

Reciprocal rank fusion (Cormack, Clarke, Büttcher 2009): a page scores 1/(K + rank) for each engine that found
it.
"""

from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

import msgspec

from toolgate.tools.plain import clean, stripped
from toolgate.tools.search.engine import Found

K = 60  # the paper's: the first of one list does not outweigh what two lists agree on
MAX_RESULTS = 20
MAX_TITLE = 200  # characters
MAX_SNIPPET = 300
MAX_URL = 2_000
TRACKING = frozenset(
    {
        "gclid",
        "fbclid",
        "dclid",
        "gbraid",
        "wbraid",
        "msclkid",
        "yclid",
        "igshid",
        "mc_cid",
        "mc_eid",
        "ref_src",
    }
)
PORTS = {"http": 80, "https": 443}


class Hit(msgspec.Struct, frozen=True):
    name: str
    rank: int  # from 1


class Result(msgspec.Struct, frozen=True):
    title: str
    url: str
    snippet: str
    engines: list[Hit]
    score: float


def usable(found: Iterable[Found]) -> int:
    """How many of an engine's results `fused` takes: each page once, and none whose URL is not one of the web."""
    return len({page_key(one.url) for one in found} - {None})


def fused(lists: Iterable[tuple[str, list[Found]]]) -> list[Result]:
    """The best of all results, each page once. `lists`: an engine's name and its results, best first."""
    pages: dict[str, Result] = {}
    for name, found in lists:
        ranked: set[str] = set()
        for rank, one in enumerate(found, start=1):
            key = page_key(one.url)
            if key is None or key in ranked:
                continue
            ranked.add(key)
            new = _result(one, Hit(name, rank))
            pages[key] = _merged(pages[key], new) if key in pages else new
    results = sorted(pages.values(), key=lambda result: (-result.score, _best(result), result.url))
    return results[:MAX_RESULTS]


def page_key(url: str) -> str | None:
    """The same for all spellings of one page's URL; None for what is not an http URL.

    Left out: scheme, `www.` and `m.`, the default port, the fragment, a slash at the end, parameters that
    track. The order of the other parameters is kept, since some servers mind it.
    """
    if len(url) > MAX_URL or clean(url) != url or any(character.isspace() for character in url):
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    if parts.scheme not in PORTS or not host or parts.username is not None:
        return None
    host = _bare(host.removesuffix("."))
    place = host if port in (None, PORTS[parts.scheme]) else f"{host}:{port}"
    kept = [pair for pair in parts.query.split("&") if pair and not _tracks(pair)]
    return f"{place}{unquote(parts.path).rstrip('/')}{'?' if kept else ''}{'&'.join(kept)}"


def _bare(host: str) -> str:
    for prefix in ("www.", "m."):
        rest = host.removeprefix(prefix)
        host = rest if "." in rest else host
    return host


def _tracks(pair: str) -> bool:
    name = pair.partition("=")[0].lower()
    return name.startswith("utm_") or name in TRACKING


def _result(found: Found, hit: Hit) -> Result:
    title = stripped(found.title, MAX_TITLE) or found.url
    return Result(title, found.url, stripped(found.snippet, MAX_SNIPPET), [hit], _score([hit]))


def _merged(held: Result, new: Result) -> Result:
    """Both engines' finding of one page: in the words of the one that ranked it higher."""
    first, second = (held, new) if _best(held) <= _best(new) else (new, held)
    hits = sorted([*held.engines, *new.engines], key=lambda hit: hit.rank)
    return Result(first.title, first.url, first.snippet or second.snippet, hits, _score(hits))


def _score(hits: list[Hit]) -> float:
    return round(sum(1 / (K + hit.rank) for hit in hits), 6)


def _best(result: Result) -> int:
    return min(hit.rank for hit in result.engines)
