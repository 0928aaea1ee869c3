"""Work that takes too long is cancelled, and only that."""

import asyncio

import pytest

from toolgate.server.base.asyncio_tasks import DeadlineTimer


async def never() -> None:
    await asyncio.Event().wait()


def test_work_that_takes_too_long_is_ended_and_its_task_goes_on() -> None:
    async def body() -> None:
        timer = DeadlineTimer(0.01)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await timer.limit(never())
        assert await timer.limit(asyncio.sleep(0, "done")) == "done"
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()

    asyncio.run(body())


def test_the_shorter_of_two_limits_counts() -> None:
    async def body() -> None:
        short, long = DeadlineTimer(0.01), DeadlineTimer(3_600)
        for outer, inner in ((short, long), (long, short)):
            with pytest.raises(TimeoutError):
                await outer.limit(inner.limit(never()))

    asyncio.run(body())


def test_a_cancelled_task_is_not_one_that_took_too_long() -> None:
    async def body() -> None:
        task = asyncio.create_task(DeadlineTimer(3_600).limit(never()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())
