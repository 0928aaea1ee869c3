"""Callbacks and their timer, on a fake clock; two tests use the real one."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.server.state.each_store import ON_EACH, ON_SQLITE, database_url, open_store
from toolgate.server.base.errors import StateError
from toolgate.server.state import flags
from toolgate.server.state.rows import callback_timer as clock_module
from toolgate.server.state.rows.callback_timer import CallbackTimer, Firing
from toolgate.server.state.rows.callbacks import CallbackStore
from toolgate.tools.api.context.services import Callback

pytestmark = ON_EACH

SETTER = """
import asyncio, sys
from pathlib import Path
from toolgate.server.state import flags
from toolgate.server.state.rows.callback_timer import CallbackTimer
from toolgate.server.state.rows.callbacks import CallbackStore
from toolgate.server.app.features import open_store
from toolgate.server.config.load import load

async def main():
    database = {"database": sys.argv[3]} if sys.argv[3] else {}
    store = open_store(load({"http": "true", "state": sys.argv[1], **database}, {}))
    clock = CallbackTimer(store, lambda firing: None)
    await CallbackStore(store, clock, "a", "its session").set("from the child", 1, 5)
    print("set", flush=True)
    sys.stdin.read()
    if sys.argv[2] == "clean":
        await clock.stop()
        await store.aclose()

asyncio.run(main())
"""


class Process:
    """The callbacks of one server process. Several in one test act as several processes."""

    def __init__(self, folder: Path, serves: Callable[[str], bool] = clock_module.serves_everyone) -> None:
        self.time = 1_000_000.0
        self.fired: list[Firing] = []
        self.store: Any = open_store(folder)
        self.clock = CallbackTimer(self.store, self.fired.append, serves, lambda: self.time)

    def callbacks(self, principal: str = "a", session: str = "s") -> CallbackStore:
        return CallbackStore(self.store, self.clock, principal, session)

    async def at(self, seconds: float) -> list[Firing]:
        """Fire what is due so many seconds after the start of the test, and return it."""
        self.time = 1_000_000.0 + seconds
        self.fired.clear()
        await self.clock.fire_due()
        return list(self.fired)

    async def __aenter__(self) -> "Process":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.clock.stop()
        await self.store.aclose()


async def fire_first(process: Process, seconds: float) -> list[Firing]:
    """Fire what is due once the end of another process is known: PostgreSQL learns of it a moment later."""
    while not (fired := await process.at(seconds)):
        await asyncio.sleep(0.01)
    return fired


def run(body: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(body, 20)

    asyncio.run(bounded())


@pytest.mark.brief("sqlite")
def test_a_callback_fires_on_its_cadence_and_ends_after_its_last(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as process:
            assert await process.callbacks().set("look", 30, 2) == Callback(0, "look", 30, 30_000, 2)
            assert await process.at(29.9) == []
            assert await process.at(30) == [Firing("a", "s", 0, "look", 1)]
            assert await process.at(59) == []
            assert await process.callbacks().list() == [Callback(0, "look", 30, 1_000, 1)]
            assert await process.at(61) == [Firing("a", "s", 0, "look", 0)]
            assert await process.callbacks().list() == []
            assert await process.at(1000) == []

    run(body())


@pytest.mark.brief("sqlite")
def test_one_for_ever_goes_on(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as process:
            await process.callbacks().set("look", 10, -1)
            for seconds in range(10, 500, 10):
                assert await process.at(seconds) == [Firing("a", "s", 0, "look", -1)]

    run(body())


@pytest.mark.brief("sqlite")
def test_after_a_pause_it_fires_once_and_keeps_its_cadence(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as process:
            await process.callbacks().set("look", 10, 5)
            assert await process.at(35) == [Firing("a", "s", 0, "look", 4)]
            assert await process.callbacks().list() == [Callback(0, "look", 10, 5_000, 4)]
            assert await process.at(39.9) == []
            assert await process.at(40) == [Firing("a", "s", 0, "look", 3)]

    run(body())


@pytest.mark.brief("sqlite")
def test_a_late_firing_does_not_move_the_next(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as process:
            await process.callbacks().set("look", 10, -1)
            assert len(await process.at(13)) == 1
            assert len(await process.at(19.9)) == 0
            assert len(await process.at(20)) == 1

    run(body())


def test_a_clock_set_back_delays_nothing_beyond_its_delay(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as process:
            await process.callbacks().set("look", 10, -1)
            assert await process.at(-100_000) == []
            assert len(await process.at(-100_000 + 10)) == 1

    run(body())


def test_a_clock_set_forward_fires_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as process:
            await process.callbacks().set("look", 10, -1)
            assert len(await process.at(10**8)) == 1
            assert len(await process.at(10**8)) == 0

    run(body())


def test_callbacks_survive_a_restart_and_one_overdue_fires_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as before:
            await before.callbacks().set("look", 10, 20)
            await before.callbacks().set("later", 3600, 1)
        async with Process(tmp_path) as after:
            assert await after.at(95) == [Firing("a", "s", 0, "look", 19)]
            assert await after.callbacks(session="new").list() == [
                Callback(0, "look", 10, 5_000, 19),
                Callback(1, "later", 3600, 3_505_000, 1),
            ]

    run(body())


def test_there_are_eight_slots_a_principal_and_the_lowest_free_one_is_taken(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as process:
            mine, other = process.callbacks("a"), process.callbacks("b")
            assert [(await mine.set("x", 10, 1)).id for _ in range(8)] == list(range(8))
            with pytest.raises(OverflowError):
                await mine.set("x", 10, 1)
            assert (await other.set("x", 10, 1)).id == 0
            assert [callback.id for callback in await mine.cancel(3)] == [3]
            assert (await mine.set("y", 10, 1)).id == 3

    run(body())


def test_the_latest_firings_are_remembered_by_their_principal_also_after_a_restart(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as process:
            assert await process.callbacks().list_fired() == []
            await process.callbacks().set("often", 1, -1)
            await process.callbacks("b").set("once", 1, 1)
            for second in range(1, 61):
                await process.at(second)
        async with Process(tmp_path) as process:
            fired = await process.callbacks().list_fired()
            assert [(held.id, held.message) for held in fired] == [(0, "often")] * 50
            assert [held.at.timestamp() - 1_000_000 for held in fired] == list(range(60, 10, -1))
            assert [held.message for held in await process.callbacks("b").list_fired()] == ["once"]
            assert await process.callbacks("c").list_fired() == []

    run(body())


def test_only_ones_own_are_listed_and_cancelled(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as process:
            mine, other = process.callbacks("a"), process.callbacks("b")
            await mine.set("x", 10, 1)
            assert await other.list() == []
            with pytest.raises(KeyError):
                await other.cancel(0)
            assert await other.cancel(None) == []
            assert [callback.message for callback in await mine.cancel(None)] == ["x"]
            assert await process.at(100) == []

    run(body())


def test_a_living_process_keeps_its_callbacks_and_a_dead_ones_are_taken_over(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as process:
            child = subprocess.Popen(
                [sys.executable, "-c", SETTER, str(tmp_path), "killed", database_url(tmp_path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert child.stdout is not None
            assert await asyncio.to_thread(child.stdout.readline) == b"set\n"
            assert await process.at(10**10) == []
            child.kill()
            child.communicate(timeout=60)
            assert await fire_first(process, 10**10) == [Firing("a", "its session", 0, "from the child", 4)]
            assert len(await process.at(10**10 + 1)) == 1  # and it stays taken over

    run(body())


def test_a_process_that_ends_leaves_its_callbacks_to_others(tmp_path: Path) -> None:
    async def body() -> None:
        child = subprocess.run(
            [sys.executable, "-c", SETTER, str(tmp_path), "clean", database_url(tmp_path)],
            input=b"",
            stdout=subprocess.PIPE,
            timeout=60,
        )
        assert (child.returncode, child.stdout) == (0, b"set\n")
        assert not any(tmp_path.glob("processes/*"))
        async with Process(tmp_path) as process:
            assert len(await fire_first(process, 10**10)) == 1

    run(body())


def test_of_many_that_could_take_one_over_only_one_fires_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as dead:
            for _ in range(8):
                await dead.callbacks().set("look", 10, -1)
        async with Process(tmp_path) as one, Process(tmp_path) as two, Process(tmp_path) as three:
            fired: list[list[Firing]] = [[], [], []]
            while sum(map(len, fired)) < 8:
                for each, new in zip(fired, await asyncio.gather(one.at(10), two.at(10), three.at(10)), strict=True):
                    each += new
            assert sorted(firing.slot for each in fired for firing in each) == list(range(8))
            again = await asyncio.gather(one.at(20), two.at(20), three.at(20))
            assert [len(each) for each in again] == [len(each) for each in fired]

    run(body())


def test_many_that_are_due_at_once_fire_in_pieces(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as dead:
            for person in range(15):
                for _ in range(8):
                    await dead.callbacks(f"person-{person}").set("look", 10, 1)
        async with Process(tmp_path) as process:
            first = await fire_first(process, 10)
            assert await process.clock.fire_due() == 0
            fired = {(firing.principal, firing.slot) for firing in (*first, *process.fired)}
            assert (len(first), len(fired)) == (100, 120)
            assert await process.at(1000) == []

    run(body())


def test_a_process_takes_over_only_for_those_it_serves(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as dead:
            await dead.callbacks("a").set("a's", 10, 1)
            await dead.callbacks("b").set("b's", 10, 1)
        async with Process(tmp_path, lambda principal: principal == "b") as process:
            assert [firing.message for firing in await fire_first(process, 10)] == ["b's"]
            await process.at(20)
            assert process.store.has_flag(flags.CALLBACKS, "")

    run(body())


def test_a_delivery_that_fails_stops_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with Process(tmp_path) as process:
            told: list[str] = []

            async def deliver(firing: Firing) -> None:
                if firing.slot == 0:
                    raise OSError("on purpose")
                told.append(firing.message)

            process.clock.deliver = deliver
            await process.callbacks().set("first", 10, 1)
            await process.callbacks().set("second", 10, 1)
            await process.at(10)
            assert told == ["second"]
            assert "callback 0" in caplog.text

    run(body())


def test_the_clock_says_when_to_look_next_and_at_least_every_minute(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as process:
            await process.callbacks().set("look", 3600, -1)
            assert await process.clock.fire_due() == 60
            await process.callbacks().set("look", 45, -1)
            assert await process.clock.fire_due() == 45

    run(body())


@ON_SQLITE
def test_the_flag_goes_when_the_last_callback_has(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as process:
            assert await process.callbacks().list() == []
            assert not process.store.path.exists()
            await process.callbacks().set("look", 10, 1)
            assert process.store.has_flag(flags.CALLBACKS, "")
            await process.callbacks().cancel(0)
            await process.at(0)
            assert not process.store.has_flag(flags.CALLBACKS, "")

    run(body())


@ON_SQLITE
def test_a_clock_with_nothing_to_do_opens_no_database(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as process:
            await process.clock.start()
            await asyncio.sleep(0)
            assert not process.store.path.exists()

    run(body())


def test_on_the_real_clock_a_callback_comes_in_time(tmp_path: Path) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        store = open_store(tmp_path)
        fired: asyncio.Queue[float] = asyncio.Queue()
        clock = CallbackTimer(store, lambda _: fired.put_nowait(loop.time()))
        try:
            await clock.start()
            await CallbackStore(store, clock, "a", "s").set("warm", 3600, 1)  # SQLAlchemy's import is not measured
            start = loop.time()
            await CallbackStore(store, clock, "a", "s").set("look", 1, 2)
            times = [await asyncio.wait_for(fired.get(), 10) - start for _ in range(2)]
            assert 0.95 < times[0] < 6
            assert 1.95 < times[1] < 7  # as slow as a busy machine may be
        finally:
            await clock.stop()
            await store.aclose()

    run(body())


@ON_SQLITE
def test_a_process_file_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process(tmp_path) as process:
            (tmp_path / "processes").touch()
            with pytest.raises(StateError, match="can't be marked"):
                await process.callbacks().set("look", 10, 1)
            assert await process.callbacks().list() == []

    run(body())


@ON_SQLITE
def test_a_state_that_cannot_be_used_does_not_end_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module, "AGAIN", 0.05)

    async def body() -> None:
        async with Process(tmp_path) as process:
            await process.callbacks().set("look", 10, 1)
            process.time += 10
        data = (tmp_path / "state.db").read_bytes()
        (tmp_path / "state.db").write_bytes(b"nonsense" * 1000)
        async with Process(tmp_path) as process:
            fired, warned = asyncio.Event(), asyncio.Event()
            process.clock.deliver = lambda _: fired.set()
            monkeypatch.setattr(clock_module.log, "warning", lambda *_: warned.set())
            process.time += 10
            await process.clock.start()
            await warned.wait()
            (tmp_path / "state.db").write_bytes(data)
            await fired.wait()

    run(body())
