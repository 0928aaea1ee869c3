"""What a revocation ends: streams, sessions and calls of every transport, and a removed person's commands."""

import asyncio
import contextlib
import json
import re
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import COMMAND, PATIENCE, STATELESS, eventually, processes_with
from tests.clients.raw_http_client import events, site
from tests.server.auth.minted_tokens import ENVELOPE, Signed, asked, challenge, request, session, signed_site
from tests.server.auth.test_ownership import called, messages, opened, text
from tests.servers.forked_command import changed_command
from tests.servers.reserved_port import kept_port
from toolgate.server.auth.revocation_watch import RevocationWatch
from toolgate.server.base.principals.principal import Principal, derive_subject
from toolgate.server.cli.commands import user
from toolgate.server.config import load
from toolgate.server.state import tables
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows import people as people_rows
from toolgate.tools.workspace.workspace import WorkspaceUnreachableError

OFTEN = (  # the command, but for how often it looks
    "import sys; from toolgate.server.app.http_app import HttpApp; "
    "HttpApp.__init__.__kwdefaults__['revocation_interval'] = 0.2; "
    "from toolgate.server.__main__ import main; sys.exit(main())"
)
WITHIN = 20.0  # seconds for what is looked at every fifth of one
LISTEN = {"mcp_protocol_version": STATELESS, "mcp_method": "subscriptions/listen"}


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    folder = tmp_path_factory.mktemp("standing")
    with signed_site(folder, workspace=False, command=changed_command(OFTEN)) as held:
        yield held


def stored(signed: Signed, function: Callable[[Any], Any]) -> Any:
    """Return the result of `work` on the server's state, run in this process."""
    return signed.with_store(lambda store: store.transact(function))


def account(signed: Signed, name: str, *clients: str) -> str:
    """Add an account with grants of everything to these clients, and return the subject of its tokens."""
    subject, now = derive_subject(people_rows.BUILT_IN, f"of-{name}"), time.time()

    def put(connection: Any) -> None:
        people_rows.add_account(connection, name=name, subject=f"of-{name}", password="none", made_at=now)
        row = {"issuer": people_rows.BUILT_IN, "known_as": f"of-{name}", "name": name, "seen_at": now}
        grant_rows.save_person(connection, subject, **row)

    stored(signed, put)
    for client in clients:
        granted(signed, subject, client)
    return subject


def granted(signed: Signed, subject: str, client: str, *, is_redeemed: bool = True, lifetime: float = 900) -> str:
    """Add a grant of everything for so many seconds, and return its id."""
    now = time.time()
    row = {"scope": "tools:shell tools:workflow", "resource": f"{signed.issuer}/mcp", "redirect_uri": "x:/"}
    row |= {"client": client, "subject": subject, "used_at": now if is_redeemed else None}
    id: str = stored(signed, lambda connection: grant_rows.add_grant(connection, now, lifetime, **row))
    return id


def end_grant(signed: Signed, id: str) -> None:
    """End the grant as the account page does."""
    stored(signed, lambda connection: grant_rows.revoke_grant(connection, id, time.time()))


def revoke(signed: Signed, subject: str, client: str) -> None:
    """Revoke as `toolgate token revoke` does."""

    def end(connection: Any) -> None:
        for grant in grant_rows.list_unrevoked_grants(connection, subject, client):
            grant_rows.revoke_grant(connection, grant.id, time.time())
        grant_rows.deny_grantless_tokens(connection, time.time(), subject=subject, client=client)

    stored(signed, end)


def open_everything(signed: Signed, token: str, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Open a stream of each kind, and read its beginning."""
    id = session(signed, token)
    wait = {"name": "wait", "arguments": {"seconds": 40}, "_meta": {"progressToken": "p"}}
    streams = {
        "GET": opened(signed, token, "GET", "/mcp", mcp_session_id=id),
        "call": opened(signed, token, "POST", "/mcp", request("tools/call", wait, 7), mcp_session_id=id),
        "stateless call": opened(
            signed,
            token,
            "POST",
            "/mcp",
            request("tools/call", {**wait, "_meta": {**ENVELOPE, "progressToken": "q"}}),
            mcp_protocol_version=STATELESS,
            mcp_method="tools/call",
            mcp_name="wait",
        ),
        "listen": opened(
            signed,
            token,
            "POST",
            "/mcp",
            request("subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": ENVELOPE}),
            **LISTEN,
        ),
        "HTTP+SSE": opened(signed, token, "GET", "/sse"),
    }
    found = {name: stack.enter_context(stream) for name, stream in streams.items()}
    assert {response.status for response in found.values()} == {200}
    return {**found, "session": id}


def test_revocation_ends_what_a_client_has_open_on_every_transport_and_nothing_else(signed: Signed) -> None:
    ada = account(signed, "ada", "one", "two")
    token, other = signed.token(ada, "one", noted=False), signed.token(ada, "two", noted=False)
    with contextlib.ExitStack() as stack:
        mine = open_everything(signed, token, stack)
        kept = stack.enter_context(opened(signed, other, "GET", "/sse"))
        endpoint = next(events(kept))["data"]
        begun = called(signed, token, "BackgroundBash", command="sleep 61.717")
        revoke(signed, ada, "one")
        for name, response in mine.items():
            if name != "session":
                assert b'"result"' not in response.read(), name  # to its end
        signed.site.ask("POST", endpoint, request("ping", id="still"), authorization=f"Bearer {other}")
        assert next(event for event in events(kept) if "still" in event.get("data", ""))
        assert processes_with("61.717")  # the person's, who may still come
        assert called(signed, other, "KillBgTask", task_id=begun["structuredContent"]["task_id"])["isError"] is False


def test_the_end_of_one_grant_ends_what_was_opened_by_it_though_another_of_the_same_client_holds(
    signed: Signed,
) -> None:
    lil = account(signed, "lil")
    lost, other = granted(signed, lil, "one"), granted(signed, lil, "one")
    token, held = (signed.token(lil, "one", noted=False, grant=id) for id in (lost, other))
    with contextlib.ExitStack() as stack:
        mine = open_everything(signed, token, stack)
        kept = stack.enter_context(opened(signed, held, "GET", "/mcp", mcp_session_id=session(signed, held)))
        end_grant(signed, lost)
        for name, response in mine.items():
            if name != "session":
                assert b'"result"' not in ended(response), name
        called(signed, held, "SetCallback", action="set", message="still heard", delay_seconds=1)
        assert next(message for message in messages(kept) if "still heard" in str(message))


def test_a_session_ends_with_any_grant_whose_tokens_used_it(signed: Signed) -> None:
    ned = account(signed, "ned")
    first, second = granted(signed, ned, "one"), granted(signed, ned, "one")
    token, wider = (signed.token(ned, "one", noted=False, grant=id) for id in (first, second))
    id = session(signed, token)
    with opened(signed, token, "GET", "/mcp", mcp_session_id=id) as stream:
        told = {"authorization": f"Bearer {wider}", "mcp_session_id": id}
        assert signed.site.ask("POST", "/mcp", request("tools/list"), **told)[0].status == 200
        end_grant(signed, first)
        ended(stream)
        assert signed.site.ask("POST", "/mcp", request("tools/list"), **told)[0].status == 404


def test_a_session_of_before_the_restart_ends_with_the_grant_that_opened_it(tmp_path: Path) -> None:
    command = changed_command(OFTEN)
    port = f"--port={kept_port()}"
    with signed_site(tmp_path, port, command=command) as before:
        una = account(before, "una")
        lost, other = granted(before, una, "one"), granted(before, una, "one")
        token = before.token(una, "one", noted=False, grant=lost)
        held = before.token(una, "one", noted=False, grant=other)
        told = [session(before, token), session(before, held), session(before, token)]
    with signed_site(tmp_path, port, command=command) as after:
        with opened(after, token, "GET", "/mcp", mcp_session_id=told[2]) as taken_up:
            assert taken_up.status == 200
            end_grant(after, lost)
            ended(taken_up)
        bearer = f"Bearer {held}"

        def status(id: str) -> int:
            listed = request("tools/list")
            return after.site.ask("POST", "/mcp", listed, authorization=bearer, mcp_session_id=id)[0].status

        assert eventually(lambda: len(_records(after)) == 1, WITHIN)
        assert [status(id) for id in told] == [404, 200, 404]


def test_an_unredeemed_code_keeps_nothing_open(signed: Signed) -> None:
    mia = account(signed, "mia", "one")
    granted(signed, mia, "one", is_redeemed=False)
    token = signed.token(mia, "one", noted=False)
    with opened(signed, token, "GET", "/mcp", mcp_session_id=session(signed, token)) as stream:
        for each in stored(signed, lambda connection: grant_rows.list_used_grants(connection, mia, time.time())):
            end_grant(signed, each.grant.id)
        ended(stream)


def test_a_call_that_became_a_task_ends_with_the_grant_that_it_came_by(signed: Signed, tmp_path: Path) -> None:
    kay = account(signed, "kay")
    lost, other = granted(signed, kay, "one"), granted(signed, kay, "one")
    token, held = (signed.token(kay, "one", noted=False, grant=id) for id in (lost, other))
    tasks = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}

    def task(bearer: str) -> str:
        wanted = {"name": "job", "arguments": {"file": str(tmp_path / "never")}, "_meta": tasks}
        found = asked(signed, bearer, "tools/call", wanted)[2]["result"]
        assert found["resultType"] == "task", found
        return str(found["taskId"])

    mine, kept = task(token), task(held)

    def status(id: str) -> str:
        told = asked(signed, held, "tasks/get", {"taskId": id, "_meta": tasks}, mcp_name=id)[2]
        return str(told["result"]["status"])

    end_grant(signed, lost)
    assert eventually(lambda: status(mine) == "cancelled", WITHIN)
    assert status(kept) == "working"


def ended(response: Any) -> bytes:
    """Return all of a stream, which may end late on a slow machine; otherwise its comments never end."""
    until, found = time.monotonic() + WITHIN, b""
    while line := response.readline():
        found += line
        assert time.monotonic() < until, "the stream goes on"
    return found


def _records(signed: Signed) -> list[Any]:
    found: list[Any] = stored(signed, lambda connection: connection.execute(tables.session.select()).all())
    return found


def test_the_end_of_an_access_token_ends_nothing_as_long_as_the_grant_stands(signed: Signed) -> None:
    eve = account(signed, "eve", "one")
    token = signed.token(eve, "one", noted=False, exp=int(time.time()) + 1)
    with opened(signed, token, "GET", "/sse") as stream:
        endpoint = next(events(stream))["data"]
        assert eventually(lambda: asked(signed, token, "tools/list")[0].status == 401)
        fresh = signed.token(eve, "one", noted=False)
        signed.site.ask("POST", endpoint, request("ping", id="fresh"), authorization=f"Bearer {fresh}")
        assert next(event for event in events(stream) if "fresh" in event.get("data", ""))


def test_a_removed_persons_commands_end(signed: Signed) -> None:
    zoe, bob = account(signed, "zoe", "one"), account(signed, "bob", "one")
    token, his = (signed.token(who, "one", noted=False) for who in (zoe, bob))
    called(signed, token, "BackgroundBash", command="sleep 61.818")
    called(signed, his, "BackgroundBash", command="sleep 61.919")
    for each in (token, his):
        called(signed, each, "SetCallback", action="set", message="turn", delay_seconds=3600, repeat_count=-1)
    with opened(signed, token, "GET", "/mcp", mcp_session_id=session(signed, token)) as stream:
        options = load.load({"state": str(signed.site.state)})
        signed.with_store(lambda _: asyncio.to_thread(user.remove, options, name="zoe"))
        stream.read()
    assert eventually(lambda: not processes_with("61.818"))

    def left(connection: Any) -> int:
        return len(connection.execute(tables.callback.select()).all())

    assert eventually(lambda: stored(signed, left) == 1)
    assert processes_with("61.919")
    assert "turn" in text(called(signed, his, "SetCallback", action="list"))


def test_sec_08_a_barred_person_is_answered_401_though_nothing_was_open(signed: Signed) -> None:
    subject, token = account(signed, "may", "one"), ""
    for id in ("may-1", "may-2"):
        token = signed.token(subject, "one", noted=False, jti=id)
        row = {"jti": id, "client": "one", "subject": subject, "grant_id": None, "expires_at": time.time() + 900}
        stored(signed, lambda connection, row=row: grant_rows.add_access_token(connection, **row))
    assert asked(signed, token, "tools/list")[0].status == 200
    stored(signed, lambda connection: people_rows.remove_account(connection, "may"))
    assert eventually(lambda: asked(signed, token, "tools/list")[0].status == 401)
    assert stored(signed, lambda connection: grant_rows.find_access_token(connection, "may-1")).denied


def test_sec_08_the_first_look_is_at_once_and_takes_tokens_before_it_ends_what_runs() -> None:
    done: list[str] = []

    async def body() -> None:
        looked = asyncio.Event()

        async def stand(_pairs: Any) -> set[Any]:
            done.append("asked who stands")
            return set()

        async def see_off() -> list[str]:
            done.append("took the tokens")
            return ["p-ada"]

        async def end(_rights: Any) -> None:
            done.append("ended what was open")

        async def leave(_name: str) -> None:
            done.append("ended what ran")
            looked.set()

        caller = Principal("toolgate", "p-ada", "one")
        standing = RevocationWatch(
            stand, see_off, list_open=lambda: [caller.grant_key], end_grants=end, end_person=leave
        )
        task = asyncio.get_running_loop().create_task(standing.run(3_600))
        async with asyncio.timeout(PATIENCE):
            await looked.wait()
        task.cancel()

    asyncio.run(body())
    assert done == ["took the tokens", "asked who stands", "ended what was open", "ended what ran"]


def test_a_barred_person_is_ended_at_two_checks_and_again_if_barred_again() -> None:
    gone, left = ["p-ada"], []

    async def body() -> None:
        async def stand(_pairs: Any) -> set[Any]:
            return set()

        async def see_off() -> list[str]:
            return gone

        async def leave(name: str) -> None:
            left.append(name)

        async def end(_rights: Any) -> None: ...

        standing = RevocationWatch(stand, see_off, list_open=list, end_grants=end, end_person=leave)
        for _ in range(4):
            await standing.check_once()
        assert len(left) == 2
        gone.clear()
        await standing.check_once()
        gone.append("p-ada")
        for _ in range(4):
            await standing.check_once()
        assert len(left) == 4

    asyncio.run(body())


def test_a_person_whose_node_is_away_keeps_nobody_elses_commands_alive() -> None:
    away, ended = {"p-ada"}, list[str]()

    async def body() -> None:
        async def stand(_pairs: Any) -> set[Any]:
            return set()

        async def see_off() -> list[str]:
            return ["p-ada", "p-bob"]

        async def leave(name: str) -> None:
            if name in away:
                raise WorkspaceUnreachableError("the node can't be reached")
            ended.append(name)

        async def end(_rights: Any) -> None: ...

        standing = RevocationWatch(stand, see_off, list_open=list, end_grants=end, end_person=leave)
        for _ in range(3):
            await standing.check_once()
        assert ended == ["p-bob", "p-bob"]
        away.clear()
        await standing.check_once()
        assert ended == ["p-bob", "p-bob", "p-ada"]

    asyncio.run(body())


# -- what only some of a person's clients may have


def test_a_callbacks_message_goes_to_sessions_with_its_scope(signed: Signed) -> None:
    token = signed.token("sue", "full")
    poor, web = signed.token("sue", "none", ()), signed.token("sue", "web", ("tools:web", "tools:plugins"))
    id = session(signed, poor)
    with opened(signed, poor, "GET", "/mcp", mcp_session_id=id) as unheard:
        full = session(signed, token)
        with opened(signed, token, "GET", "/mcp", mcp_session_id=full) as heard:
            called(signed, token, "SetCallback", action="set", message="SECRET", delay_seconds=1)
            news = next(message for message in messages(heard) if message.get("method") == "notifications/message")
            assert "SECRET" in news["params"]["data"]
        assert "SECRET" not in text(called(signed, web, "echo", text="x"))
        assert "SECRET" in text(called(signed, token, "echo", text="x"))  # it was kept for it
        signed.site.ask("DELETE", "/mcp", authorization=f"Bearer {poor}", mcp_session_id=id)
        assert b"SECRET" not in unheard.read()


def test_resources_are_listed_for_callers_that_may_read_them(signed: Signed) -> None:
    token, read = signed.token("kim", "full"), signed.token("kim", "read", ("tools:read",))
    called(signed, token, "TaskManager", action="create", query="SECRET-TASK")

    def listed(bearer: str) -> str:
        return json.dumps(asked(signed, bearer, "resources/list")[2]["result"]["resources"])

    assert "SECRET-TASK" in listed(token) and "callback://inbox" in listed(token)
    assert not any(scheme in listed(read) for scheme in ("task:", "bg:", "callback:", "plan:", "SECRET"))
    everything = asked(signed, token, "tools/list")[2]["result"]["tools"]
    assert asked(signed, read, "tools/list")[2]["result"]["tools"] == everything  # a host needs them to ask for more


def test_the_servers_files_about_people_are_private_to_its_owner(signed: Signed) -> None:
    called(signed, signed.token("ann", "one"), "Bash", command="true")
    for folder in ("workspaces", "spool"):
        assert (signed.site.state / folder).stat().st_mode & 0o777 == 0o700


def test_a_state_that_is_held_at_the_start_is_waited_for(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    held = sqlite3.connect(state / "state.db", isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    with site(tmp_path, "--auth", "oauth") as listening:
        held.execute("ROLLBACK")
        held.close()
        assert eventually(lambda: "pairing code" in listening.log())
        assert listening.ask("GET", "/ready")[0].status == 200
        assert "Traceback" not in listening.log()


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = [COMMAND, "-t", "--sandbox", "none", "--port", port, "--state", str(tmp_path / "state")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    (told,) = (line for line in done.stderr.splitlines() if not re.match(r"[0-9-]+ ", line))  # the rest is the log
    assert told == f"toolgate: --host, --port: can't listen on 127.0.0.1:{port}: address already in use"


# -- what a token for less may be told again


def test_a_stream_is_resumed_by_a_token_that_could_have_made_its_call(signed: Signed) -> None:
    full, narrow = signed.token("ivy", "one"), signed.token("ivy", "one", ("tools:web",))
    call = request("tools/call", {"name": "wait", "arguments": {"seconds": 0.3}, "_meta": {"progressToken": "p"}}, 7)
    id = session(signed, full)
    with opened(signed, full, "POST", "/mcp", call, mcp_session_id=id) as response:
        event = next(event for event in events(response) if event.get("data"))
    told = {"accept": "text/event-stream", "last_event_id": event["id"], "mcp_session_id": id}
    response, body, _ = signed.site.ask("GET", "/mcp", authorization=f"Bearer {narrow}", **told)
    assert (response.status, b"result" in body) == (403, False)
    assert challenge(response)["scope"] == "tools:plugins" and challenge(response)["error"] == "insufficient_scope"
    enough = signed.token("ivy", "one", ("tools:plugins",))
    with opened(signed, enough, "GET", "/mcp", mcp_session_id=id, last_event_id=event["id"]) as again:
        assert "result" in next(message for message in messages(again) if message.get("id") == 7)


def test_a_token_for_less_is_told_nothing_again_that_came_while_one_for_more_was_used(signed: Signed) -> None:
    full, narrow = signed.token("joy", "one"), signed.token("joy", "one", ("tools:read",))
    id = session(signed, full)
    with opened(signed, full, "GET", "/mcp", mcp_session_id=id) as heard:
        first = next(event for event in events(heard) if "id" in event)
        called(signed, full, "SetCallback", action="set", message="SECRET", delay_seconds=1)
        assert "SECRET" in next(event for event in events(heard) if event.get("data"))["data"]
    for last in ({"last_event_id": first["id"]}, {}):
        with opened(signed, narrow, "GET", "/mcp", mcp_session_id=id, **last) as stream:
            again = next(event for event in events(stream) if "id" in event)
            assert again["id"].rpartition("-")[0] != first["id"].rpartition("-")[0]
    with opened(signed, full, "GET", "/mcp", mcp_session_id=id, last_event_id=first["id"]) as heard:
        assert "SECRET" in next(event for event in events(heard) if event.get("data"))["data"]


def test_what_an_earlier_process_left_is_told_to_a_token_for_as_much_alone(tmp_path: Path) -> None:
    port = f"--port={kept_port()}"
    with signed_site(tmp_path, port) as before:
        full, narrow = before.token("uma", "one"), before.token("uma", "one", ("tools:web",))
        call = {"name": "wait", "arguments": {"seconds": 0.5}, "_meta": {"progressToken": "p"}}
        id = session(before, full)
        with opened(before, full, "POST", "/mcp", request("tools/call", call, 7), mcp_session_id=id) as response:
            event = next(event for event in events(response) if event.get("data"))
    with signed_site(tmp_path, port) as after:
        told = {"accept": "text/event-stream", "last_event_id": event["id"], "mcp_session_id": id}
        assert after.site.ask("GET", "/mcp", authorization=f"Bearer {narrow}", **told)[0].status == 403
        with opened(after, full, "GET", "/mcp", mcp_session_id=id, last_event_id=event["id"]) as again:
            assert "result" in next(message for message in messages(again) if message.get("id") == 7)


@pytest.mark.parametrize("rule", ["--deny", "--approve"])
def test_a_rule_about_a_granted_scope_holds_for_a_token_without_it(rule: str, tmp_path: Path) -> None:
    with signed_site(tmp_path, rule, "scope:tools:web=echo") as held:
        narrow = {"grant_scope": "tools:plugins tools:web", "grant": "g"}
        for token, is_free in (
            (held.token("one", "c"), False),
            (held.token("two", "c", ("tools:plugins",), **narrow), False),
            (held.token("three", "c", ("tools:plugins",)), True),
        ):
            said = asked(held, token, "tools/call", {"name": "echo", "arguments": {"text": "x"}})[2]["result"]
            assert (said["isError"] is False) == is_free, said


def test_a_token_for_less_has_no_exemption_that_it_is_not_for(tmp_path: Path) -> None:
    with signed_site(tmp_path, "--approve", "echo", "--allow", "scope:tools:web=echo") as held:
        narrow = {"grant_scope": "tools:plugins tools:web", "grant": "g"}
        for token, is_free in (
            (held.token("one", "c"), True),
            (held.token("two", "c", ("tools:plugins",), **narrow), False),
        ):
            said = asked(held, token, "tools/call", {"name": "echo", "arguments": {"text": "x"}})[2]["result"]
            assert (said["isError"] is False) == is_free, said
