"""ReadDocs reads a long page in pieces: it is loaded and converted once, for its reader alone."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

from tests.clients.raw_client import PATIENCE
from tests.tools.fake_web_site import Answer, Site, redirect, site
from tests.tools.reading.pdf.pdf_file import PdfFile, show
from tests.tools.tool_calls import call, text
from toolgate.tools.api.content import Output
from toolgate.tools.api.outbound.fetch import Web
from toolgate.tools.builtin.docs import read_docs
from toolgate.tools.reading.pages.conversions import Conversions
from toolgate.tools.reading.pages.local_page_reader import CHANGED_NOTE, LocalPageReader
from toolgate.tools.reading.workers.pool import Workers

NEXT = re.compile(r"read on with (\S+)\)")


class CountedWorkers(Workers):
    """Workers that count their jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[str] = []

    async def run_job(self, name: str, request: Any, body: Any, timeout: float) -> Any:
        self.jobs.append(name)
        return await super().run_job(name, request, body, timeout)


class CountedReader(LocalPageReader):
    """A page reader that counts conversions."""

    def __init__(self, conversions: Conversions) -> None:
        super().__init__(Web(["127.0.0.1"]), conversions=conversions)
        self.counted = CountedWorkers()

    @property
    def workers(self) -> Workers:
        return self.counted

    async def close(self) -> None:
        await super().close()
        await self.counted.close()


class World:
    def __init__(self, place: Site, reader: CountedReader) -> None:
        self.place, self.reader = place, reader

    @property
    def loads(self) -> int:
        return len(self.place.requests)

    @property
    def conversions(self) -> int:
        return len(self.reader.counted.jobs)

    async def read(self, url: str, principal: str = "ada", **arguments: Any) -> Output:
        output = await call(read_docs, {"url": url, **arguments}, reader=self.reader, principal=principal)
        assert not output.is_error, text(output)
        return output

    async def read_on(self, output: Output, principal: str = "ada", **arguments: Any) -> Output:
        following = NEXT.search(text(output))
        assert following is not None
        return await self.read(following[1], principal, **arguments)

    async def read_all(self, url: str, **arguments: Any) -> list[str]:
        """Return the texts of all pieces."""
        output = await self.read(url, **arguments)
        texts = [output.structured["text"]]
        while output.structured["truncated"]:
            output = await self.read_on(output, **arguments)
            texts.append(output.structured["text"])
        return texts


def run(
    pages: dict[str, Answer], body: Callable[[World], Coroutine[Any, Any, None]], conversions: Conversions | None = None
) -> None:
    async def main() -> None:
        async with site(pages) as place:
            reader = CountedReader(conversions or Conversions(keep=10 * PATIENCE))
            try:
                await body(World(place, reader))
            finally:
                await reader.close()

    asyncio.run(asyncio.wait_for(main(), 4 * PATIENCE))


def book(word: str = "words", count: int = 4_000, **headers: str) -> Answer:
    """Return a page whose text takes some pieces."""
    paragraphs = "".join(
        f"<p>Paragraph {number} has {word} enough to be the content of a page.</p>" for number in range(count)
    )
    html = f"<!doctype html><title>Book</title><article>{paragraphs}</article>"
    lines = {name.replace("_", "-"): value for name, value in headers.items()}
    return 200, {"content-type": "text/html", **lines}, html.encode()


def numbers(texts: list[str]) -> list[int]:
    return [int(number) for each in texts for number in re.findall(r"Paragraph (\d+) has", each)]


def test_a_page_read_to_its_end_is_loaded_and_converted_once() -> None:
    async def body(world: World) -> None:
        for form in ("markdown", "text", "html"):
            loads, conversions = world.loads, world.conversions
            texts = await world.read_all(world.place.url("/book"), format=form)
            assert len(texts) > 2
            assert numbers(texts) == list(range(4_000))
            assert (world.loads - loads, world.conversions - conversions) == (1, 1)

    run({"/book": book()}, body)


def test_a_pdf_of_many_pages_read_to_its_end_is_loaded_and_converted_once() -> None:
    file = PdfFile()
    for page in range(60):
        numbered = range(60 * page, 60 * page + 60)
        lines = [f"Paragraph {number} has words enough to be a line of a page." for number in numbered]
        file.add_page(show(*((50, 780 - 12 * place, line) for place, line in enumerate(lines)), size=9))

    async def body(world: World) -> None:
        texts = await world.read_all(world.place.url("/book.pdf"))
        assert len(texts) > 1
        assert numbers(texts) == list(range(3_600))
        assert (world.loads, world.conversions) == (1, 1)

    run({"/book.pdf": (200, {"content-type": "application/pdf"}, file.to_bytes())}, body)


def test_a_page_is_read_on_under_the_url_that_was_asked_for_and_the_one_it_redirects_to() -> None:
    async def body(world: World) -> None:
        first = await world.read(world.place.url("/old"))
        second = await world.read_on(first)
        same = await world.read(f"{world.place.url('/old')}#toolgate-offset={len(first.structured['text'])}")
        assert second.structured == same.structured
        assert (world.loads, world.conversions) == (2, 1)

    run({"/old": redirect("/book"), "/book": book()}, body)


def test_nobody_gets_a_page_of_another() -> None:
    async def body(world: World) -> None:
        url = world.place.url("/book")
        first = await world.read(url)
        world.place.pages["/book"] = book("other words")
        assert "other words" not in text(await world.read_on(first))
        theirs = await world.read_on(first, "bob")
        assert "other words" in text(theirs) and CHANGED_NOTE not in text(theirs)
        assert "other words" not in text(await world.read_on(first))
        assert (world.loads, world.conversions) == (2, 2)

    run({"/book": book()}, body)


def test_reading_from_the_beginning_loads_the_page_again_and_converts_what_has_changed() -> None:
    async def body(world: World) -> None:
        url = world.place.url("/book")
        first = await world.read(url)
        assert (await world.read(url)).structured == first.structured
        assert (world.loads, world.conversions) == (2, 1)
        world.place.pages["/book"] = book("other words")
        again = await world.read(url)
        assert "other words" in text(again) and CHANGED_NOTE not in text(again)
        assert (world.loads, world.conversions) == (3, 2)
        assert CHANGED_NOTE in text(await world.read_on(first))  # of another reading, perhaps

    run({"/book": book()}, body)


def test_a_page_that_forbids_keeping_is_loaded_for_each_piece_and_a_change_is_told() -> None:
    async def body(world: World) -> None:
        first = await world.read(world.place.url("/book"))
        second = await world.read_on(first)
        assert CHANGED_NOTE not in text(second)
        assert (world.loads, world.conversions) == (2, 1)
        world.place.pages["/book"] = book("other words", cache_control="no-store")
        third = await world.read_on(second)
        assert "other words" in text(third) and CHANGED_NOTE in text(third)
        assert (world.loads, world.conversions) == (3, 2)

    run({"/book": book(cache_control="private, no-store")}, body)


def test_a_text_is_dropped_after_its_time_and_a_later_change_is_told() -> None:
    async def body(world: World) -> None:
        first = await world.read(world.place.url("/book"))
        async with asyncio.timeout(PATIENCE):
            while world.reader.conversions.size:
                await asyncio.sleep(0)
        unchanged = await world.read_on(first)
        assert CHANGED_NOTE not in text(unchanged)
        assert (world.loads, world.conversions) == (2, 2)
        world.place.pages["/book"] = book("other words")
        async with asyncio.timeout(PATIENCE):
            while world.reader.conversions.size:
                await asyncio.sleep(0)
        assert CHANGED_NOTE in text(await world.read_on(first))

    run({"/book": book()}, body, Conversions(keep=0.05))


def test_the_kept_texts_are_bounded_for_all_and_for_each() -> None:
    conversions = Conversions(10 * PATIENCE, max_kept=820_000, max_own=385_000)

    async def body(world: World) -> None:
        for who in ("ada", "bob", "cleo", "dan", "eve"):
            for path in ("/one", "/two", "/three"):
                first = await world.read(world.place.url(path), who)
                loads = world.loads
                await world.read_on(first, who)
                assert world.loads == loads
                assert conversions.size <= 820_000
        assert conversions.size > 385_000
        loads = world.loads
        await world.read(f"{world.place.url('/one')}#toolgate-offset=50", "eve")
        assert world.loads == loads + 1  # her third text has pushed out her first

    run({f"/{name}": book(name, 2_200) for name in ("one", "two", "three")}, body, conversions)
