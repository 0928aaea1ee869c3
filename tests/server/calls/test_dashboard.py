"""What the first page is made of, without a page: output as plain text, the last calls, and a principal's own lines of
the audit log."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from tests.server.calls.dashboards import create_dashboard
from tests.servers.http_in_process import inside
from toolgate.server.base.text import format_time
from toolgate.server.calls import dashboard as overview_of
from toolgate.server.calls.dashboard import Activity
from toolgate.server.calls.display import MAX_HELD, AnsiStripper, strip_ansi
from toolgate.server.calls.observers import Observers
from toolgate.server.calls.recent_calls import MAX_CALLS, RecentCalls
from toolgate.server.features.telemetry.audit.log import AuditLog
from toolgate.server.features.telemetry.audit.reader import OwnEntries
from toolgate.server.protocol.messages import Request
from toolgate.server.protocol.session import Call, Session
from toolgate.server.state.audit.entry import AuditEntry, EntryData
from toolgate.server.state.rows.todos import TodoStore
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.transports.web.templates import PageTemplates


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"\x1b[1;32mgreen\x1b[0m and \x1b[38;2;1;2;3mexact\x1b[m", "green and exact"),
        (b"\x1b]0;title\x07after \x1b]8;;https://x.example\x1b\\link\x1b]8;;\x1b\\", "after link"),
        (b"\x1b(Bset \x1b7saved\x1b8 \x1bc", "set saved "),
        (b"10%\r20%\r\ndone\x00\x07", "10%\n20%\ndone"),
        ("à\u202eb\u2066c\ufeff".encode(), "àbc"),
        (b"\xff\xc3", "\ufffd\ufffd"),
        (b"\x1b[31", "[31"),
    ],
)
def test_output_in_pieces_becomes_plain_text(printed: bytes, shown: str) -> None:
    assert strip_ansi(printed) == shown
    text = AnsiStripper()
    pieces = [text.feed(printed[n : n + 1]) for n in range(len(printed))]
    assert "".join(pieces) + text.feed(b"", final=True) == shown


def test_a_sequence_that_never_ends_hides_no_output_for_long() -> None:
    text = AnsiStripper()
    assert text.feed(b"\x1b]0;") == ""
    came = "".join(text.feed(b"x" * 1_000) for _ in range(10))
    assert came.count("x") > 10_000 - MAX_HELD


def test_recent_calls_are_per_principal_and_notified_at_once() -> None:
    feed, told = RecentCalls(), list[str]()
    leave = feed.watch("u-a", lambda: told.append("a"))

    async def answer(_call: Call) -> dict[str, Any]:
        assert feed.newest("u-a")[0].outcome == ""
        return {}

    async def made() -> None:
        for n in range(MAX_CALLS + 5):
            call = Call(n, "tools/call", {"name": f"t{n}"}, Session("u-a", client="one"), _Nowhere())
            await Observers([feed]).wrap(answer)(call)

    asyncio.run(made())
    feed.scope_missing("u-b", "two", Request(1, "tools/call", {"name": ["no name"]}))
    mine = feed.newest("u-a")
    assert len(mine) == MAX_CALLS
    assert (mine[0].tool, mine[0].client, mine[0].outcome) == (f"t{MAX_CALLS + 4}", "one", "ok")
    assert [(seen.tool, seen.client, seen.outcome) for seen in feed.newest("u-b")] == [("", "two", "refused")]
    assert len(told) == 2 * (MAX_CALLS + 5)
    leave()
    feed.scope_missing("u-a", "one", Request(1, "tools/call", {"name": "x"}))
    assert len(told) == 2 * (MAX_CALLS + 5)


class _Nowhere:
    can_ask = False
    is_full = False

    def send(self, message: Any) -> None: ...

    def pause(self) -> None: ...


def _entry(principal: str, tool: str) -> AuditEntry:
    return AuditEntry(0, format_time(0), principal, "c", "", tool, None, "", None, "allowed", None, "ok", None, 1.0, 0)


def test_a_principal_reads_its_own_lines_of_the_audit_log_and_no_forged_one(tmp_path: Path) -> None:
    trail = OwnEntries(tmp_path)
    assert trail.newest("u-a", 10) == []

    async def written() -> None:
        log = AuditLog(tmp_path / "audit", tmp_path / "keys" / "audit")
        for n in range(30):
            log.add(_entry("u-a", f"t{n}"))
            log.add(_entry("u-b", '"principal":"u-a"'))
        log.close()

    asyncio.run(written())
    assert [line["tool"] for line in trail.newest("u-a", 5)] == ["t29", "t28", "t27", "t26", "t25"]
    assert {line["principal"] for line in trail.newest("u-b", 100)} == {"u-b"}
    current = tmp_path / "audit" / "audit.jsonl"
    current.write_bytes(current.read_bytes().replace(b'"tool":"t29"', b'"tool":"t99"'))
    assert [line["tool"] for line in trail.newest("u-a", 2)] == ["t28", "t27"]
    (tmp_path / "keys" / "audit").unlink()
    with pytest.raises(OSError, match="audit"):
        trail.newest("u-a", 2)


def test_frequent_page_loads_read_the_audit_log_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(OwnEntries):
        reads, reading, most = 0, 0, 0

        def newest(self, principal: str, most: int) -> list[EntryData]:
            self.reads, self.reading = self.reads + 1, self.reading + 1
            self.most = max(self.most, self.reading)
            time.sleep(0.01)
            self.reading -= 1
            return [{"principal": principal, "most": most}]

    async def looked() -> None:
        async with inside(tmp_path) as served, asyncio.timeout(PATIENCE):
            app, trail = served.app, Counted(tmp_path)
            overview = create_dashboard(app, trail)
            found = await asyncio.gather(*(overview.audit_entries(who) for who in ("u-a", "u-b") * 4))
            assert [lines[0]["principal"] for lines in found] == ["u-a", "u-b"] * 4
            assert (trail.reads, trail.most) == (2, 1)
            monkeypatch.setattr(overview_of, "AUDIT_CACHE_TIME", 0.0)
            await overview.audit_entries("u-a")
            assert trail.reads == 3

    asyncio.run(looked())


def test_of_many_tasks_the_foremost_are_read_with_their_first_steps(tmp_path: Path) -> None:
    async def read() -> None:
        store = SqliteStore(tmp_path)
        held, other = TodoStore(store, "u-a", ""), TodoStore(store, "u-b", "")
        assert await held.list_first(3, 2) == ([], 0)
        ids = [(await held.create(f"t{n}")).id for n in range(5)]
        await other.create("another's")
        for n in range(3):
            await held.add(ids[1], f"s{n}")
        await held.complete(ids[1], 3)
        await held.complete(ids[4])
        await held.switch(ids[1])
        found, total = await held.list_first(3, 2)
        assert [(one.task.name, one.task.current, one.count, one.completed) for one in found] == [
            ("t1", True, 3, 1),
            ("t3", False, 0, 0),
            ("t2", False, 0, 0),
        ]
        assert [step.text for step in found[0].task.steps] == ["s0", "s1"] and total == 5
        assert (await held.list_first(9, 9))[0][0].task in await held.all()
        it = {"names": {}, "going": Activity([], tasks=found, more_tasks=2)}
        html = PageTemplates("", "t").render_part("home_parts", "tasks", it)
        assert "1 of 3 steps done" in html and "… 1 more" in html and "… and 2 more" in html
        store.close()

    asyncio.run(read())


def test_nothing_is_taken_into_use_by_looking(tmp_path: Path) -> None:
    """A workspace that is packed away would else be made anew, empty."""
    nobody = "u-" + "0" * 40

    async def looked() -> None:
        async with inside(tmp_path) as served, asyncio.timeout(PATIENCE):
            app = served.app
            overview = create_dashboard(app)
            going = await overview.read(nobody, [])
            assert (going.runs, going.tasks, going.plans, going.callbacks) == ([], [], [], [])
            assert await overview.stop_run(nobody, "1") is None
            assert await overview.cancel_callback(nobody, "0") is False
            assert [text async for text in overview.output(nobody, 1)] == []
            assert list((tmp_path / "state" / "workspaces").iterdir()) == []

    asyncio.run(looked())
