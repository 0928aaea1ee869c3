"""What a search engine is: where to ask, and how to read its answer. Knows no connections, no ranking."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

MAX_FOUND = 20  # results taken from one engine
NO_HEADERS: Mapping[str, str] = {}


class Found(msgspec.Struct, frozen=True):
    """One result as the engine gave it: `title` and `snippet` may hold markup."""

    title: str
    url: str
    snippet: str


Parse = Callable[[bytes], list[Found]]  # best first; raises ValueError or msgspec.DecodeError for what it can't read


class Engine(msgspec.Struct, frozen=True):
    """A row of the table. In the values of `params`, `{query}` stands for what is searched for."""

    name: str
    url: str
    params: Mapping[str, str]
    parse: Parse
    headers: Mapping[str, str] = NO_HEADERS

    def address(self, query: str) -> str:
        """The URL that asks for `query`."""
        params = {name: value.replace("{query}", query) for name, value in self.params.items()}
        return f"{self.url}{'&' if '?' in self.url else '?'}{urlencode(params)}"


class Pick(msgspec.Struct, frozen=True):
    """Reads a JSON answer: which of its parts are the results, and which of a result's are what.

    A path is keys joined by dots; `*` is every element of a list, whose texts are joined. `url` is a path, or
    an address with a path in braces, which is quoted; of several the first that can be filled is taken.
    """

    items: str
    title: str
    url: tuple[str, ...]
    snippet: str = ""

    def __call__(self, body: bytes) -> list[Found]:
        items = _at(msgspec.json.decode(body), self.items)
        if not isinstance(items, list):
            raise ValueError(f"no list at {self.items!r}")
        found = [self._found(item) for item in items[:MAX_FOUND]]
        return [one for one in found if one.url]

    def _found(self, item: Any) -> Found:
        addresses = (_filled(item, url) for url in self.url)
        url = next((address for address in addresses if address), "")
        return Found(_text(item, self.title), url, _text(item, self.snippet) if self.snippet else "")


def _filled(item: Any, url: str) -> str:
    if "{" not in url:
        return _text(item, url)
    head, _, rest = url.partition("{")
    path, _, tail = rest.partition("}")
    value = _text(item, path)
    return f"{head}{quote(value, safe='/:@')}{tail}" if value else ""


def _text(item: Any, path: str) -> str:
    value = _at(item, path)
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else ""


def _at(value: Any, path: str) -> Any:
    for key in filter(None, path.split(".")):
        if key == "*":
            rest = path.partition("*.")[2]
            return [_at(one, rest) for one in value] if isinstance(value, list) else None
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value
