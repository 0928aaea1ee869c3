"""The state database with damaged, removed and locked files, and killed processes."""

import asyncio
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from toolgate.server.base.errors import StateError
from toolgate.server.base.limits.state_budget import start_budget
from toolgate.server.state import tables
from toolgate.server.state.rows.todos import TodoStore
from toolgate.server.state.sqlite import store as store_module
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store

WRITER = """
import asyncio, sys
from pathlib import Path
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.base.errors import StateError
from toolgate.server.state.store import Store
from toolgate.server.state.rows.todos import TodoStore

async def main(folder, principal, count):
    store = SqliteStore(Path(folder))
    tasks = TodoStore(store, principal, "")
    made = 0
    while count == 0 or made < count:
        try:
            task = await tasks.create(f"task {made}")
        except StateError:  # on a slow machine the other writer may have had every turn: nothing was made
            continue
        made += 1
        print(task.id, flush=True)
    store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def writer(folder: Path, principal: str, count: int = 0) -> "subprocess.Popen[str]":
    arguments = [sys.executable, "-c", WRITER, str(folder), principal, str(count)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def with_store(folder: Path, body: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        store = SqliteStore(folder)
        try:
            return await asyncio.wait_for(body(store), 20)
        finally:
            store.close()

    return asyncio.run(run())


def integrity(folder: Path) -> str:
    connection = sqlite3.connect(folder / "state.db")
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()


def held(folder: Path, principal: str) -> list[int]:
    async def body(store: Store) -> list[int]:
        return [task.id for task in await TodoStore(store, principal, "").all()]

    found: list[int] = with_store(folder, body)
    return found


def test_what_was_acknowledged_survives_kill_9_in_mid_write(tmp_path: Path) -> None:
    child = writer(tmp_path, "a")
    assert child.stdout is not None
    acknowledged = [int(child.stdout.readline()) for _ in range(100)]
    child.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in child.communicate(timeout=60)[0].split("\n")[:-1]]
    assert integrity(tmp_path) == "ok"
    assert set(acknowledged) <= set(held(tmp_path, "a"))


def test_two_processes_that_start_at_once_on_a_new_state_lose_nothing(tmp_path: Path) -> None:
    children = [writer(tmp_path / "state", "a", 40) for _ in range(2)]
    acknowledged = [int(line) for child in children for line in child.communicate(timeout=60)[0].split()]
    assert [child.returncode for child in children] == [0, 0]
    assert len(acknowledged) == 80
    assert sorted(acknowledged) == held(tmp_path / "state", "a")
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["state.db"]


def test_the_state_is_its_owners_alone(tmp_path: Path) -> None:
    async def body(store: Store) -> list[int]:
        await TodoStore(store, "a", "").create("x")
        await store.transact(lambda _: store.set_flag("plan", "a", True))
        paths = [store.folder, *store.folder.rglob("*")]
        assert {path.name for path in paths} >= {"state.db", "state.db-wal", "flags"}
        return [stat.S_IMODE(path.stat().st_mode) & 0o077 for path in paths]

    assert set(with_store(tmp_path / "made" / "here", body)) == {0}


def test_importing_the_state_imports_no_database() -> None:
    modules = ["store", "tables", "rows.todos", "rows.plans", "rows.callbacks", "live_processes"]
    lines = [f"import toolgate.server.state.{module}" for module in modules]
    lines += ["import toolgate.server.state.rows.callback_timer, toolgate.server.base.watch, sys"]
    lines += ["print([name for name in ('sqlalchemy', 'sqlite3', 'watchfiles', 'yaml') if name in sys.modules])"]
    out = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60)
    assert out.stdout.strip() == "[]", out.stderr


def test_a_database_from_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    assert held(tmp_path, "a") == []
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = (tmp_path / "state.db").read_bytes()
    with pytest.raises(StateError, match="newer Toolgate"):
        held(tmp_path, "a")
    assert (tmp_path / "state.db").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"not a database, but long enough to look at " * 100, b"SQLite format 3\0"])
def test_a_damaged_database_is_refused_and_never_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.db").write_bytes(content)
    with pytest.raises(StateError, match="damaged"):
        held(tmp_path, "a")
    assert content == b"" or (tmp_path / "state.db").read_bytes() == content


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.execute("CREATE TABLE other (x)")
    connection.close()
    with pytest.raises(StateError, match="not made by Toolgate"):
        held(tmp_path, "a")


def test_damage_in_the_middle_of_the_file_is_told(tmp_path: Path) -> None:
    async def fill(store: Store) -> None:
        for number in range(50):
            await TodoStore(store, "a", "").create(f"task {number} {'x' * 200}")

    with_store(tmp_path, fill)
    data = bytearray((tmp_path / "state.db").read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    (tmp_path / "state.db").write_bytes(data)
    with pytest.raises(StateError, match="damaged"):
        held(tmp_path, "a")


def test_a_state_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="can't be created"):
        held(tmp_path / "file" / "state", "a")


def test_a_held_database_is_told_and_works_again_when_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY", 0.05)

    async def body(store: Store) -> None:
        tasks = TodoStore(store, "a", "")
        await tasks.create("before")
        other = sqlite3.connect(store.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateError, match="another process"):
            await tasks.create("meanwhile")
        other.execute("ROLLBACK")
        other.close()
        await tasks.create("after")
        assert [task.name for task in await tasks.all()] == ["before", "after"]

    with_store(tmp_path, body)


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""

CLOSER = """
import asyncio, sys, time
from pathlib import Path
from toolgate.server.state.sqlite import store as store_module
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.base.errors import StateError
from toolgate.server.state.store import Store
from toolgate.server.state.rows.todos import TodoStore

store_module.BUSY = 120.0

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    if sys.argv[2] == "warm":  # what the first transaction imports is there
        await TodoStore(store, "b", "").all()
    print("up", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    under_way = [asyncio.create_task(TodoStore(store, "a", "").create(f"task {n}")) for n in range(6)]
    await asyncio.sleep(0.1)
    began = time.monotonic()
    store.close()
    print(time.monotonic() - began, flush=True)
    print(await asyncio.gather(*under_way, return_exceptions=True), flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["warm", "cold"])
def test_a_held_database_does_not_hold_up_the_end(tmp_path: Path, state: str) -> None:
    assert held(tmp_path, "a") == []

    def begun(*arguments: str) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    with begun(CLOSER, str(tmp_path), state) as child:
        assert child.stdin and child.stdout
        assert child.stdout.readline() == "up\n"
        with begun(HOLDER, str(tmp_path / "state.db")) as holder:
            assert holder.stdout and holder.stdout.readline() == "held\n"
            child.stdin.write("\n")
            child.stdin.flush()
            took = float(child.stdout.readline())
            began = time.monotonic()
            said = child.stdout.read()  # to its end
            errors = child.communicate(timeout=PATIENCE)[1]
            assert time.monotonic() - began < PATIENCE  # a transaction waits three times as long
            assert took < PATIENCE
            assert said.count("StateError(") == 6, errors
            assert child.returncode == 0
            assert "Fatal" not in errors and "never retrieved" not in errors
            holder.communicate()
    assert held(tmp_path, "a") == []


def test_a_state_that_is_removed_while_open_is_created_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = tmp_path / "state"

    async def body(store: Store) -> None:
        tasks = TodoStore(store, "a", "")
        await tasks.create("lost")
        shutil.rmtree(state)
        await tasks.create("kept")
        assert [task.name for task in await tasks.all()] == ["kept"]
        assert len(await asyncio.to_thread(held, state, "a")) == 1
        await tasks.create("kept too")

    with_store(state, body)
    assert len(held(state, "a")) == 2
    assert "was removed or replaced" in caplog.text


def test_a_copy_put_back_while_the_database_is_open_is_used(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        tasks = TodoStore(store, "a", "")
        await tasks.create("one")
        copy = sqlite3.connect(tmp_path / "copy")
        source = sqlite3.connect(store.path)
        source.backup(copy)
        source.close()
        copy.close()
        await tasks.create("two")
        for name in ("state.db-wal", "state.db-shm"):
            (tmp_path / name).unlink()
        (tmp_path / "copy").rename(store.path)
        assert [task.name for task in await tasks.all()] == ["one"]
        await tasks.create("three")

    with_store(tmp_path, body)
    assert len(held(tmp_path, "a")) == 2
    assert integrity(tmp_path) == "ok"


def test_callers_of_a_locked_database_wait_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY", 2.0)

    async def body(store: Store) -> None:
        tasks = TodoStore(store, "a", "")
        await tasks.create("before")
        other = sqlite3.connect(store.path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        told = await asyncio.gather(*(tasks.create("meanwhile") for _ in range(6)), return_exceptions=True)
        assert time.monotonic() - began < 8  # one after the other takes twelve
        assert [type(error) for error in told] == [StateError] * 6
        other.close()

    with_store(tmp_path, body)


def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        tasks = TodoStore(store, "a", "")
        made = [await tasks.create("before")]
        pages = await store.transact(lambda connection: connection.exec_driver_sql("PRAGMA page_count").scalar())
        await store.transact(lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}").all())
        with pytest.raises(StateError, match="full"):
            while True:
                made.append(await tasks.create("x" * 1000))
        await store.transact(lambda connection: connection.exec_driver_sql("PRAGMA max_page_count = 100000").all())
        assert [task.id for task in await tasks.all()] == [task.id for task in made]
        await tasks.create("after")

    with_store(tmp_path, body)


def test_the_text_of_an_error_names_no_path(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "state.db").write_bytes(b"nonsense" * 1000)
    with pytest.raises(StateError) as caught:
        held(tmp_path, "a")
    assert str(tmp_path) not in caught.value.text
    assert str(tmp_path) in caplog.text


def test_a_cancelled_caller_leaves_the_store_working(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        tasks = TodoStore(store, "a", "")
        await tasks.create("first")
        entered, leave = threading.Event(), threading.Event()

        def slow(connection: Any) -> None:
            connection.execute(tables.task.insert().values(principal="a", name="second", completed=False))
            entered.set()
            assert leave.wait(60)

        caller = asyncio.create_task(store.transact(slow))
        await asyncio.to_thread(entered.wait, 10)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        leave.set()
        assert [task.name for task in await tasks.all()] == ["first", "second"]

    with_store(tmp_path, body)


def test_a_flag_is_seen_without_a_database(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        await store.transact(lambda _: store.set_flag("plan", "a/../b", True))

    with_store(tmp_path, body)
    (tmp_path / "state.db").unlink()
    store = SqliteStore(tmp_path)
    assert store.has_flag("plan", "a/../b")
    assert not store.has_flag("plan", "a")
    assert not store.has_flag("plan", "")
    assert not store.has_flag("other", "a/../b")
    assert not (tmp_path / "state.db").exists()


def test_a_flag_comes_down_only_when_nothing_needs_it(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        await store.transact(lambda _: store.set_flag("plan", "a", True))
        await store.clear_flag_unless("plan", "a", lambda _: True)
        assert store.has_flag("plan", "a")
        await store.clear_flag_unless("plan", "a", lambda _: False)
        assert not store.has_flag("plan", "a")

    with_store(tmp_path, body)


@pytest.mark.usefixtures("real_state_limits")
def test_a_call_is_released_from_a_thread_that_hangs_and_its_change_is_never_made(tmp_path: Path) -> None:
    """A disk that does not answer holds the thread in a system call."""
    goes_on = threading.Event()

    def remove_all(connection: tables.Connection) -> None:
        connection.execute(tables.task.delete())
        goes_on.wait()

    async def body(store: Store) -> None:
        todos = TodoStore(store, "a", "")
        await todos.create("before")
        start_budget()
        hanging = asyncio.create_task(store.transact(remove_all))
        behind = asyncio.create_task(todos.create("behind"))
        for waiting in (hanging, behind):
            with pytest.raises(StateError, match="does not answer in time; nothing was changed"):
                await waiting
        goes_on.set()
        start_budget()
        await todos.create("after")
        assert [todo.name for todo in await todos.all()] == ["before", "after"]

    with_store(tmp_path, body)


SLOW_IMPORT = """
import asyncio, sys, time
from pathlib import Path

class SlowFinder:
    def find_spec(self, name, path=None, target=None):
        if name == "sqlalchemy":
            time.sleep(3.0)  # longer than a call may wait for the state

sys.meta_path.insert(0, SlowFinder())
from tests.clients.raw_client import PATIENCE
from toolgate.server.base.limits.state_budget import enter_call
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.rows.todos import TodoStore

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    enter_call()
    print((await TodoStore(store, "a", "").create("tea")).name)
    store.close()

asyncio.run(main())
"""


def test_a_slow_import_of_the_library_is_no_wait_for_the_state(tmp_path: Path) -> None:
    """An installation that is not compiled yet compiles it at the first call."""
    words = [sys.executable, "-c", SLOW_IMPORT, str(tmp_path / "state")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout == "tea\n", done
