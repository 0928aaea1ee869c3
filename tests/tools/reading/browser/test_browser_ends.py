"""A browser never outlives its server, and waiting principals take turns."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import ROOT, eventually, processes_with
from toolgate.tools.api.concurrency.fair_queue import BusyError, FairQueue
from toolgate.tools.reading.browser.find_chromium import find_chromium

CHROMIUM = find_chromium(None, os.environ.get("PATH")) or ""

SERVER = """
import asyncio, sys
from tests.tools.fake_web_site import site
from toolgate.tools.reading.pages.local_page_reader import LocalPageReader
from toolgate.tools.api.outbound.fetch import Web

async def main():
    async with site({"/": b"<p>x"}) as place:
        reader = LocalPageReader(Web(["127.0.0.1"]), sys.argv[1])
        await reader.browser.read(place.url(), "me", 0, 40, is_source=False)
        print("here", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder that the browser's user can enter too: pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="toolgate-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def server(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a server that has read a page."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, CHROMIUM], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            assert processes_with(str(folder))
            yield process
        finally:
            process.kill()


def nothing_is_left(folder: Path) -> bool:
    return not processes_with(str(folder)) and not list(folder.glob("toolgate-*"))


def test_a_server_that_is_killed_leaves_no_process_and_no_file(folder: Path, server: subprocess.Popen[str]) -> None:
    server.kill()
    assert eventually(lambda: nothing_is_left(folder))


def test_a_driver_that_kills_what_it_started_leaves_no_process_and_no_file(
    folder: Path, server: subprocess.Popen[str]
) -> None:
    started = min(processes_with("reaper.py") & processes_with(str(folder)))
    os.killpg(started, signal.SIGKILL)
    assert eventually(lambda: nothing_is_left(folder))
    assert server.poll() is None


def test_waiting_principals_take_turns() -> None:
    served: list[str] = []

    async def one(turns: FairQueue, principal: str) -> None:
        await turns.acquire(principal, 5)
        served.append(principal)
        await asyncio.sleep(0)
        turns.release(principal)

    async def scenario() -> None:
        turns = FairQueue(1, "pages")
        await asyncio.gather(*(one(turns, principal) for principal in "aaaaabbc"))
        await turns.acquire("a", 5)

    asyncio.run(scenario())
    assert "".join(served) == "aabcabaa"


def test_a_turn_that_is_given_up_goes_to_the_next() -> None:
    async def scenario() -> None:
        turns = FairQueue(1, "pages")
        await turns.acquire("a", 1)
        with pytest.raises(BusyError):
            await turns.acquire("b", 0.01)
        waiting = asyncio.create_task(turns.acquire("c", 5))
        leaving = asyncio.create_task(turns.acquire("d", 5))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        turns.release("a")
        await leaving

    asyncio.run(scenario())
