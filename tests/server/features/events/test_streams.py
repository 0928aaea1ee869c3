"""Streams of several principals over HTTP: their limits, their ends, and readers that do not keep up."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, STATELESS
from tests.server.features.events.event_service import events_of
from tests.servers.http_in_process import Exchange, Inside, inside, named
from toolgate.server.base.principals.scopes import READ, WORKFLOW
from toolgate.server.features.events.delivery.streams import MAX_OWN_STREAMS
from toolgate.server.features.events.log.rows import EventFilter
from toolgate.server.features.events.method_rows import list_methods
from toolgate.server.features.events.sources import types as types
from toolgate.tools.api.registry import Registry

PREFIX = "io.modelcontextprotocol/"
META = {f"{PREFIX}protocolVersion": STATELESS, f"{PREFIX}clientCapabilities": {}}


def run(body: Callable[[Inside], Coroutine[Any, Any, None]], folder: Path) -> None:
    async def main() -> None:
        async with inside(folder) as here:
            events_of(here.app).log.start()
            await body(here)

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))


def stream(here: Inside, who: str, cursor: str | None = None, session: str | None = None) -> Exchange:
    params = {"name": "todo.changed", "arguments": {}, "cursor": cursor}
    message = {"jsonrpc": "2.0", "id": 1, "method": "events/stream", "params": params}
    if session is not None:
        return here.ask("POST", message, mcp_session_id=session, x_user=who)
    modern = {**message, "params": {**params, "_meta": META}}
    return here.ask("POST", modern, mcp_protocol_version=STATELESS, mcp_method="events/stream", x_user=who)


async def active(opened: Exchange) -> dict[str, Any]:
    event = await opened.first("notifications/events/active")
    found: dict[str, Any] = json.loads(event["data"])["params"]
    return found


async def happen(here: Inside, who: str, name: str) -> None:
    payload = types.TodoChangePayload(1, name, "created", None, completed=False, open_steps=0)
    await events_of(here.app).log.emit(named(who), types.todo_changed, payload)


async def next_name(opened: Exchange) -> str:
    event = await opened.first("notifications/events/event")
    name: str = json.loads(event["data"])["params"]["data"]["name"]
    return name


def test_each_principal_gets_its_own_events_alone(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        opened = {who: stream(here, who) for who in ("ada", "bob")}
        for each in opened.values():
            await active(each)
        for who in opened:
            await happen(here, who, f"of {who}")
        for who, each in opened.items():
            assert await next_name(each) == f"of {who}"
            await each.hang_up()
        assert len(events_of(here.app).streams) == 0

    run(body, tmp_path)


def test_a_cursor_of_another_principal_is_refused(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        opened = stream(here, "ada")
        cursor = (await active(opened))["cursor"]
        await opened.hang_up()
        assert (await stream(here, "bob", cursor).json())["error"]["code"] == -32602

    run(body, tmp_path)


@pytest.mark.parametrize("has_session", [False, True])
def test_a_stream_ends_when_its_reader_leaves(tmp_path: Path, has_session: bool) -> None:
    async def body(here: Inside) -> None:
        session = await here.session(x_user="ada") if has_session else None
        opened = stream(here, "ada", session=session)
        await active(opened)
        assert len(events_of(here.app).streams) == 1
        await opened.hang_up()
        async with asyncio.timeout(PATIENCE):
            while len(events_of(here.app).streams) or len(here.streamable.running):
                await asyncio.sleep(0)

    run(body, tmp_path)


def test_the_streams_of_one_principal_are_bounded(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        opened = [stream(here, "ada") for _ in range(MAX_OWN_STREAMS)]
        for each in opened:
            await active(each)
        error = (await stream(here, "ada").json())["error"]
        assert (error["code"], error["data"]) == (-32013, {"limit": "streams", "max": MAX_OWN_STREAMS})
        other = stream(here, "bob")
        await active(other)
        for each in (*opened, other):
            await each.hang_up()

    run(body, tmp_path)


def test_a_revoked_grant_ends_its_streams_and_says_so(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        mine, other = stream(here, "ada"), stream(here, "bob")
        await active(mine)
        await active(other)
        assert set(events_of(here.app).rights()) == {("ada", "client"), ("bob", "client")}
        await events_of(here.app).terminate_rights({("ada", "client")})
        *_, terminated, result = await mine.messages()
        assert terminated["method"] == "notifications/events/terminated"
        assert terminated["params"]["error"]["code"] == -32012
        assert result["result"]["resultType"] == "complete"
        await happen(here, "bob", "goes on")
        assert await next_name(other) == "goes on"
        await other.hang_up()

    run(body, tmp_path)


def test_an_answer_on_the_page_is_stored_for_its_principal_before_the_page_says_so(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        log, questions = events_of(here.app).log, here.app.host.server().questions
        filters = [EventFilter(named(who), "question.answered", "{}") for who in ("ada", "bob")]
        begin = [(await log.read_page(each, None, 1)).position for each in filters]
        asked = questions.find_or_add(named("ada"), "call", "q", tool="Bash", client="c", message="?", schema={})
        assert await questions.answer_any(named("ada"), asked.view.id, "decline") is None
        page = await log.read_page(filters[0], begin[0], 1)  # a server that is killed now has told it
        told = json.loads(page.events[0].data)
        assert told == {"id": asked.view.id, "tool": "Bash", "action": "decline", "is_approval": False}
        assert not (await log.read_page(filters[1], begin[1], 1)).events

    run(body, tmp_path)


def test_a_type_needs_the_scope_of_what_it_tells_about() -> None:
    server: Any = SimpleNamespace(registry_of=lambda principal: Registry(types.EVENTS))
    rows = list_methods(lambda: server, server)
    polled, tested = rows["events/poll"].scopes, rows["toolgate/events/test"].scopes
    assert polled({"name": "callback.fired"}, "") == {WORKFLOW}
    assert polled({"name": "command.ended"}, "") == {READ}
    assert polled({"name": "no.such"}, "") == {READ}
    assert tested({"name": "command.ended"}, "") == {READ, WORKFLOW}


@pytest.mark.soak  # 12 s: each event is written to disk
def test_a_reader_that_does_not_keep_up_gets_all_later_and_holds_little(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        opened = stream(here, "ada")
        await active(opened)
        held = here.streamable.streams
        channel = next(iter(held))
        for number in range(2_000):
            await happen(here, "ada", f"{number:04} " + "x" * 2_000)
        assert channel.size < 4 * 2**20
        names = list[str]()
        async for event in opened.events():
            message = json.loads(event["data"]) if event.get("data") else {}
            if message.get("method") == "notifications/events/event":
                names.append(message["params"]["data"]["name"][:4])
            if len(names) == 2_000:
                break
        assert names == [f"{number:04}" for number in range(2_000)]
        await opened.hang_up()

    run(body, tmp_path)
