"""Workers: jobs that do not end, and that nothing of them is left. The jobs are real pages."""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import msgspec
import pytest

from tests.tools.fake_web_site import site
from tests.tools.tool_calls import call, page_reader, text
from toolgate.tools.api.errors import ToolError
from toolgate.tools.builtin.docs import read_docs
from toolgate.tools.reading.web.convert import RawPage, ReadablePage
from toolgate.tools.reading.workers import pool as module
from toolgate.tools.reading.workers.pictures import FittedPicture
from toolgate.tools.reading.workers.pictures import RawPicture as RawPicture
from toolgate.tools.reading.workers.pool import WorkerLimitError, Workers, WorkerTurn

# libxml2 compares each attribute with all earlier ones: a minute and more
ENDLESS = b"<p " + b" ".join(b"a%d=1" % number for number in range(150_000)) + b">text"
VAST = b"<table>" + b"<tr><td>x<td>y" * 120_000  # half a million elements: 200 MiB
SMALL = (
    "from toolgate.tools.builtin import worker_main; from toolgate.tools.reading.workers import messages as jobs\n"
    "jobs.MEMORY = 160 * 2**20; worker_main.main()"
)


T = TypeVar("T")


def page(html: bytes) -> RawPage:
    return RawPage(html, "text/html", "http://site/", "markdown")


async def done(workers: Workers, job: str, request: msgspec.Struct, kind: type[T], **given: Any) -> T:
    async with workers.turn(job, "me") as turn:
        return await turn.run(request, kind, **given)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 40))


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[Workers]:
    workers = Workers()
    try:
        yield workers
    finally:
        await workers.close()


def pids(workers: Workers) -> set[int]:
    return {worker.pid for worker in workers._living}


def is_gone(pid: int, within: float = 5.0) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with open(process):
        return bool(select.select([process], [], [], within)[0])


def test_a_job_is_done_and_its_worker_does_the_next() -> None:
    async def body() -> None:
        async with opened() as workers:
            first = await done(workers, "page", page(b"<title>T</title><p>one"), ReadablePage)
            assert first == ReadablePage("text/html", "T", "one", 3)
            held = pids(workers)
            assert (await done(workers, "page", page(b"<p>two"), ReadablePage)).text == "two"
            assert pids(workers) == held and len(held) == 1
        assert all(is_gone(pid) for pid in held)

    run(body())


def test_a_job_over_its_time_is_ended_and_the_next_goes_on() -> None:
    async def body() -> None:
        async with opened() as workers:
            start = time.monotonic()
            with pytest.raises(WorkerLimitError, match="took more than 1 s"):
                await done(workers, "page", page(ENDLESS), ReadablePage, timeout=1)
            assert time.monotonic() - start < 15
            assert (await done(workers, "page", page(b"<p>two"), ReadablePage)).text == "two"

    run(body())


def test_the_system_ends_a_job_that_no_server_waits_for() -> None:
    """The CPU limit is the worker's own, in case the server is gone or hangs."""
    script = (
        "import resource, sys; from toolgate.tools.reading.workers import messages as jobs, worker; jobs.CPU = 0\n"
        "worker.allow_time()\nwhile True: pass"
    )
    ended = subprocess.run([sys.executable, "-c", script], timeout=20)
    assert ended.returncode == -signal.SIGXCPU


def test_a_job_over_its_memory_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROGRAM", (sys.executable, "-c", SMALL))

    async def body() -> None:
        async with opened() as workers:
            with pytest.raises(WorkerLimitError, match=r"memory|broke"):
                await done(workers, "page", page(VAST), ReadablePage, timeout=30)
            assert (await done(workers, "page", page(b"<p>two"), ReadablePage)).text == "two"

    run(body())


def test_a_worker_that_was_killed_costs_its_job_and_no_other() -> None:
    async def body() -> None:
        async with opened() as workers:
            work = asyncio.ensure_future(done(workers, "page", page(ENDLESS), ReadablePage))
            while not pids(workers):
                await asyncio.sleep(0)
            (pid,) = pids(workers)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(WorkerLimitError, match="broke the program"):
                await work
            await done(workers, "page", page(b"<p>idle now"), ReadablePage)
            for pid in pids(workers):
                os.kill(pid, signal.SIGKILL)
                assert is_gone(pid)
            assert (await done(workers, "page", page(b"<p>two"), ReadablePage)).text == "two"

    run(body())


def test_cancelling_a_job_kills_its_worker_at_once() -> None:
    async def body() -> None:
        async with opened() as workers:
            job = asyncio.ensure_future(done(workers, "page", page(ENDLESS), ReadablePage))
            while not (held := pids(workers)):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)  # it works
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
            await workers.close()
            assert not pids(workers)
            assert all(is_gone(pid, 0) for pid in held)

    run(body())


def test_closing_ends_jobs_under_way() -> None:
    async def body() -> None:
        workers = Workers()
        work = [asyncio.ensure_future(done(workers, "page", page(ENDLESS), ReadablePage)) for _ in range(4)]
        while len(pids(workers)) < module.MAX_AT_ONCE:
            await asyncio.sleep(0)
        held = pids(workers)
        for job in work[module.MAX_AT_ONCE :]:
            job.cancel()
        await workers.close()
        assert all(is_gone(pid, 0) for pid in held)
        results = await asyncio.gather(*work, return_exceptions=True)
        assert [type(result) for result in results] == [WorkerLimitError] * 2 + [asyncio.CancelledError] * 2

    run(body())


def test_no_more_than_a_few_work_at_once_and_kinds_do_not_wait_for_each_other() -> None:
    async def body() -> None:
        async with opened() as workers:
            pages = [
                asyncio.ensure_future(done(workers, "page", page(ENDLESS), ReadablePage, timeout=30)) for _ in range(4)
            ]
            with pytest.raises(ToolError, match="not a png"):
                await done(workers, "picture", RawPicture("/x", 1000, 10, b"text"), FittedPicture)
            assert not any(job.done() for job in pages)
            assert len(pids(workers)) == module.MAX_AT_ONCE + 1
            for job in pages:
                job.cancel()
            await asyncio.gather(*pages, return_exceptions=True)

    run(body())


def test_an_idle_worker_is_ended_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE", 0.05)

    async def body() -> None:
        async with opened() as workers:
            await done(workers, "page", page(b"<p>one"), ReadablePage)
            async with asyncio.timeout(10):
                await workers._none_living.wait()

    run(body())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the worker's limit of processor time ends it")
def test_a_worker_does_not_outlive_a_murdered_server_even_while_it_works() -> None:
    script = """if True:
        import asyncio, sys
        from tests.tools.reading.workers.test_pool import ENDLESS, ReadablePage, Workers, done, page, pids
        async def main():
            workers = Workers()
            work = asyncio.ensure_future(done(workers, "page", page(ENDLESS), ReadablePage))
            await asyncio.sleep(0.5)
            print(*pids(workers), flush=True)
            await work
        asyncio.run(main())
    """
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()
    assert is_gone(pid)


def test_a_page_that_can_not_be_converted_is_an_error_that_says_how_to_have_its_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        async with site({"/": ENDLESS}) as place:
            reader = page_reader(["127.0.0.1"])
            try:
                with monkeypatch.context() as impatient:  # only here: a busy machine starts the next worker in a second
                    impatient.setattr(module.messages, "CPU", 1)
                    impatient.setattr(WorkerTurn.run, "__kwdefaults__", {"timeout": 1})
                    output = await call(read_docs, {"url": place.url()}, reader=reader)
                assert output.is_error
                assert f"{place.url()} took more than 1 s when converted; format html" in text(output)
                output = await call(read_docs, {"url": place.url(), "format": "html"}, reader=reader)
                assert not output.is_error
                assert "<p a0=1 a1=1" in text(output)
            finally:
                await reader.close()

    run(body())
