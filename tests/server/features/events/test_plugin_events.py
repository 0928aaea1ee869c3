"""Types of events that plugins declare, in the server's process and in one of their own."""

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.event_client import Stream, data_of, first_cursor, poll
from tests.clients.raw_client import PATIENCE, STATELESS, Refusal, Server, eventually
from tests.servers.isolated_plugins import EACH_WAY
from toolgate.server.cli.doctor.state_files import find_damage
from toolgate.server.features.events.log.writer import MAX_WAITING

Start = Callable[..., Server]

PLUGIN = '''
"""Deploy."""
import asyncio
import msgspec
from toolgate.tools import Context, event, tool

class Deployed(msgspec.Struct):
    app: str
    version: int

@event(name="deploy.done", payload=Deployed)
def deployed(app: str | None = None) -> None:
    """An app has been deployed."""

@tool
async def deploy(app: str, version: int, ctx: Context) -> str:
    """Deploy."""
    principal = ctx.principal
    asyncio.get_running_loop().call_later(0.05, deployed.emit, principal, Deployed(app, version))
    return "begun"

@tool
def deploy_in_thread(app: str, ctx: Context) -> str:
    """Deploy, once."""
    for _ in range(2):
        deployed.emit(ctx.principal, Deployed(app, 1), key=app)
    return "done"

@tool
async def deploy_badly(ctx: Context) -> str:
    """Emit a payload that does not fit."""
    try:
        deployed.emit(ctx.principal, {"app": 7})
    except ValueError as error:
        return str(error)
    return "taken"

@tool
async def deploy_many(count: int, ctx: Context) -> str:
    """Deploy many."""
    for version in range(count):
        deployed.emit(ctx.principal, Deployed("app", version))
    return "done"

@tool
async def deploy_for(who: str, ctx: Context) -> str:
    """Emit for somebody else."""
    deployed.emit(who, Deployed("app", 1))
    return "done"
'''
TYPE = "deploy.done"
BOTH = pytest.mark.parametrize("flags", EACH_WAY)


def serve(start: Start, folder: Path, *flags: str) -> tuple[Server, Path]:
    file = folder / "plugins" / "deploy.py"
    file.parent.mkdir()
    file.write_text(PLUGIN)
    return start("-p", str(file.parent), *flags, revision=STATELESS), file


def listed(client: Server) -> list[str]:
    return [type["name"] for type in client.request("events/list")["events"]]


@BOTH
def test_a_plugin_tells_who_waits_for_its_event(start: Start, tmp_path: Path, flags: tuple[str, ...]) -> None:
    client, _ = serve(start, tmp_path, *flags)
    found = next(type for type in client.request("events/list")["events"] if type["name"] == TYPE)
    assert found["description"] == "An app has been deployed."
    assert found["inputSchema"]["properties"].keys() == {"app"}
    assert found["payloadSchema"]["required"] == ["app", "version"]
    cursor = first_cursor(client, TYPE)
    stream = Stream(client, TYPE, {"app": "shop"})
    for app, version in (("blog", 1), ("shop", 2)):
        assert client.text("deploy", {"app": app, "version": version}) == "begun"
    assert stream.wait("event")["data"] == {"app": "shop", "version": 2}
    assert eventually(lambda: len(poll(client, TYPE, cursor)["events"]) == 2)


@BOTH
def test_a_key_makes_a_repeated_event_one(start: Start, tmp_path: Path, flags: tuple[str, ...]) -> None:
    client, _ = serve(start, tmp_path, *flags)
    cursor = first_cursor(client, TYPE)
    client.text("deploy_in_thread", {"app": "shop"})
    client.text("deploy", {"app": "last", "version": 1})
    assert eventually(lambda: [each["app"] for each in data_of(poll(client, TYPE, cursor))] == ["shop", "last"])


@BOTH
def test_a_payload_that_does_not_fit_is_the_plugins_fault(start: Start, tmp_path: Path, flags: tuple[str, ...]) -> None:
    client, _ = serve(start, tmp_path, *flags)
    first_cursor(client, TYPE)
    assert client.text("deploy_badly").startswith("the payload of deploy.done: ")


@BOTH
def test_an_event_for_another_principal_reaches_no_one_here(
    start: Start, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    client, _ = serve(start, tmp_path, *flags)
    cursor = first_cursor(client, TYPE)
    client.text("deploy_for", {"who": "u-other"})
    client.text("deploy", {"app": "mine", "version": 1})
    assert eventually(lambda: len(poll(client, TYPE, cursor)["events"]) == 1)
    assert data_of(poll(client, TYPE, cursor)) == [{"app": "mine", "version": 1}]


@pytest.mark.brief("removed-inline", "other payload-isolated", "other arguments-inline")
@BOTH
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("deploy.done", "deploy.ended"), -32011),
        (("version: int\n\n@event", "version: str\n\n@event"), -32014),
        (("app: str | None = None", "version: int | None = None"), -32014),
    ],
    ids=["removed", "other payload", "other arguments"],
)
def test_a_reload_ends_streams_whose_type_no_longer_fits(
    start: Start, tmp_path: Path, flags: tuple[str, ...], change: tuple[str, str], code: int
) -> None:
    client, file = serve(start, tmp_path, *flags)
    changes = client.begin("subscriptions/listen", {"notifications": {"eventsListChanged": True}})
    client.wait(lambda message: message.get("method") == "notifications/subscriptions/acknowledged")
    stream, other = Stream(client, TYPE), Stream(client, "todo.changed")
    assert change[0] in PLUGIN
    file.write_text(PLUGIN.replace(*change))
    assert stream.wait("terminated")["error"]["code"] == code
    assert client.result(stream.id)["resultType"] == "complete"
    client.wait(lambda message: message.get("method") == "notifications/events/list_changed")
    assert other.all("terminated") == []
    assert changes


@BOTH
def test_a_reload_keeps_streams_whose_type_has_grown(start: Start, tmp_path: Path, flags: tuple[str, ...]) -> None:
    client, file = serve(start, tmp_path, *flags)
    stream = Stream(client, TYPE)
    grown = PLUGIN.replace("version: int\n\n@event", "version: int\n    note: str = ''\n\n@event")
    file.write_text(grown.replace("An app has been", "An app was"))

    def has_grown() -> bool:
        types: list[dict[str, Any]] = client.request("events/list")["events"]
        return any("note" in type["payloadSchema"]["properties"] for type in types if type["name"] == TYPE)

    assert eventually(has_grown)
    client.text("deploy", {"app": "shop", "version": 3})
    assert stream.wait("event")["data"] == {"app": "shop", "version": 3, "note": ""}


def test_a_type_that_can_not_be_listed_is_refused_at_the_load(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "plugins" / "wrong.py"
    file.parent.mkdir()
    file.write_text(PLUGIN.replace("app: str | None = None", "other: str | None = None"))
    client = start("-p", str(file.parent), revision=STATELESS)
    assert TYPE not in listed(client)
    assert "argument 'other' of deploy.done is no member of its payload" in client.log()
    with pytest.raises(Refusal):
        poll(client, TYPE, None)


@pytest.mark.parametrize("count", [1_500, pytest.param(6_000, marks=pytest.mark.soak)])  # more than a thousand
@BOTH
def test_many_events_at_once_are_all_told(start: Start, tmp_path: Path, flags: tuple[str, ...], count: int) -> None:
    client, _ = serve(start, tmp_path, *flags)
    begin = cursor = first_cursor(client, TYPE)
    client.text("deploy_many", {"count": count})
    versions: list[int] = []

    def read_on() -> bool:
        nonlocal cursor
        page = poll(client, TYPE, cursor, maxEvents=100)
        assert page["truncated"] is False
        versions.extend(data["version"] for data in data_of(page))
        cursor = page["cursor"]
        return len(versions) >= count

    assert eventually(read_on, count / 1_500 * PATIENCE), (len(versions), client.log())
    assert versions == list(range(count))
    assert poll(client, TYPE, begin, maxEvents=1)["truncated"] is False


def test_events_beyond_what_may_wait_are_a_gap(start: Start, tmp_path: Path) -> None:
    client, _ = serve(start, tmp_path)
    cursor = first_cursor(client, TYPE)
    stream = Stream(client, TYPE, cursor=cursor)
    assert stream.active["truncated"] is False
    client.text("deploy_many", {"count": MAX_WAITING + 1_000})
    assert stream.wait("active", 2)["truncated"] is True
    assert poll(client, TYPE, cursor, maxEvents=1)["truncated"] is True


def test_events_that_wait_for_a_locked_state_are_a_gap_after_a_kill(start: Start, tmp_path: Path) -> None:
    client, file = serve(start, tmp_path)
    cursor = first_cursor(client, TYPE)
    with contextlib.closing(sqlite3.connect(client.state / "state.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        client.text("deploy_many", {"count": 1})
        assert eventually(lambda: any((client.state / "gaps").glob("*.json")))
        client.kill()
        other.execute("ROLLBACK")
    client = start("-p", str(file.parent), revision=STATELESS, state=client.state)
    assert eventually(lambda: poll(client, TYPE, cursor)["truncated"])
    assert eventually(lambda: not any((client.state / "gaps").glob("*.json")))


def test_a_damaged_note_of_a_gap_is_named_and_removed(start: Start, tmp_path: Path) -> None:
    notes = tmp_path / "kept" / "gaps"
    notes.mkdir(mode=0o700, parents=True)
    (notes / "half.json").write_bytes(b'[["local", \xff')
    os.mkfifo(notes / "pipe.json")
    assert {damage.path.name for damage in find_damage(tmp_path / "kept")} == {"half.json", "pipe.json"}
    client = start(revision=STATELESS, state=tmp_path / "kept")
    client.text("Bash", {"command": "true"})
    assert eventually(lambda: not any(notes.iterdir()))
    assert client.log().count("whose events are lost is not known") == 2
