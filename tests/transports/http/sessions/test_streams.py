"""Streams of the sessions era, in this process: resumption, polling, concurrency, expiry, and isolation."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from tests.servers.http_in_process import ADA, HELLO, Exchange, Inside, inside
from toolgate.server.protocol.errors import InvalidRequest
from toolgate.server.protocol.messages import Failure, Notification, Result
from toolgate.tools.api.registry import Registry
from toolgate.transports.http.sessions.event_stream import MAX_BYTES, MAX_EVENTS, EventStream


def run(body: Callable[[Inside], Awaitable[None]], folder: Path, **limits: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(2 * PATIENCE), inside(folder, **limits) as here:
            await body(here)

    asyncio.run(main())


async def until(check: Callable[[], bool]) -> None:
    """Poll for state that no message shows."""
    async with asyncio.timeout(PATIENCE):
        while not check():
            await asyncio.sleep(0.01)


async def after(here: Inside, session: str, event: str, **headers: str) -> Exchange:
    return await here.ask("GET", mcp_session_id=session, last_event_id=event, **headers).started()


def change(here: Inside) -> None:
    """Change the list of tools."""
    (first, *rest) = here.app.host.server().registry.parts
    here.app.host.server().swap_registry(Registry([*rest, first]))


def numbers(events: list[dict[str, str]]) -> list[str | None]:
    """Return the ids of events without the common stream name."""
    ids = [event.get("id") for event in events]
    assert len({id.rpartition("-")[0] for id in ids if id is not None}) <= 1
    return [id if id is None else id.rpartition("-")[2] for id in ids]


async def whole(call: Exchange) -> tuple[str, list[Any]]:
    """Return the name of a call's stream, and all its messages."""
    events = [event async for event in call.events()]
    name = events[-1]["id"].rpartition("-")[0]
    return name, [json.loads(event["data"]) for event in events if event.get("data")]


PROGRESS = "notifications/progress"


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
def test_a_call_may_let_its_reader_go_and_come_back_on_2025_11_25_only(tmp_path: Path, revision: str) -> None:
    async def body(here: Inside) -> None:
        session = await here.session(revision)
        events = [event async for event in here.call(session, 1, "pause").events()]
        ids = numbers(events)
        if revision == "2025-06-18":
            assert ids == [None, "1", "2a"]
            return
        assert ids == ["0", "1"]
        rest = await (await after(here, session, events[-1]["id"])).messages()
        assert rest[-1]["result"]["content"][0]["text"] == "after"

    run(body, tmp_path)


def test_a_hundred_calls_that_turn_into_streams_at_the_same_moment_are_all_answered(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session("2025-06-18")
        calls = [
            here.ask(
                "POST",
                {
                    "jsonrpc": "2.0",
                    "id": id,
                    "method": "tools/call",
                    "params": {"name": "wait", "arguments": {"seconds": 1.5}},
                },
                mcp_session_id=session,
            )
            for id in range(100)
        ]
        answers = await asyncio.gather(*(call.messages() for call in calls))
        assert [messages[-1]["id"] for messages in answers if messages] == list(range(100))

    run(body, tmp_path, patience=0.3)


def test_a_stream_ends_with_its_token_by_the_clock_of_all_servers(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session("2025-11-25")
        stream = here.ask("GET", mcp_session_id=session, x_until="2000000000.2")
        assert numbers([event async for event in stream.events()]) == ["0"]

    run(body, tmp_path, now=lambda: 2e9)


# -- resumption


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-06-18", "2025-11-25"])
def test_a_stream_begins_with_its_event_id_and_retry_on_2025_11_25_only(tmp_path: Path, revision: str) -> None:
    async def body(here: Inside) -> None:
        session = await here.session(revision)
        events = [event async for event in here.call(session, 1, "wait", {"seconds": 0.1}).events()]
        if revision == "2025-11-25":
            assert numbers(events[:1]) == ["0"]
            assert (events[0]["retry"], events[0]["data"]) == ("1000", "")
        else:
            assert events[0] == {"": "open"}
        assert numbers(events[1:]) == ["1", "2a"]

    run(body, tmp_path)


def test_work_goes_on_when_the_client_hangs_up_and_its_answer_can_be_resumed_once(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        call = here.call(session, 1, "wait", {"seconds": 0.5})
        event = await call.first(PROGRESS)
        await call.hang_up()
        assert here.streamable.running
        back = await after(here, session, event["id"])
        *_, last = [event async for event in back.events()]  # the progress was received, and is not sent again
        assert json.loads(last["data"])["result"]["content"][0]["text"] == "waited"
        assert numbers([event, last]) == ["1", "2a"]
        again = await after(here, session, last["id"])
        assert again.status == 204  # it has ended, and was read completely

    run(body, tmp_path)


def test_everything_after_the_event_is_replayed_in_order_and_nothing_of_another_stream(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        (mine, first), (others, second) = [await whole(here.call(session, id, "climb")) for id in (1, 2)]
        assert {note["params"]["progressToken"] for note in first[:-1]} == {"of 1"}
        for cursor in range(len(first)):
            assert await (await after(here, session, f"{mine}-{cursor}")).messages() == first[cursor:]
            assert await (await after(here, session, f"{others}-{cursor}")).messages() == second[cursor:]

    run(body, tmp_path)


NO_EVENTS = [
    "9-1",
    "S-9",
    "S",
    "",
    "S-",
    "S--1",
    "-",
    "S-²",
    "S-" + "9" * 5_000,
    "Sx-1",
    "xS-1",
    "S-0x1",
    "S-1aa",
    "S-a",
]


@pytest.mark.parametrize("event", NO_EVENTS)
def test_an_event_id_that_is_none_is_refused_but_the_session_stays(tmp_path: Path, event: str) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        name, _ = await whole(here.call(session, 1, "climb"))
        assert (await after(here, session, event.replace("S", name))).status == 400
        assert (await after(here, session, f"{name}-1")).status == 200

    run(body, tmp_path)


def test_a_second_reader_of_a_stream_takes_it_over(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        call = here.call(session, 1, "wait", {"seconds": 0.5})
        event = await call.first(PROGRESS)
        back = await after(here, session, event["id"])
        assert await call.messages() == []  # sent away
        assert len(await back.messages()) == 1

    run(body, tmp_path)


def test_a_connection_of_2025_11_25_is_closed_by_and_by_and_the_stream_is_polled(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        call = here.call(session, 1, "wait", {"seconds": 0.6})
        events = [event async for event in call.events()]
        polls = 0
        while not any("result" in event.get("data", "") for event in events):
            last = [event["id"] for event in events if "id" in event][-1]
            polls += 1
            back = await after(here, session, last)
            events += [event async for event in back.events()]
        assert polls >= 2
        assert numbers([event for event in events if event.get("data")]) == ["1", "2a"]

    run(body, tmp_path, poll=0.15)


def test_a_connection_of_an_older_revision_stays(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session("2025-06-18")
        assert len(await here.call(session, 1, "wait", {"seconds": 0.4}).messages()) == 2

    run(body, tmp_path, poll=0.1)


# -- the stream of a GET


def test_unrequested_messages_come_on_one_get_stream_only(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        streams = [await here.ask("GET", mcp_session_id=session).started() for _ in range(3)]
        call = here.call(session, 1, "wait", {"seconds": 0.3})
        await call.first(PROGRESS)
        change(here)
        await call.messages()
        gone = await here.ask("DELETE", mcp_session_id=session).started()
        assert gone.status == 204
        told = [message for stream in streams for message in await stream.messages()]
        assert [message["method"] for message in told] == ["notifications/tools/list_changed"]

    run(body, tmp_path)


def test_messages_wait_for_a_reader_and_are_sent_once(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        change(here)
        one = here.ask("GET", mcp_session_id=session)
        event = await one.first("notifications/tools/list_changed")
        await one.hang_up()
        change(here)
        other = here.ask("GET", mcp_session_id=session)
        assert (await other.first("notifications/tools/list_changed"))["id"] != event["id"]
        here.sessions.close_all()
        assert await other.messages() == []

    run(body, tmp_path)


def test_a_call_answers_on_its_own_stream_while_another_is_read(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        standing = await here.ask("GET", mcp_session_id=session).started()
        calls = [here.call(session, n, "wait", {"seconds": 0.2}) for n in range(8)]
        for n, call in enumerate(calls):
            note, answer = await call.messages()
            assert (note["params"]["progressToken"], answer["id"]) == (f"of {n}", n)
        await standing.hang_up()

    run(body, tmp_path)


def test_a_quiet_stream_has_a_ping(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        standing = here.ask("GET", mcp_session_id=session)
        pings = 0
        async for event in standing.events():
            pings += event == {"": "ping"}
            if pings == 3:
                break
        await standing.hang_up()

    run(body, tmp_path, pulse=0.05)


def test_silence_becomes_a_stream_and_an_early_answer_one_body(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        quick = {**message, "params": {"name": "wait", "arguments": {"seconds": 0}}}
        slow = {**message, "params": {"name": "wait", "arguments": {"seconds": 0.4}}}
        kinds = []
        for asked in (quick, slow):
            exchange = await here.ask("POST", asked, mcp_session_id=session).started()
            kinds.append(exchange.headers[b"content-type"])
            await exchange.task
        assert kinds == [b"application/json", b"text/event-stream"]

    run(body, tmp_path, patience=0.1)


# -- sessions


def test_an_idle_session_expires_and_one_that_is_read_or_works_does_not(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        idle, read, works = [await here.session() for _ in range(3)]
        standing = await here.ask("GET", mcp_session_id=read).started()
        call = here.call(works, 1, "wait", {"seconds": 1.2})
        event = await call.first(PROGRESS)
        await call.hang_up()
        await until(lambda: len(here.sessions) == 2)
        assert (await here.ask("DELETE", mcp_session_id=idle).started()).status == 404
        assert (await after(here, works, event["id"])).status == 200
        await standing.hang_up()
        await until(lambda: len(here.sessions) == 0)

    run(body, tmp_path, idle=0.3)


def test_beyond_the_ceiling_the_longest_idle_session_gives_way_and_a_busy_one_does_not(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        sessions = [await here.session() for _ in range(3)]
        standing = [await here.ask("GET", mcp_session_id=sessions[0]).started()]
        sessions.append(await here.session())
        found = [bool(here.sessions.find(id, ADA)) for id in sessions]
        assert found == [True, False, True, True]
        standing += [await here.ask("GET", mcp_session_id=id).started() for id in sessions[2:]]
        refused = await here.ask("POST", HELLO).started()
        assert (refused.status, refused.headers[b"retry-after"]) == (503, b"30")
        for stream in standing:
            await stream.hang_up()

    run(body, tmp_path, most=3)


def test_delete_calls_off_what_runs_and_ends_the_streams(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        call = here.call(session, 1, "wait", {"seconds": 30})
        await call.first(PROGRESS)
        assert (await here.ask("DELETE", mcp_session_id=session).started()).status == 204
        assert await call.messages() == []
        await until(lambda: not here.streamable.running)
        assert (await here.ask("DELETE", mcp_session_id=session).started()).status == 404

    run(body, tmp_path)


def test_an_initialize_that_is_refused_opens_no_session(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        answer = await here.ask("POST", {**HELLO, "params": {}}).json()
        assert answer["error"]["code"] == -32602
        await until(lambda: len(here.sessions) == 0)

    run(body, tmp_path)


def test_streams_that_were_not_fetched_are_forgotten_oldest_first(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        names = [(await whole(here.call(session, n, "climb")))[0] for n in range(70)]
        assert (await after(here, session, f"{names[0]}-0")).status == 400
        assert (await after(here, session, f"{names[-1]}-0")).status == 200
        held = here.sessions.find(session, ADA)
        assert held is not None and len(held.streams) <= 64
        for n in range(6):
            large = here.call(session, n, "wait_large", {"size": 3 * 2**20})
            await large.messages()
        assert sum(stream.size for stream in held.streams.values()) < 13 * 2**20

    run(body, tmp_path)


# -- isolation


def test_a_principal_can_not_use_another_principals_session(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        call = here.call(session, 7, "wait", {"seconds": 0.5})
        event = await call.first(PROGRESS)
        bob = {"mcp_session_id": session, "x_user": "bob"}
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        for stranger in (
            here.ask("POST", ping, **bob),
            here.ask("POST", cancel, **bob),
            here.ask("GET", **bob),
            here.ask("GET", last_event_id=event["id"], **bob),
            here.ask("DELETE", **bob),
        ):
            assert (await stranger.started()).status == 404
            await stranger.task
        other = here.ask("POST", HELLO, **bob)
        assert (await other.json())["id"] == "hello"
        assert other.headers[b"mcp-session-id"] not in (b"", session.encode())
        (answer,) = await call.messages()
        assert answer["id"] == 7
        assert "result" in answer

    run(body, tmp_path)


def test_ids_of_another_session_name_nothing_in_ones_own(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        ada, bob = await here.session(), await here.session(x_user="bob")
        call = here.call(ada, 7, "wait", {"seconds": 0.5})
        event = await call.first(PROGRESS)
        assert (await after(here, bob, event["id"], x_user="bob")).status == 400
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        answer = {"jsonrpc": "2.0", "id": 1, "result": {"action": "accept"}}
        for message in (cancel, answer):
            assert (await here.ask("POST", message, mcp_session_id=bob, x_user="bob").started()).status == 202
        assert "result" in (await call.messages())[-1]

    run(body, tmp_path)


def test_an_answer_to_a_question_counts_only_in_the_session_that_was_asked(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        asks = {"elicitation": {}}
        ada, bob = await here.session(capabilities=asks), await here.session(capabilities=asks, x_user="bob")
        call = here.call(ada, 1, "ask_in_group")
        asked = json.loads((await call.first("elicitation/create"))["data"])
        forged = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"name": "Eve"}}}
        assert (await here.ask("POST", forged, mcp_session_id=bob, x_user="bob").started()).status == 202
        true = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}
        assert (await here.ask("POST", true, mcp_session_id=ada).started()).status == 202
        (answer,) = await call.messages()
        assert answer["result"]["content"][0]["text"] == "decline"

    run(body, tmp_path)


def test_a_cancellation_of_the_stateless_era_stops_no_call(tmp_path: Path) -> None:
    """Request ids and subscription ids belong to a connection: the same id on two connections names two requests."""

    async def body(here: Inside) -> None:
        stateless = {"mcp_protocol_version": "2026-07-28", "mcp_method": "subscriptions/listen"}
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
        listen = {"jsonrpc": "2.0", "id": "same", "method": "subscriptions/listen", "params": params}
        acknowledged = "notifications/subscriptions/acknowledged"
        ada, bob = here.ask("POST", listen, **stateless), here.ask("POST", listen, x_user="bob", **stateless)
        await ada.first(acknowledged)
        await bob.first(acknowledged)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "same"}}
        note = await here.ask("POST", cancel, x_user="bob", mcp_protocol_version="2026-07-28").started()
        assert note.status == 202
        await bob.hang_up()
        assert len(here.app.host.server().notifications.subscriptions) == 1
        change(here)
        await ada.first("notifications/tools/list_changed")
        await ada.hang_up()
        assert not here.app.host.server().notifications.subscriptions

    run(body, tmp_path)


# -- limits of a stream


def note(n: int, method: str = "notifications/tools/list_changed", size: int = 0) -> Notification:
    return Notification(method, {"n": n, "x": "x" * size})


def on_a_loop(body: Callable[[EventStream], None]) -> None:
    async def main() -> None:
        body(EventStream("s", numbered=True))

    asyncio.run(main())


def test_a_full_stream_drops_progress_first_and_then_its_oldest() -> None:
    def body(stream: EventStream) -> None:
        for n in range(MAX_EVENTS):
            stream.send(note(n))
        stream.send(note(-1, PROGRESS))
        assert stream.last == MAX_EVENTS
        stream.send(Result(1, {}))
        assert len(stream.events_after(0)) == MAX_EVENTS
        assert stream.has_gap(0) and not stream.has_gap(1)
        assert stream.events_after(0)[0].startswith(b"id: s-2\r\n")
        assert b'"result"' in stream.events_after(0)[-1]

    on_a_loop(body)


def test_a_stream_is_bounded_in_bytes_but_a_large_message_waits_for_its_reader() -> None:
    def body(stream: EventStream) -> None:
        for n in range(12):
            stream.send(note(n, size=2**20))
        assert stream.size <= MAX_BYTES + 2**20 + 200
        assert len(stream.events_after(0)) == 4
        stream.send(note(99, size=3 * MAX_BYTES))
        assert len(stream.events_after(0)) == 1
        stream.send(Result(1, {}))
        assert len(stream.events_after(0)) == 2
        stream.end()
        stream.send(Failure(1, InvalidRequest("late")))
        assert stream.last == 14

    on_a_loop(body)


def test_a_large_answer_drops_no_answer_that_its_reader_waits_for() -> None:
    def body(stream: EventStream) -> None:
        stream.send(Result(1, {}))
        for id in (2, 3):
            stream.send(Result(id, {"x": "x" * 2 * MAX_BYTES}))
        assert len(stream.events_after(0)) == 3 and not stream.has_gap(0)
        stream.sent = stream.last  # from now on they wait only for a reader that lost them
        stream.send(Result(4, {}))
        assert len(stream.events_after(0)) == 2

    on_a_loop(body)
