"""Merge the ranked lists of several engines into one.

Reciprocal rank fusion (Cormack, Clarke, Büttcher 2009): a page scores 1/(K + rank) for each engine that found it.
"""

from collections.abc import Iterable

import msgspec

from toolgate.tools.search.engine import EngineResult
from toolgate.tools.search.urls import page_key

K = 60  # the paper's: the first of one list does not outweigh what two lists agree on
MAX_RESULTS = 20


class EngineRank(msgspec.Struct, frozen=True):
    name: str
    rank: int  # from 1


class SearchResult(msgspec.Struct, frozen=True):
    title: str
    url: str
    snippet: str
    engines: list[EngineRank]
    score: float


def fuse_rankings(lists: Iterable[tuple[str, list[EngineResult]]]) -> list[SearchResult]:
    """The best of all results, each page once. `lists`: an engine's name and its results, best first."""
    pages: dict[str, SearchResult] = {}
    for name, engine_results in lists:
        ranked: set[str] = set()
        for rank, item in enumerate(engine_results, start=1):
            key = page_key(item.url)
            if key is None or key in ranked:
                continue
            ranked.add(key)
            hit = EngineRank(name, rank)
            new = SearchResult(item.title, item.url, item.snippet, [hit], _score([hit]))
            pages[key] = _merge(pages[key], new) if key in pages else new
    results = sorted(pages.values(), key=lambda result: (-result.score, _best(result), result.url))
    return results[:MAX_RESULTS]


def _merge(earlier: SearchResult, new: SearchResult) -> SearchResult:
    """Both engines' finding of one page: in the words of the one that ranked it higher."""
    first, second = (earlier, new) if _best(earlier) <= _best(new) else (new, earlier)
    hits = sorted([*earlier.engines, *new.engines], key=lambda hit: hit.rank)
    return SearchResult(first.title, first.url, first.snippet or second.snippet, hits, _score(hits))


def _score(hits: list[EngineRank]) -> float:
    return round(sum(1 / (K + hit.rank) for hit in hits), 6)


def _best(result: SearchResult) -> int:
    return min(hit.rank for hit in result.engines)
