"""A site on loopback with a fake for each engine, at the path of its name, and a search that queries them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from tests.tools.engines import answers as shapes
from tests.tools.fake_web_site import Answer, Site, site
from tests.tools.tool_calls import BOUND, call
from toolgate.tools.api.content import Output
from toolgate.tools.api.context.services import Settings
from toolgate.tools.api.outbound.fetch import Web
from toolgate.tools.reading.pages.local_page_reader import LocalPageReader
from toolgate.tools.reading.search.engines import KEYED, choose_engines
from toolgate.tools.reading.search.search import Search
from toolgate.tools.reading.search.tool import web_search
from toolgate.tools.reading.workers.pool import Workers

KEYS = {name: f"key-of-{name}" for name in KEYED}


class Clock:
    """A clock that advances when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeEngines:
    site: Site
    web: Web
    workers: Workers
    search: Search
    clock: Clock

    async def find(self, query: str = "frobs", hold: float = 45.0) -> Output:
        bound = BOUND + min(hold, self.search.deadline)
        return await call(web_search, {"query": query}, bound=bound, search=self.search, settings=Settings(hold=hold))

    async def statuses(self, query: str = "frobs") -> dict[str, tuple[str, int]]:
        return table(await self.find(query))

    def asked(self, name: str) -> int:
        """Return how many queries an engine got."""
        return sum(request.path == f"/{name}" for request in self.site.requests)


def hasten(seconds: float) -> None:
    """Run now what the loop would do within `seconds`, however busy the machine is."""
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]


@contextlib.asynccontextmanager
async def street(
    answers: Mapping[str, Answer],
    *,
    deadline: float = 15.0,
    seconds: Mapping[str, float] | None = None,
    contact: str = "",
    entries: Iterable[str] = (),
) -> AsyncIterator[FakeEngines]:
    pages = {f"/{name}": answer for name, answer in answers.items()}
    if "searxng" in answers:
        pages["/searxng/search"] = answers["searxng"]
    async with site({"/": shapes.STARTPAGE_HOME, **pages}) as place:
        named = [f"{name}={place.url('/' + name)}" for name in answers]
        engines = [
            msgspec.structs.replace(engine, seconds=(seconds or {}).get(engine.name, 40.0))
            for engine in choose_engines([*named, *entries], None, KEYS)
        ]
        web = Web(["127.0.0.1"])
        reader = LocalPageReader(web)
        clock = Clock()
        try:
            yield FakeEngines(
                place,
                web,
                reader.workers,
                Search(web, reader.create_result_reader, engines, deadline=deadline, contact=contact, clock=clock),
                clock,
            )
        finally:
            await reader.close()


def table(output: Output) -> dict[str, tuple[str, int]]:
    return {row["name"]: (row["status"], row["count"]) for row in output.structured["engines"]}
