"""Sessions of Streamable HTTP that continue after the server's end, by SIGTERM or `kill -9`: their owners, their state,
their streams, and those that never come back."""

import asyncio
import base64
import contextlib
import json
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, STATELESS, eventually
from tests.clients.raw_http_client import POSTED, Site, events, site
from tests.conftest import PROBE
from tests.folder_contents import read_files
from tests.needed_features import require
from tests.server.cli.commands.test_user_and_client import PASSWORD, command, granted, registered
from tests.servers.http_in_process import ADA, Inside, inside
from tests.servers.reserved_port import kept_port
from toolgate.server.protocol.interruption import INTERRUPTED
from toolgate.server.protocol.revisions import WITH_SESSION
from toolgate.server.state.rows.sessions import MAX_DETAILS
from toolgate.transports.http.sessions.event_ids import StreamNames

ENDS = [signal.SIGTERM, signal.SIGKILL]
VERSION = "2025-11-25"
META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
}

WAIT = {"name": "wait", "arguments": {"seconds": 30}}
WAITING = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {**WAIT, "_meta": META}}
MODERN = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": "wait"}


def end(listening: Site, number: int) -> None:
    listening.process.send_signal(number)
    listening.process.wait(PATIENCE)


@contextlib.contextmanager
def after(folder: Path, number: int, *options: str) -> Iterator[Callable[[], Site]]:
    """Yield `restarted()`, which ends the server by the signal and starts the next one on the same state."""
    with contextlib.ExitStack() as stack:
        lives: list[Site] = []

        def restarted() -> Site:
            if lives:
                end(lives[-1], number)
            lives.append(stack.enter_context(site(folder, *PROBE, *options)))
            return lives[-1]

        yield restarted


def begin(listening: Site, revision: str = VERSION, **capabilities: Any) -> str:
    params = {
        "protocolVersion": revision,
        "capabilities": capabilities,
        "clientInfo": {"name": "tests", "version": "1"},
    }
    response, _, _ = listening.ask("POST", "/mcp", message("initialize", params))
    session = response.getheader("mcp-session-id")
    assert session
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert listening.ask("POST", "/mcp", note, mcp_session_id=session)[0].status == 202
    return session


def message(method: str, params: Any = None, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


def status(listening: Site, session: str, method: str = "POST") -> int:
    return listening.ask(method, "/mcp", message("ping") if method == "POST" else None, mcp_session_id=session)[
        0
    ].status


def called(listening: Site, session: str, tool: str, **arguments: Any) -> Any:
    """Return the result of a call that ends within a second."""
    asked = message("tools/call", {"name": tool, "arguments": arguments})
    _, _, answer = listening.ask("POST", "/mcp", asked, mcp_session_id=session)
    return answer["result"]


def stateless(listening: Site, tool: str, **arguments: Any) -> Any:
    asked = message("tools/call", {"name": tool, "arguments": arguments, "_meta": META})
    told = {"mcp_protocol_version": STATELESS, "mcp_method": "tools/call", "mcp_name": tool}
    return listening.ask("POST", "/mcp", asked, **told)[2]["result"]


def text(result: Any) -> str:
    return str(result["content"][0]["text"])


def rows(state: Path, statement: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(state / "state.db")) as connection:
        found = connection.execute(statement).fetchall()
        connection.commit()
    return found


@contextlib.contextmanager
def streaming(
    listening: Site, session: str, body: Any = None, last: str | None = None, method: str = "POST"
) -> Iterator[Iterator[dict[str, str]]]:
    """Yield the events of a stream as they arrive."""
    headers = {"Mcp-Session-Id": session, "Accept": "application/json, text/event-stream"}
    headers |= {"Content-Type": "application/json"} if body is not None else {}
    headers |= {"Last-Event-ID": last} if last is not None else {}
    with contextlib.closing(listening.connect()) as connection:
        connection.request(method, "/mcp", None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield events(response)


def resumed(listening: Site, session: str, last: str) -> list[dict[str, str]]:
    with streaming(listening, session, last=last, method="GET") as found:
        return list(found)


def data(found: list[dict[str, str]]) -> list[Any]:
    return [json.loads(event["data"]) for event in found if event.get("data")]


def call(id: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    return message("tools/call", {"name": tool, "arguments": arguments, "_meta": {"progressToken": f"of {id}"}}, id)


# -- continued sessions


@pytest.mark.brief("9")
@pytest.mark.parametrize("number", ENDS)
def test_a_session_goes_on_where_it_was(tmp_path: Path, number: int) -> None:
    with after(tmp_path, number) as restarted:
        first = restarted()
        session, other = begin(first, "2025-06-18"), begin(first)
        called(first, session, "Bash", command="mkdir -p deep/er && cd deep/er")
        called(first, session, "TaskManager", action="create", query="repair the lamp", text="repair the lamp")
        called(first, other, "PlanMode", action="enter", goal="think")
        for _ in range(2):
            later = restarted()
            assert text(called(later, session, "Bash", command="pwd")).strip().endswith("/deep/er")
            assert "while a plan is active" in text(called(later, other, "Bash", command="mkdir planned"))
            assert "think" in text(called(later, other, "PlanMode", action="status"))
            assert "repair the lamp" in text(called(later, session, "TaskManager", action="list", query=""))


@pytest.mark.brief("9")
@pytest.mark.parametrize("number", ENDS)
def test_a_client_without_a_session_keeps_its_working_directory(tmp_path: Path, number: int) -> None:
    with after(tmp_path, number) as restarted:
        stateless(restarted(), "Bash", command="mkdir -p deep/er && cd deep/er")
        second = restarted()
        assert text(stateless(second, "Bash", command="pwd")).strip().endswith("/deep/er")
        stateless(second, "Bash", command="cd ../.. && rm -r deep && mkdir other && cd other")
        third = restarted()
        assert text(stateless(third, "Bash", command="pwd; rmdir $PWD")).strip().endswith("/other")
        fourth = restarted()
        assert "the working directory" in text(stateless(fourth, "Bash", command="pwd"))


def test_what_a_client_declared_and_subscribed_to_is_remembered(tmp_path: Path) -> None:
    with after(tmp_path, signal.SIGKILL) as restarted:
        first = restarted()
        session = begin(first, elicitation={})
        ask = message("resources/subscribe", {"uri": "note://one"})
        assert first.ask("POST", "/mcp", ask, mcp_session_id=session)[2]["result"] == {}
        second = restarted()
        with streaming(second, session, method="GET") as heard:
            next(heard)
            called(second, session, "write_note", name="one", text="new")
            told = next(json.loads(event["data"]) for event in heard if event.get("data"))
            assert told["params"] == {"uri": "note://one"}
        with streaming(second, session, call(1, "ask")) as heard:
            asked = next(json.loads(event["data"]) for event in heard if "elicitation/create" in event.get("data", ""))
            assert asked["id"] > 1_000  # the first server can't have used it: an answer to that would fit this


# -- streams


def test_a_call_interrupted_by_kill_9_gets_an_error_and_no_other(tmp_path: Path) -> None:
    with after(tmp_path, signal.SIGKILL) as restarted:
        first = restarted()
        session = begin(first)
        with streaming(first, session, call("mine", "wait", seconds=30)) as heard:
            last = next(event["id"] for event in heard if event.get("data"))
            second = restarted()
        found = resumed(second, session, last)
        (answer,) = data(found)
        assert answer["id"] == "mine" and answer["error"] == {"code": -32603, "message": INTERRUPTED}
        assert data(resumed(second, session, last)) == [answer]  # the client may have lost that, too
        assert (
            second.ask(
                "GET", "/mcp", mcp_session_id=session, accept="text/event-stream", last_event_id=found[-1]["id"]
            )[0].status
            == 204
        )
        assert text(called(second, session, "echo", text="on")) == "on"


def test_an_undelivered_answer_is_delivered_once_after_sigterm(tmp_path: Path) -> None:
    with after(tmp_path, signal.SIGTERM) as restarted:
        first = restarted()
        session = begin(first)
        with streaming(first, session, call(7, "wait", seconds=1.5)) as heard:
            last = next(event["id"] for event in heard if event.get("data"))
        second = restarted()  # which lets the call end first
        found = resumed(second, session, last)
        (answer,) = data(found)
        assert answer["id"] == 7 and text(answer["result"]) == "waited"
        final = found[-1]["id"]
        assert (
            second.ask("GET", "/mcp", mcp_session_id=session, accept="text/event-stream", last_event_id=final)[0].status
            == 204
        )
        third = restarted()
        assert (
            third.ask("GET", "/mcp", mcp_session_id=session, accept="text/event-stream", last_event_id=final)[0].status
            == 204
        )
        end(third, signal.SIGKILL)
        fourth = restarted()
        assert data(resumed(fourth, session, last)) == [answer]  # as to a client that has not received it yet


def test_sigterm_tells_a_call_that_outlasts_the_grace_that_it_is_lost(tmp_path: Path) -> None:
    with after(tmp_path, signal.SIGTERM, "--grace", "0.2") as restarted:
        first = restarted()
        session = begin(first)
        with streaming(first, session, call(1, "wait", seconds=30)) as heard:
            last = next(event["id"] for event in heard if event.get("data"))
            second = restarted()
            (answer,) = data(list(heard))
        assert answer["error"]["message"] == INTERRUPTED
        assert data(resumed(second, session, last)) == [answer]


@pytest.mark.brief("15")
@pytest.mark.parametrize("number", ENDS)
def test_the_stream_of_a_get_goes_on_under_ids_that_were_never_used(tmp_path: Path, number: int) -> None:
    with after(tmp_path, number) as restarted:
        session = begin(restarted())
        seen: set[str] = set()
        last = None
        for _ in range(3):
            now = restarted()
            with streaming(now, session, method="GET", last=last) as heard:
                ask = message("resources/subscribe", {"uri": "note://one"})
                now.ask("POST", "/mcp", ask, mcp_session_id=session)
                called(now, session, "write_note", name="one", text="new")
                last = next(event["id"] for event in heard if event.get("data"))
            assert last not in seen
            seen.add(last)


@pytest.mark.parametrize("asked", [b"", b"{", b'{"a": 1}', b"[{}]", b"1.5", b"[" * 20_000])
def test_a_forged_event_id_is_unknown(shared: Site, asked: bytes) -> None:
    session = begin(shared)
    packed = base64.urlsafe_b64encode(asked).decode().rstrip("=") or "a"  # one character of base64 is no byte
    name = StreamNames(session).sign(f"00000000.1.{packed}")
    told = {"mcp_session_id": session, "last_event_id": f"{name}-1", "accept": "text/event-stream"}
    assert shared.ask("GET", "/mcp", **told)[0].status == 400


def test_event_ids_of_another_session_are_unknown_after_a_restart_too(tmp_path: Path) -> None:
    with after(tmp_path, signal.SIGKILL) as restarted:
        first = restarted()
        mine, other = begin(first), begin(first)
        with streaming(first, other, call(1, "wait", seconds=30)) as heard:
            last = next(event["id"] for event in heard if event.get("data"))
        second = restarted()
        name, _, number = last.rpartition("-")
        made_up = f"{name[:-1]}{'0' if name[-1] != '0' else '1'}-{number}"
        for event in (last, made_up, "", "-", "a.b.c.d-1", "ü.1..x-1", f"{name}-1x", "x" * 10_000):
            answer = second.ask("GET", "/mcp", mcp_session_id=mine, accept="text/event-stream", last_event_id=event)
            assert answer[0].status == 400, event


def test_an_answer_to_an_earlier_servers_question_is_ignored(tmp_path: Path) -> None:
    with after(tmp_path, signal.SIGKILL) as restarted:
        first = restarted()
        session = begin(first, elicitation={})
        with streaming(first, session, call("asks", "ask")) as heard:
            event = next(event for event in heard if "elicitation/create" in event.get("data", ""))
            second = restarted()
        late = {"jsonrpc": "2.0", "id": json.loads(event["data"])["id"], "result": {"action": "accept", "content": {}}}
        assert second.ask("POST", "/mcp", late, mcp_session_id=session)[0].status == 202
        (answer,) = data(resumed(second, session, event["id"]))
        assert (answer["id"], answer["error"]["message"]) == ("asks", INTERRUPTED)


def test_each_request_of_a_batch_gets_its_error(tmp_path: Path) -> None:
    with after(tmp_path, signal.SIGKILL) as restarted:
        first = restarted()
        session = begin(first, "2025-03-26")
        both = [call(1, "wait", seconds=30), call("two", "wait", seconds=30)]
        with streaming(first, session, both) as heard:
            last = next(event["id"] for event in heard if event.get("data"))
            second = restarted()
        (answers,) = data(resumed(second, session, last))
        assert {answer["id"]: answer["error"]["message"] for answer in answers} == {1: INTERRUPTED, "two": INTERRUPTED}


# -- ended sessions


@pytest.mark.brief("9")
@pytest.mark.parametrize("number", ENDS)
def test_a_session_that_was_deleted_never_comes_back(tmp_path: Path, number: int) -> None:
    with after(tmp_path, number) as restarted:
        first = restarted()
        ended, kept = begin(first), begin(first)
        assert status(first, ended, "DELETE") == 204
        second = restarted()
        assert (status(second, ended), status(second, kept)) == (404, 200)
        third = restarted()
        assert status(third, kept, "DELETE") == 204  # by its first request here
        assert status(restarted(), kept) == 404


NO_DELETE = "CREATE TRIGGER no BEFORE DELETE ON session BEGIN SELECT RAISE(ABORT, 'no'); END"


def test_a_session_that_was_deleted_while_the_state_failed_never_comes_back(tmp_path: Path) -> None:
    with after(tmp_path, signal.SIGTERM) as restarted:
        first = restarted()
        session = begin(first)
        rows(first.state, NO_DELETE)
        assert [status(first, session, "DELETE") for _ in range(2)] == [503, 404]
        rows(first.state, "DROP TRIGGER no")
        assert status(restarted(), session) == 404


def test_the_state_holds_no_usable_session_id(tmp_path: Path) -> None:
    with after(tmp_path, signal.SIGTERM) as restarted:
        first = restarted()
        session = begin(first)
        called(first, session, "TaskManager", action="create", query="", text="one")
        called(first, session, "SetCallback", action="set", message="tea", delay_seconds=3600)
        second = restarted()
        found = b"".join(read_files(first.state).values())
        assert session.encode() not in found
        ((digest,),) = rows(first.state, "SELECT id FROM session")
        assert status(second, digest) == 404
        assert status(second, session) == 200


def test_forged_session_ids_write_nothing(tmp_path: Path) -> None:
    with after(tmp_path, signal.SIGKILL) as restarted:
        session = begin(restarted())
        second = restarted()
        assert status(second, session) == 200
        sizes = [path.stat().st_size for path in sorted(second.state.glob("state.db*"))]
        assert {status(second, f"{n:032}") for n in range(200)} == {404}
        assert [path.stat().st_size for path in sorted(second.state.glob("state.db*"))] == sizes
        assert status(second, session) == 200


BROKEN = [
    "UPDATE session SET details = '{'",
    "UPDATE session SET details = 'null'",
    "UPDATE session SET details = NULL WHERE 0; UPDATE session SET details = x'ff'",
    "UPDATE session SET details = replace(CAST(details AS TEXT), '2025-11-25', '2026-07-28')",
    "UPDATE session SET details = replace(CAST(details AS TEXT), '\"log_level\":1', '\"log_level\":99')",
    "UPDATE session SET seen_at = 'x'",
]


@pytest.mark.brief(*BROKEN[::2])
@pytest.mark.parametrize("how", BROKEN)
def test_a_damaged_record_costs_its_session_alone(tmp_path: Path, how: str) -> None:
    with after(tmp_path, signal.SIGKILL) as restarted:
        first = restarted()
        session = begin(first)
        end(first, signal.SIGKILL)
        for statement in how.split("; "):
            rows(first.state, statement)
        second = restarted()
        assert status(second, session) == 404
        assert status(second, begin(second)) == 200


def test_a_client_that_declares_megabytes_is_served_and_not_remembered(tmp_path: Path) -> None:
    with after(tmp_path, signal.SIGKILL) as restarted:
        first = restarted()
        large, small = begin(first, experimental={"x": "x" * MAX_DETAILS}), begin(first)
        assert (status(first, large), status(first, small)) == (200, 200)
        second = restarted()
        assert (status(second, large), status(second, small)) == (404, 200)


def test_a_client_that_declares_deep_json_is_served_like_others(shared: Site) -> None:
    for depth in range(900, 1_000):  # somewhere in here JSON can be read but not written inside another object
        asked = json.dumps(message("initialize", {"protocolVersion": VERSION, "capabilities": {"x": "deep"}}))
        answer = shared.ask("POST", "/mcp", asked.replace('"deep"', "[" * depth + "]" * depth).encode())[2]
        assert "result" in answer or answer["error"]["code"] == -32700, (depth, answer)


def test_a_server_that_starts_while_the_state_is_held_takes_sessions_up_when_it_is_not(tmp_path: Path) -> None:
    with after(tmp_path, signal.SIGTERM) as restarted:
        first = restarted()
        session = begin(first)
        end(first, signal.SIGTERM)
        with contextlib.closing(sqlite3.connect(first.state / "state.db", isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            second = restarted()
            assert eventually(lambda: "held by another process" in second.log())
        assert status(second, session) == 200


def test_a_server_whose_state_fails_at_its_start_loses_no_session(tmp_path: Path) -> None:
    with after(tmp_path, signal.SIGTERM) as restarted:
        first = restarted()
        session, other = begin(first), begin(first)
        end(first, signal.SIGTERM)
        rows(first.state, "ALTER TABLE session RENAME TO away")
        second = restarted()
        assert eventually(lambda: "sessions of earlier processes can't be recalled" in second.log())
        assert (status(second, session), status(second, session, "DELETE")) == (503, 503)
        rows(first.state, "ALTER TABLE away RENAME TO session")
        assert eventually(lambda: status(second, session) == 200)
        assert (status(second, other), status(second, "made-up")) == (200, 404)


def test_two_servers_on_one_state_leave_each_other_their_sessions(tmp_path: Path) -> None:
    with site(tmp_path, *PROBE) as one:
        session = begin(one)
        (tmp_path / "two").mkdir()
        with site(tmp_path / "two", *PROBE, "--state", str(one.state)) as two:
            assert status(two, session) == 404
            assert status(one, session) == 200


@pytest.mark.brief("9")
@pytest.mark.parametrize("number", ENDS)
def test_several_servers_on_one_state_each_resume_their_clients_sessions(tmp_path: Path, number: int) -> None:
    (tmp_path / "two").mkdir()
    with after(tmp_path, number) as restarted, contextlib.ExitStack() as stack:

        def second() -> Site:
            return stack.enter_context(site(tmp_path / "two", *PROBE, "--state", str(one.state)))

        one = restarted()
        two = second()
        first, other, ended = begin(one), begin(two), begin(two)
        end(two, number)
        one = restarted()  # knows them all
        two = second()
        assert (status(two, other), status(one, first), status(one, other)) == (200, 200, 404)
        assert status(one, ended, "DELETE") == 204
        assert (status(two, ended), status(two, other), status(one, first)) == (404, 200, 200)
        end(two, number)
        assert status(restarted(), other) == 200


def test_a_state_that_can_t_be_written_does_not_keep_a_client_from_a_session(tmp_path: Path) -> None:
    with site(tmp_path, *PROBE) as listening:
        session = begin(listening)
        rows(listening.state, "CREATE TRIGGER no BEFORE INSERT ON session BEGIN SELECT RAISE(ABORT, 'no'); END")
        other = begin(listening)
        assert (status(listening, session), status(listening, other)) == (200, 200)
        assert "a session is not saved" in listening.log()


@pytest.mark.parametrize("table", ["session", "place"])
def test_a_session_that_can_not_be_stored_costs_no_attempt_per_call(tmp_path: Path, table: str) -> None:
    with site(tmp_path, *PROBE) as listening:
        session = begin(listening)
        ask = partial(called, listening, session) if table == "session" else partial(stateless, listening)
        ask("Bash", command="mkdir -p one two; cd one")
        what = "UPDATE" if table == "session" else "INSERT"
        rows(listening.state, f"CREATE TRIGGER no BEFORE {what} ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END")
        ask("Bash", command="cd ../two")
        for _ in range(3):
            assert text(ask("Bash", command="pwd")).strip().endswith("/two")
        assert listening.log().count("refused the work; nothing was changed") == 1


# -- inside one process: owners, limits, expiry


def run(*bodies: Callable[[Inside], Any], folder: Path, **limits: Any) -> None:
    """Run each body with its own server in one process: each resumes the sessions of the one before."""

    async def main() -> None:
        for body in bodies:
            async with asyncio.timeout(2 * PATIENCE), inside(folder, remembers=True, **limits) as here:
                await body(here)

    asyncio.run(main())


async def answered(here: Inside, session: str, user: str = "ada") -> int:
    return (await here.ask("POST", message("ping"), mcp_session_id=session, x_user=user).started()).status


def test_only_its_owner_can_resume_a_session(tmp_path: Path) -> None:
    session = ""

    async def first(here: Inside) -> None:
        nonlocal session
        session = await here.session()

    async def second(here: Inside) -> None:
        for method in ("GET", "DELETE"):
            assert (await here.ask(method, mcp_session_id=session, x_user="eve").started()).status == 404
        assert await answered(here, session, "eve") == 404
        assert await answered(here, session) == 200
        assert await answered(here, session, "eve") == 404

    run(first, second, folder=tmp_path)


def test_a_grant_revoked_between_two_servers_ends_its_dormant_sessions(tmp_path: Path) -> None:
    session = ""

    async def first(here: Inside) -> None:
        nonlocal session
        session = await here.session()

    async def second(here: Inside) -> None:
        (right,) = here.sessions.rights()
        asked = here.ask("POST", message("ping"), mcp_session_id=session)  # which is looking for it
        await asyncio.sleep(0)
        here.sessions.close_by_rights([right])
        assert (await asked.started()).status == 404
        assert await answered(here, session) == 404

    async def third(here: Inside) -> None:
        assert await answered(here, session) == 404

    run(first, second, third, folder=tmp_path)


def test_concurrent_requests_resume_one_session(tmp_path: Path) -> None:
    session = ""

    async def first(here: Inside) -> None:
        nonlocal session
        session = await here.session()

    async def second(here: Inside) -> None:
        assert await asyncio.gather(*(answered(here, session) for _ in range(20))) == [200] * 20
        assert len(here.sessions) == 1

    async def third(here: Inside) -> None:
        both = here.ask("DELETE", mcp_session_id=session), here.ask("POST", message("ping"), mcp_session_id=session)
        deleted, pinged = [await exchange.started() for exchange in both]
        assert deleted.status == 204 and pinged.status in (200, 404)
        assert await answered(here, session) == 404
        assert len(here.sessions) == 0

    run(first, second, third, folder=tmp_path)


def test_time_without_a_server_counts_towards_a_sessions_expiry(tmp_path: Path) -> None:
    sessions: list[str] = []
    now = time.time()

    async def first(here: Inside) -> None:
        sessions.append(await here.session())

    async def later(here: Inside) -> None:
        sessions.append(await here.session())
        assert await answered(here, sessions[0]) == 200

    async def latest(here: Inside) -> None:
        assert await answered(here, sessions[0]) == 404
        assert await answered(here, sessions[1]) == 404
        assert len(here.sessions) == 0

    async def main() -> None:
        for body, passed in ((first, 0), (later, 1_000), (latest, 3_000)):
            async with (
                asyncio.timeout(2 * PATIENCE),
                inside(tmp_path, remembers=True, now=lambda passed=passed: now + passed) as here,
            ):
                await body(here)

    asyncio.run(main())
    assert rows(tmp_path / "state", "SELECT id FROM session") == []


def test_a_dormant_session_expires_when_its_time_has_come(tmp_path: Path) -> None:
    async def first(here: Inside) -> None:
        await here.session()

    async def second(here: Inside) -> None:
        assert len(here.sessions) == 1
        async with asyncio.timeout(PATIENCE):
            while len(here.sessions):
                await asyncio.sleep(0.05)

    run(first, second, folder=tmp_path, idle=2.0)
    assert rows(tmp_path / "state", "SELECT id FROM session") == []


def test_dormant_sessions_count_and_give_way_like_others(tmp_path: Path) -> None:
    sessions: list[str] = []

    async def first(here: Inside) -> None:
        for _ in range(3):
            sessions.append(await here.session())
            await asyncio.sleep(0.01)  # the clock tells which was used last

    async def second(here: Inside) -> None:
        assert await answered(here, sessions[0]) == 200
        sessions.append(await here.session())
        assert [await answered(here, id) for id in sessions] == [200, 404, 200, 200]
        assert len(here.sessions) == 3

    run(first, second, folder=tmp_path, each=3)
    assert len(rows(tmp_path / "state", "SELECT id FROM session")) == 3


def test_a_server_resumes_no_more_sessions_than_its_limit(tmp_path: Path) -> None:
    async def first(here: Inside) -> None:
        await here.session()

    async def second(here: Inside) -> None:
        assert len(here.sessions) == 500

    run(first, folder=tmp_path)
    rows(
        tmp_path / "state",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) INSERT INTO session "
        "SELECT printf('%064d', i), issuer, subject, client, process, details, began_at, seen_at + i * 0.001 "
        "FROM session, n",
    )
    began = time.monotonic()
    run(second, folder=tmp_path, most=500)
    assert time.monotonic() - began < PATIENCE
    assert rows(tmp_path / "state", "SELECT count(*) FROM session") == [(500,)]


def test_a_server_that_is_ending_loses_no_session(tmp_path: Path) -> None:
    session = ""

    async def first(here: Inside) -> None:
        nonlocal session
        session = await here.session()
        here.streamable.running.is_ending = True
        await here.sessions.suspend_all()
        for method in ("GET", "DELETE"):
            assert (await here.ask(method, mcp_session_id=session).started()).status == 503
        assert await answered(here, session) == 503

    async def second(here: Inside) -> None:
        assert await answered(here, session) == 200

    run(first, second, folder=tmp_path)


def test_last_uses_are_stored_at_intervals_and_no_call_writes(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        before = rows(tmp_path / "state", "SELECT seen_at, details FROM session")
        here.app.host.store().close()  # from now on a write would be refused
        for _ in range(3):
            await here.call(session, 1, "climb").messages()
        assert rows(tmp_path / "state", "SELECT seen_at, details FROM session") == before

    run(body, folder=tmp_path)


def test_the_record_of_an_ended_session_is_removed_as_soon_as_the_state_can_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        rows(tmp_path / "state", NO_DELETE)
        assert (await here.ask("DELETE", mcp_session_id=session).started()).status == 503
        async with asyncio.timeout(PATIENCE):
            while caplog.text.count("can't be removed yet") < 3:
                await asyncio.sleep(0.01)
            rows(tmp_path / "state", "DROP TRIGGER no")
            while rows(tmp_path / "state", "SELECT count(*) FROM session") != [(0,)]:
                await asyncio.sleep(0.01)

    run(body, folder=tmp_path, note=0.05)


def test_a_session_too_large_to_store_is_tried_once_per_change(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        held = here.sessions.open(ADA)
        assert held is not None
        held.session.revision = WITH_SESSION[VERSION]
        held.session.capabilities = {"x": "x" * MAX_DETAILS}
        held.session.place.cwd = tmp_path
        await held.session.place.save_cwd()
        assert held.session.place.saved_cwd == tmp_path

    run(body, folder=tmp_path)


EVENT = re.compile(r"[0-9a-f]{8}\.[0-9a-f]+\.[\w-]*\.[0-9a-f]{10}-\d+a?")


def test_event_ids_stay_short(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        for id in (1, "a", "x" * 90, "x" * 1_024):
            found = [event["id"] async for event in here.call(session, id, "climb").events() if "id" in event]
            assert all(EVENT.fullmatch(one) and len(one) < 250 for one in found), found
            assert [one.endswith("a") for one in found] == [False] * (len(found) - 1) + [True]

    run(body, folder=tmp_path)


def is_busy(listening: Site) -> bool:
    require("telemetry")
    return b'_requests_running{transport="http"} 1' in listening.ask("GET", "/metrics")[1]


def test_sigterm_answers_a_call_that_has_no_stream_yet(tmp_path: Path) -> None:
    with after(tmp_path, signal.SIGTERM, "--grace", "0.1") as restarted:
        first = restarted()
        session = begin(first)
        for told, asked in (({"Mcp-Session-Id": session}, message("tools/call", WAIT)), (MODERN, WAITING)):
            with contextlib.closing(first.connect()) as connection:
                connection.request("POST", "/mcp", json.dumps(asked), {**POSTED, **told})
                assert eventually(partial(is_busy, first))
                first = restarted()
                answer = connection.getresponse().read()
            assert INTERRUPTED.encode() in answer


def test_sigterm_leaves_a_reader_that_takes_nothing_without_a_fault_in_the_log(tmp_path: Path) -> None:
    with site(tmp_path, *PROBE) as listening:
        told = {"Mcp-Session-Id": begin(listening), "Content-Type": "application/json", "Accept": "text/event-stream"}
        with contextlib.closing(listening.connect()) as connection:
            connection.request("POST", "/mcp", json.dumps(call(1, "echo", text="x" * 12_000_000)), told)
            assert connection.getresponse().status == 200
            assert listening.stop() == 0
        assert "Traceback" not in listening.log()


def test_the_end_waits_for_a_request_whose_session_is_being_resumed(tmp_path: Path) -> None:
    session = ""

    async def first(here: Inside) -> None:
        nonlocal session
        session = await here.session()

    async def second(here: Inside) -> None:
        gate = threading.Event()
        held = asyncio.ensure_future(here.app.host.store().transact(lambda _: gate.wait(PATIENCE)))
        asked = here.ask("POST", message("ping"), mcp_session_id=session)
        async with asyncio.timeout(PATIENCE):
            while not here.streamable.running:
                await asyncio.sleep(0.01)
        gate.set()
        assert await held
        assert (await asked.started()).status == 200
        assert not here.streamable.running

    run(first, second, folder=tmp_path)


@pytest.mark.brief("15")
@pytest.mark.parametrize("number", ENDS)
def test_a_session_revoked_while_no_server_ran_stays_ended(tmp_path: Path, number: int) -> None:
    port = str(kept_port())  # tokens are for one URL
    with after(tmp_path, number, "--auth", "oauth", "--port", port) as restarted:
        first = restarted()
        assert command(tmp_path, "user", "add", "ada", stdin=PASSWORD).returncode == 0
        client, other = registered(first), registered(first)
        before, kept = (f"Bearer {granted(first, one)['access_token']}" for one in (client, other))
        params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}
        asked = message("initialize", params)
        sessions = [
            first.ask("POST", "/mcp", asked, authorization=token)[0].getheader("mcp-session-id")
            for token in (before, kept)
        ]
        assert all(sessions)

        def pinged(at: Site, token: str, place: int) -> int:
            return at.ask("POST", "/mcp", message("ping"), authorization=token, mcp_session_id=sessions[place])[
                0
            ].status

        assert (pinged(first, before, 0), pinged(first, kept, 1)) == (200, 200)
        end(first, number)
        assert command(tmp_path, "token", "revoke", "client", client).returncode == 0
        second = restarted()
        again = f"Bearer {granted(second, client)['access_token']}"
        assert eventually(lambda: pinged(second, again, 0) == 404)
        assert (pinged(second, kept, 1), pinged(second, again, 1), pinged(second, before, 0)) == (200, 404, 401)
