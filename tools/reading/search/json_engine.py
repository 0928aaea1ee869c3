"""Query engines with a JSON interface: a row names the address and the paths of the results."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from toolgate.tools.api.context.services import Page
from toolgate.tools.api.text.json_text import JsonError, decode_json
from toolgate.tools.reading.search.engine import (
    ENGINE_TIME,
    MAX_FOUND,
    EngineAnswer,
    EngineBlockedError,
    EngineFailedError,
    EngineRequest,
    FetchPage,
    RunJob,
    check_answer,
    clean_results,
    is_refusal,
)

DAY = 86_400  # seconds
MAX_ERROR = 64 * 1024  # bytes of an error that are read
Parse = Callable[[bytes], EngineAnswer]  # raises ValueError or msgspec.DecodeError for an unreadable answer


class JsonEngine(msgspec.Struct, frozen=True):
    """A row of the table. `{query}` in the values of `params` and `body` is replaced. A `body` is sent as JSON. `key`
    names the header for the key and its value, in which `{key}` is replaced. Never in a URL: those are logged."""

    name: str
    url: str
    parse: Parse
    params: Mapping[str, str] = {}
    body: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}
    key: tuple[str, str] | None = None
    seconds: float = ENGINE_TIME
    standard: bool = True

    def __repr__(self) -> str:  # the default shows the headers, which may hold a key
        return f"JsonEngine({self.name!r})"

    def at(self, url: str, *, standard: bool | None = None) -> "JsonEngine":
        return msgspec.structs.replace(self, url=url, standard=self.standard if standard is None else standard)

    async def ask(self, query: str, fetch: FetchPage, work: RunJob) -> EngineAnswer:
        page = await fetch(self.request(query))
        try:
            return await asyncio.to_thread(self._read, check_answer(page))
        except EngineFailedError as error:
            error.wait = error.wait or self._wait(page.body)
            raise

    def request(self, query: str) -> EngineRequest:
        headers = {"accept": "application/json", **self.headers}
        if self.body:
            body = msgspec.json.encode({name: _fill_query(value, query) for name, value in self.body.items()})
            return EngineRequest(self.url, "POST", {**headers, "content-type": "application/json"}, body)
        params = {name: _fill_query(value, query) for name, value in self.params.items()}
        return EngineRequest(f"{self.url}{'&' if '?' in self.url else '?'}{urlencode(params)}", headers=headers)

    def with_key(self, key: str) -> "JsonEngine":
        if self.key is None:
            raise ValueError(f"{self.name} takes no key")
        header, form = self.key
        headers = {**self.headers, header: form.replace("{key}", key)}
        return msgspec.structs.replace(self, headers=headers, key=None, standard=True)

    def _wait(self, body: bytes) -> float:
        """Return the seconds that an error asks to wait."""
        if not isinstance(self.parse, JsonPaths) or not self.parse.wait or len(body) > MAX_ERROR:
            return 0.0
        try:
            return self.parse.seconds(decode_json(body))
        except JsonError:
            return 0.0

    def _read(self, page: Page) -> EngineAnswer:
        if page.truncated:
            raise EngineFailedError("its answer is too large")
        try:
            return self.parse(page.body)
        except (ValueError, msgspec.DecodeError, RecursionError):
            if is_refusal(page.body):
                raise EngineBlockedError("it asks for proof of being human instead of giving results") from None
            raise EngineFailedError("its answer can't be read") from None


class JsonPaths(msgspec.Struct, frozen=True):
    """Reads a JSON answer: the paths of its results and of their fields.

    A path is keys joined by dots; `*` is every element of a list, whose texts are joined. `url` is a path, or an
    address with a path in braces, which is quoted; the first that can be filled is used. `wait` is the path of the
    engine's wait. `sparse`: an answer without results lacks the list too.
    """

    items: str
    title: str
    url: tuple[str, ...]
    snippet: str = ""
    wait: str = ""
    sparse: bool = False

    def __call__(self, body: bytes) -> EngineAnswer:
        answer = msgspec.json.decode(body)
        items = _value_at(answer, self.items)
        if items is None and self.sparse and isinstance(answer, dict):
            items = []
        if not isinstance(items, list):
            raise ValueError(f"no list at {self.items!r}")
        return EngineAnswer(clean_results(map(self._result, items[: 2 * MAX_FOUND])), self.seconds(answer))

    def seconds(self, answer: Any) -> float:
        """Return the seconds that the engine asks to wait."""
        wait = _value_at(answer, self.wait) if self.wait else 0
        is_known = isinstance(wait, (int, float)) and not isinstance(wait, bool) and wait > 0
        return float(min(wait, DAY)) if is_known else 0.0

    def _result(self, item: Any) -> tuple[str, str, str]:
        addresses = (_fill_url(item, url) for url in self.url)
        url = next((address for address in addresses if address), "")
        return _text_at(item, self.title), url, _text_at(item, self.snippet) if self.snippet else ""


def _fill_query(value: Any, query: str) -> Any:
    return value.replace("{query}", query) if isinstance(value, str) else value


def _fill_url(item: Any, url: str) -> str:
    if "{" not in url:
        return _text_at(item, url)
    head, _, rest = url.partition("{")
    path, _, tail = rest.partition("}")
    value = _text_at(item, path)
    return f"{head}{quote(value, safe='/:@')}{tail}" if value else ""


def _text_at(item: Any, path: str) -> str:
    value = _value_at(item, path)
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else ""


def _value_at(value: Any, path: str) -> Any:
    for key in filter(None, path.split(".")):
        if key == "*":
            rest = path.partition("*.")[2]
            return [_value_at(one, rest) for one in value] if isinstance(value, list) else None
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value
