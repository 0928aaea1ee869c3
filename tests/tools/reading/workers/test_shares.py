"""One caller's large documents take little memory, and no turns or time from others."""

import asyncio
import io
import struct
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfWriter

from tests.clients.raw_client import PATIENCE, Server
from tests.tools.fake_web_site import Request, never, site
from tests.tools.tool_calls import call, page_reader, text
from toolgate.tools.api.concurrency.fair_queue import BusyError, FairQueue
from toolgate.tools.builtin.docs import read_docs
from toolgate.tools.builtin.images import read_image
from toolgate.tools.reading.pages.local_page_reader import MAX_VISITS, VISITS_SHARE, LocalPageReader
from toolgate.tools.reading.workers import pool
from toolgate.tools.workspace.files.open_file import LocalFile

Start = Callable[..., Server]
MIB = 2**20
MANY = 60
LONG = 120.0  # seconds for all of them, on a busy machine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is asked of /proc")


def most_memory(server: Server) -> int:
    """Return the peak memory in bytes."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def large_png(size: int) -> bytes:
    """Return eight by eight pixels with large useless chunks."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 8 * 25))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"juNk", bytes(size)) + pixels + chunk(b"IEND", b"")


def large_pdf(size: int) -> bytes:
    writer = PdfWriter()
    writer.add_blank_page(100, 100)
    writer.add_metadata({"/Title": "Large"})
    writer.add_attachment("much", bytes(size))
    body = io.BytesIO()
    writer.write(body)
    return body.getvalue()


@pytest.mark.parametrize("count", [5, pytest.param(MANY, marks=pytest.mark.soak)])
def test_large_pictures_take_no_memory_of_the_server(start: Start, count: int) -> None:
    server = start()
    file = server.state.parent / "work" / "large.png"
    file.write_bytes(large_png(61 * MIB))
    given = {"name": "ReadImage", "arguments": {"file_path": str(file)}}
    asked = [server.begin("tools/call", given) for _ in range(count)]
    results = [server.result(id, LONG) for id in asked]
    assert [result["content"][0]["type"] for result in results] == ["image"] * count
    assert most_memory(server) < 200 * MIB


@pytest.mark.parametrize("count", [5, pytest.param(MANY, marks=pytest.mark.soak)])
def test_large_pdfs_take_little_memory_of_the_server(start: Start, count: int) -> None:
    """Any number of large ones may come: the others wait, or get an error."""
    server = start("--allow-private", "127.0.0.1", "--browser", "none")
    body = large_pdf(30 * MIB)

    async def scenario() -> list[dict[str, Any]]:
        async with site({"/": (200, {"content-type": "application/pdf"}, body)}) as place:
            given = {"name": "ReadDocs", "arguments": {"url": place.url()}}
            asked = [server.begin("tools/call", given) for _ in range(count)]
            return [await asyncio.to_thread(server.result, id, LONG) for id in asked]

    results = asyncio.run(scenario())
    texts = [result["content"][0]["text"] for result in results]
    assert [text for text in texts if "Title: Large" not in text and "busy" not in text] == []
    assert "Title: Large" in texts[0]
    assert most_memory(server) < 300 * MIB


class FakeWorkspace:
    """A fake workspace with one file in it."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def open_file(self, path: str, limit: int, *, anywhere: bool) -> LocalFile:
        return LocalFile(io.BytesIO(self.data), path, len(self.data))


def test_a_picture_waits_for_those_under_way_and_not_for_what_another_has_waiting() -> None:
    ended: list[str] = []

    async def look(reader: LocalPageReader, principal: str) -> None:
        output = await call(read_image, {"file_path": "/a.png"}, reader=reader, workspace=shelf, principal=principal)
        assert not output.is_error, text(output)
        ended.append(principal)

    async def scenario() -> None:
        reader = page_reader()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(MANY):
                    group.create_task(look(reader, "eve"))
                while dict(reader.workers.depths()).get("picture", (0, 0))[1] < MANY - pool.MAX_AT_ONCE:
                    await asyncio.sleep(0)
                group.create_task(look(reader, "ada"))
        finally:
            await reader.close()

    shelf = FakeWorkspace(large_png(1000))
    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
    assert len(ended) == MANY + 1
    assert ended.index("ada") <= 2 * pool.MAX_AT_ONCE


def test_pages_that_never_arrive_delay_no_other_callers_pages() -> None:
    async def scenario() -> None:
        async with site({"/never": never, "/": b"<p>Here"}) as place:
            reader = page_reader(["127.0.0.1"])
            asked = asyncio.Event()

            async def noted(request: Request) -> None:
                if sum(each.path == "/never" for each in place.requests) == VISITS_SHARE:
                    asked.set()
                await never(request)

            place.pages["/never"] = noted
            eve = [
                asyncio.ensure_future(call(read_docs, {"url": place.url("/never")}, reader=reader, principal="eve"))
                for _ in range(MAX_VISITS + 2)
            ]
            await asked.wait()
            output = await call(read_docs, {"url": place.url("/")}, reader=reader, principal="ada")
            assert "Here" in text(output)
            assert sum(request.path == "/never" for request in place.requests) == VISITS_SHARE
            for waiting in eve:
                waiting.cancel()
            await asyncio.gather(*eve, return_exceptions=True)
            await reader.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_text_that_is_slow_to_decode_does_not_hold_up_the_loop() -> None:
    body = b"\xff\xfe\xfd" * (8 * MIB // 3)

    async def longest(work: "asyncio.Future[Any]") -> float:
        """Return the most CPU seconds of this process between two passes of the loop."""
        gaps = [0.0]
        last = time.process_time()
        while not work.done():
            await asyncio.sleep(0)
            now = time.process_time()
            gaps.append(now - last)
            last = now
        return max(gaps)

    async def scenario() -> float:
        pages = {f"/{n}": (200, {"content-type": "text/plain"}, body) for n in range(4)}
        async with site(pages) as place:
            reader = page_reader(["127.0.0.1"])
            await call(read_docs, {"url": place.url("/0")}, reader=reader)  # loads modules, once
            work = asyncio.gather(*(call(read_docs, {"url": place.url(path)}, reader=reader) for path in pages))
            gap = await longest(work)
            assert ["first" in text(output) for output in work.result()] == [True] * 4
            await reader.close()
            return gap

    assert asyncio.run(asyncio.wait_for(scenario(), PATIENCE)) < 0.1


def test_one_principal_has_its_share_and_another_finds_the_rest() -> None:
    async def scenario() -> None:
        turns = FairQueue(6, "pages", per_principal=4)
        taking = [asyncio.ensure_future(turns.acquire("eve", 5)) for _ in range(6)]
        await asyncio.sleep(0)
        assert (turns.running, turns.waiting) == (4, 2)
        await turns.acquire("ada", 0.01)
        turns.release("ada")
        assert (turns.running, turns.waiting) == (4, 2)
        turns.release("eve")
        await asyncio.sleep(0)
        assert (turns.running, turns.waiting) == (4, 1)
        taking[5].cancel()
        await asyncio.gather(*taking, return_exceptions=True)
        assert (turns.running, turns.waiting) == (4, 0)

    asyncio.run(scenario())


def test_a_caller_that_waits_too_long_or_with_too_many_is_told_what_helps() -> None:
    async def scenario() -> None:
        turns = FairQueue(1, "pictures", max_waiting=2)
        await turns.acquire("ada")
        waiting = [asyncio.ensure_future(turns.acquire("ada", 0.05)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="2 of your pictures are waiting; send fewer at once"):
            await turns.acquire("ada", 5)
        for late in waiting:
            with pytest.raises(
                BusyError, match="the server is busy: it handles 1 pictures at once; try again in a minute"
            ):
                await late
        assert (turns.running, turns.waiting) == (1, 0)

    asyncio.run(scenario())
