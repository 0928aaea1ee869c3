"""Work runs to its first wait in a spare task, and keeps that task only if it waits."""

import asyncio
import gc
import sys
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from toolgate.server.protocol.first_steps import FirstSteps

MARK: ContextVar[str] = ContextVar("MARK")
REUSED = sys.version_info < (3, 12)  # tasks are


def current() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None
    return task


def in_callback(run: Callable[[FirstSteps], Any]) -> Any:
    """Return what `run` does in a callback of a loop. A task that it returns is awaited."""

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        made: asyncio.Future[Any] = loop.create_future()
        loop.call_soon(lambda: made.set_result(run(FirstSteps(loop))))
        async with asyncio.timeout(5):
            given = await made
            return await given if isinstance(given, asyncio.Task) else given

    return asyncio.run(main())


def test_work_that_never_waits_has_a_current_task_but_leaves_none() -> None:
    seen: list[str] = []

    async def work() -> None:
        async with asyncio.timeout(1):
            seen.append(current().get_name())  # a reference would keep the next work from it

    def run(steps: FirstSteps) -> tuple[Any, ...]:
        left = steps.run(work()), steps.run(work()), asyncio.current_task(), len(asyncio.all_tasks())
        assert (seen[0] == seen[1]) == REUSED
        return left

    assert in_callback(run) == (None, None, None, 1)


def test_work_that_waits_goes_on_in_the_task_it_began_in() -> None:
    async def work() -> list[Any]:
        MARK.set("own")
        tasks = [asyncio.current_task()]
        for seconds in (0, 0.001):
            await asyncio.sleep(seconds)
            tasks.append(asyncio.current_task())
        return [MARK.get(), tasks]

    task: list[Any] = []

    def run(steps: FirstSteps) -> Any:
        task.append(steps.run(work()))
        assert task[0] in asyncio.all_tasks()
        return task[0]

    assert in_callback(run) == ["own", task * 3]


def test_work_can_start_other_work() -> None:
    seen: list[Any] = []

    async def inner() -> None:
        seen.append(asyncio.current_task())

    def run(steps: FirstSteps) -> Any:
        async def outer() -> None:
            seen.append(asyncio.current_task())
            asyncio.get_running_loop().call_soon(steps.run, inner())
            await asyncio.sleep(0.001)
            seen.append(asyncio.current_task())

        return steps.run(outer())

    in_callback(run)
    assert seen[0] is seen[2] is not seen[1] is not None


def test_a_cancellation_reaches_what_the_work_waits_for() -> None:
    async def work() -> str:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            return "cancelled"
        return "slept"

    def run(steps: FirstSteps) -> Any:
        task = steps.run(work())
        assert task is not None
        task.cancel()
        return task

    assert in_callback(run) == "cancelled"


def test_work_that_cancels_its_own_task_is_cancelled_at_its_first_wait() -> None:
    waited: list[asyncio.Future[None]] = []

    async def work() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        waited.append(asyncio.get_running_loop().create_future())
        try:
            await waited[0]
        except asyncio.CancelledError:
            return "cancelled"
        return "waited"

    assert in_callback(lambda steps: steps.run(work())) == "cancelled"
    assert waited[0].cancelled()


@pytest.mark.parametrize("mark", ["variable", "cancellation", "callback"])
def test_no_trace_of_work_is_left_for_the_next(mark: str) -> None:
    called: list[Any] = []

    async def marking() -> None:
        task = asyncio.current_task()
        assert task is not None
        match mark:
            case "variable":
                MARK.set("left")
            case "cancellation":
                task.cancel()
                task.uncancel()
            case _:
                task.add_done_callback(called.append)

    async def work() -> Any:
        await asyncio.sleep(0)
        return MARK.get("nothing")

    def run(steps: FirstSteps) -> Any:
        assert steps.run(marking()) is None
        return steps.run(work())

    assert in_callback(run) == "nothing"
    assert len(called) == (mark == "callback")


@pytest.mark.parametrize("store", ["name", "attribute", "weak key"])
def test_nothing_stored_for_the_task_of_work_is_found_by_the_next(store: str) -> None:
    stored: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    async def storing() -> None:
        task: Any = current()
        match store:
            case "name":
                task.set_name("left")
            case "attribute":
                task.owner = "left"
            case _:
                stored[task] = "left"

    async def work() -> list[Any]:
        task: Any = current()
        found = [task.get_name(), getattr(task, "owner", None), stored.get(task)]
        await asyncio.sleep(0)
        return found

    def run(steps: FirstSteps) -> Any:
        assert steps.run(storing()) is None
        return steps.run(work())

    assert "left" not in in_callback(run)


def test_a_late_cancellation_of_ended_work_does_not_reach_the_next() -> None:
    async def careless() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)

    async def work() -> str:
        await asyncio.sleep(0.01)
        return "slept"

    def run(steps: FirstSteps) -> Any:
        assert steps.run(careless()) is None
        return steps.run(work())

    assert in_callback(run) == "slept"


def test_work_has_none_of_the_variables_of_the_work_that_starts_it() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return MARK.get("nothing")

    def run(steps: FirstSteps) -> Any:
        MARK.set("other")
        return steps.run(work())

    assert in_callback(run) == "nothing"


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_work_within_other_work_has_a_task_and_copies_of_its_variables(waits: bool, fails: bool) -> None:
    async def inner() -> str:
        found = MARK.get()
        names.append(current().get_name())
        if waits:
            await asyncio.sleep(0)
            assert names[-1] == current().get_name()
            assert MARK.get() == found
        MARK.set("inner")
        if fails:
            raise LookupError("lost")
        return found

    def run(steps: FirstSteps) -> Any:
        async def outer() -> list[Any]:
            within = FirstSteps(asyncio.get_running_loop())
            own, found = current(), []
            for number in range(2):
                MARK.set(f"outer {number}")
                task = within.run_within(inner())
                assert asyncio.current_task() is own
                assert MARK.get() == f"outer {number}"
                assert (task is None) == (not waits)
                found += await asyncio.gather(task, return_exceptions=True) if task is not None else []
            await asyncio.sleep(0)
            assert asyncio.current_task() is own
            assert (names[0] == names[1]) == (REUSED and not waits and not fails)
            return [*map(str, found)]

        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        return steps.run(outer())

    names: list[str] = []
    outcomes = ["lost", "lost"] if fails else ["outer 0", "outer 1"]
    assert in_callback(run) == (outcomes if waits else [])


def test_an_exception_at_the_first_step_or_later_is_the_task_s() -> None:
    async def work(seconds: float | None) -> None:
        if seconds is not None:
            await asyncio.sleep(seconds)
        raise LookupError("lost")

    def run(steps: FirstSteps) -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: reported.append(about["exception"]))
        assert steps.run(work(None)) is None
        gc.collect()  # the traceback holds the task
        return steps.run(work(0.0))

    reported: list[Exception] = []
    with pytest.raises(LookupError, match="lost"):
        in_callback(run)
    assert [str(error) for error in reported] == ["lost"]


@pytest.mark.parametrize("end", ["at once", "later"])
def test_ended_work_is_freed_without_the_garbage_collector(end: str) -> None:
    class Held:
        """What the work holds."""

    async def work(_held: Held) -> None:
        MARK.set("own")  # so that no other work gets its task
        if end == "later":
            await asyncio.sleep(0)

    def run(steps: FirstSteps) -> Any:
        held = Held()
        left.append(weakref.ref(held))
        return steps.run(work(held))

    left: list[weakref.ref[Held]] = []
    gc.disable()
    try:
        in_callback(run)
        assert left[0]() is None
    finally:
        gc.enable()
