"""Rows about long documents: one is read to its end in pieces."""

import asyncio
import itertools
import os
import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tests.bench.growth.measure import Row, Trial
from tests.tools.fake_web_site import Site, site
from tests.tools.tool_calls import call, page_reader, text
from toolgate.tools.builtin.docs import read_docs
from toolgate.tools.reading.pages.local_page_reader import LocalPageReader

NEXT = re.compile(r"read on with (\S+)\)")
PARAGRAPH = "<p>Words that are long enough to be taken for the content of a page by anyone who reads it.</p>\n"
PIECE = 1_100  # paragraphs: some 100,000 characters


@asynccontextmanager
async def open_site() -> AsyncGenerator[tuple[LocalPageReader, Site]]:
    """Yield a reader and a web site."""
    async with site() as place:
        reader = page_reader(["127.0.0.1"])
        try:
            yield reader, place
        finally:
            await reader.close()


@contextmanager
def read_in_pieces(folder: Path, size: int) -> Generator[Trial]:
    """Yield a trial that reads a page of `size` pieces to its end."""
    with asyncio.Runner() as runner:
        opening = open_site()
        reader, place = runner.run(opening.__aenter__())
        editions = itertools.count()

        async def act() -> None:
            title = f"<!doctype html><title>Edition {next(editions)}</title>"
            place.pages["/book"] = f"{title}<article>{PARAGRAPH * PIECE * size}</article>".encode()
            following: str | None = place.url("/book")
            while following is not None:
                output = text(await call(read_docs, {"url": following}, reader=reader))
                found = NEXT.search(output)
                following = None if found is None else found[1]

        try:
            yield Trial(lambda: runner.run(act()), used_with_children)
        finally:
            runner.run(opening.__aexit__(None, None, None))


def used_with_children() -> float:
    """Return the seconds of processor time of this process and its children, also of those that have ended."""
    children = Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
    return sum(map(_used, ["self", *children]))


def _used(process: str) -> float:
    fields = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # proc(5): utime, stime, cutime, cstime


ROWS = (Row("a document of n pieces is read to its end", 1, read_in_pieces, most=1.5, actions=3),)
