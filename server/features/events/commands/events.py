"""List the types of events of our own server or one at a URL, follow events, and send a test (`toolgate events`)."""

import asyncio
import json as json_format
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import escape_unprintable, suggest
from toolgate.server.cli.commands.offered_parts import (
    OfferedPart,
    convert,
    format_signature,
    list_all,
    list_items,
    open_client,
    parse_arguments,
    print_part,
)
from toolgate.server.cli.mcp_client.client import McpClient, McpClientError
from toolgate.server.cli.terminal.output import print_json_line
from toolgate.server.config.load import Config
from toolgate.server.protocol.request_meta import SUBSCRIPTION

SILENCE = 60.0  # seconds: four heartbeats of a server
FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0  # seconds before a lost connection is tried again; twice as long each time
MAX_CELL = 120  # characters of one member of an event, on the line that shows it
NOTICES = "notifications/events/"


class ReceivedEvent(msgspec.Struct, rename="camel"):
    """An event, as far as it is shown."""

    name: str
    timestamp: str
    data: dict[str, Any]


async def list_types(config: Config, *, url: str | None, json: bool) -> int:
    """Print the types with their arguments (`*` = required) and what each tells."""
    async with open_client(config, url) as (client, _):
        for item in await list_items(client, "events/list", "events"):
            if json:
                print_json_line(item, flush=True)
            else:
                type = convert(item, OfferedPart, "events/list")
                print_part(format_signature(type), type)
    return 0


async def send_test(config: Config, *, type: str, arguments: Sequence[str], url: str | None) -> int:
    """Send a test event; 1 if nobody waits for such an event."""
    async with open_client(config, url) as (client, _):
        found = _find(await _list_types(client), type, "events test")
        values = parse_arguments("events test", found.input_schema, arguments)
        answer = await client.request("toolgate/events/test", {"name": found.name, "arguments": values})
        ids = convert(answer.get("eventIds"), list[str], "toolgate/events/test")
    for id in ids:
        print(f"sent {escape_unprintable(id)}")
    if not ids:
        print(f"nobody waits for {found.name}: no subscription, no stream, and no poll of late", file=sys.stderr)
    return 0 if ids else 1


async def follow(config: Config, *, type: str | None, arguments: Sequence[str], url: str | None, json: bool) -> int:
    """Print events until Ctrl-C. A connection to a URL that is lost is tried again, and goes on where it was."""
    follower = EventFollower(type, arguments, is_json=json)
    pause = FIRST_PAUSE
    try:
        while True:
            try:
                async with open_client(config, url, note=follower.note) as (client, _):
                    await follower.run(client)
                reason = "the server has ended the stream"
            except McpClientError as fault:
                if url is None or not follower.has_begun:
                    raise
                reason = str(fault)
            pause = FIRST_PAUSE if follower.take_progress() else min(2 * pause, MAX_PAUSE)
            _warn(f"{reason}; trying again in {pause:g} s")
            await asyncio.sleep(pause)
    except FollowingEndedError as error:
        _warn(str(error))
        return 1
    except asyncio.CancelledError:  # Ctrl-C
        return 0


class EventFollower:
    """Follow events on one connection after the other, each type from its last cursor.

    - `type`: None for all that need no argument. `arguments`: `key=value` words.
    """

    def __init__(self, type: str | None, arguments: Sequence[str], *, is_json: bool) -> None:
        self._type = type
        self._words = arguments
        self._is_json = is_json
        self._filters: dict[str, Mapping[str, Any]] = {}  # type → arguments
        self._cursors: dict[str, str | None] = {}  # type → where to go on
        self._news: asyncio.Queue[tuple[str, Mapping[str, Any]]] = asyncio.Queue()
        self._ends: dict[int, asyncio.Future[Any]] = {}  # id of the request → its answer
        self._names: dict[int, str] = {}  # id of the request → type
        self._has_progress = False

    @property
    def has_begun(self) -> bool:
        """Return whether a server has sent anything for each type."""
        return bool(self._filters) and self._cursors.keys() == self._filters.keys()

    def take_progress(self) -> bool:
        """Return whether anything has come since this was last asked."""
        had, self._has_progress = self._has_progress, False
        return had

    def note(self, method: str, params: Mapping[str, Any]) -> None:
        """Take a notification of the server."""
        if method.startswith(NOTICES):
            self._news.put_nowait((method.removeprefix(NOTICES), params))

    async def run(self, client: McpClient) -> None:
        """Print events until the server ends a stream in order. Raises McpClientError and UsageError."""
        if not self._filters:
            self._filters = self._choose(await _list_types(client))
            _warn(f"following {', '.join(self._filters)}; Ctrl-C ends it")
        self._news = asyncio.Queue()
        for name, arguments in self._filters.items():
            params = {"name": name, "arguments": arguments, "cursor": self._cursors.get(name)}
            id, answer = client.send_request("events/stream", params)
            self._names[id] = name
            answer.add_done_callback(lambda _: self._news.put_nowait(("end", {})))
            self._ends[id] = answer
        try:
            await self._print_news()
        finally:
            for answer in self._ends.values():
                answer.cancel()
            self._ends.clear()
            self._names.clear()

    async def _print_news(self) -> None:
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    kind, params = await self._news.get()
            except TimeoutError:
                raise McpClientError(f"the server has sent nothing for {SILENCE:g} s") from None
            if kind == "end":
                for answer in self._ends.values():
                    if answer.done():
                        answer.result()  # raises what the server refused
                return
            self._take(kind, params)

    def _take(self, kind: str, params: Mapping[str, Any]) -> None:
        meta = params.get("_meta")
        id = meta.get(SUBSCRIPTION) if isinstance(meta, dict) else None
        name = self._names.get(id) if isinstance(id, int) else None
        if name is None:
            return
        self._has_progress = True
        if isinstance(params.get("cursor"), str):
            self._cursors[name] = params["cursor"]
        error = params.get("error")
        text = error.get("message") if isinstance(error, dict) else error
        match kind:
            case "event":
                self._print_event({key: value for key, value in params.items() if key != "_meta"})
            case "active" if params.get("truncated"):
                _warn(f"some events of {name} were missed")
            case "error":
                _warn(f"{name}: {text}")
            case "terminated":
                raise FollowingEndedError(f"{name}: {text}")
            case _:
                pass

    def _print_event(self, event: Mapping[str, Any]) -> None:
        if self._is_json:
            print_json_line(event, flush=True)
            return
        shown = convert(event, ReceivedEvent, "events/stream")
        cells = [f"{name}={_format_value(value)}" for name, value in shown.data.items() if value is not None]
        print(escape_unprintable("  ".join([shown.timestamp, shown.name, *cells])), flush=True)

    def _choose(self, types: Sequence[OfferedPart]) -> dict[str, Mapping[str, Any]]:
        """Return the types to follow, with their arguments. Raises UsageError."""
        if self._type is not None:
            found = _find(types, self._type, "events follow")
            return {found.name: parse_arguments("events follow", found.input_schema, self._words)}
        if left := [type.name for type in types if type.input_schema.required]:
            _warn(f"Not included (they need arguments): {', '.join(left)}")
        return {type.name: {} for type in types if not type.input_schema.required}


class FollowingEndedError(Exception):
    """The server follows a type no longer, and says why."""


async def _list_types(client: McpClient) -> list[OfferedPart]:
    return await list_all(client, "events/list", "events")


def _find(types: Sequence[OfferedPart], name: str, command: str) -> OfferedPart:
    """Return the type of that name. Raises UsageError."""
    named = {type.name: type for type in types}
    if name not in named:
        raise UsageError(f"{command}: unknown type {name!r}{suggest(name, named)}; types are {', '.join(named)}")
    return named[name]


def _format_value(value: Any) -> str:
    """Return a value on one short line, a text in quotes if it needs them."""
    if isinstance(value, str) and value and " " not in value and value.isprintable() and len(value) <= MAX_CELL:
        return value
    text = json_format.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"


def _warn(text: str) -> None:
    print(f"toolgate: {escape_unprintable(text)}", file=sys.stderr)
