"""Measure a search whose engines take 0.1 to 5 s each: stand-ins on loopback that answer after their time. It should
take the slowest engine's time, or the deadline, not the sum."""

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.tools.engines import answers
from tests.tools.engines.fake_engines import street, table
from tests.tools.fake_web_site import Answer, Request

SECONDS = {
    "wikipedia": 0.1,
    "hackernews": 0.2,
    "github": 0.3,
    "stackexchange": 0.5,
    "crossref": 1.0,
    "marginalia": 1.5,
    "mdn": 2.0,
    "mwmbl": 3.0,
    "europepmc": 4.0,
    "arxiv": 5.0,
}
DEADLINES = (6.0, 2.5, 0.75)
ENGINE_TIME = 5.0  # an engine that takes as long is reported as late
SLACK = 0.25  # seconds that querying and fusing may add


@dataclass(frozen=True)
class Figure:
    """One deadline. Times are in seconds; `answered`: how many engines answered in time, of how many could."""

    deadline: float
    expected: float
    took: float
    total: float
    answered: int
    able: int

    @property
    def met(self) -> bool:
        return self.took <= self.expected + SLACK and self.answered == self.able


def measure(rounds: int, pace: float, tell: Callable[[str], None]) -> list[Figure]:
    """Return a figure per deadline. `pace` scales all times except the engines' own limit."""
    return [asyncio.run(_figure(deadline, rounds, pace, tell)) for deadline in DEADLINES]


async def _figure(deadline: float, rounds: int, pace: float, tell: Callable[[str], None]) -> Figure:
    took: list[float] = []
    answered: list[int] = []
    async with street(
        {name: _after(name, seconds * pace) for name, seconds in SECONDS.items()},
        deadline=deadline * pace,
        seconds=dict.fromkeys(SECONDS, ENGINE_TIME),
    ) as place:
        await place.web.fetch(place.site.url("/"))  # load modules before the measurement
        for turn in range(rounds):
            tell(f"search with a deadline of {deadline:g} s, {turn + 1} of {rounds}")
            place.clock.now += 3_600  # end the rest of late engines
            start = time.perf_counter()
            output = await place.find(f"query {turn}")
            took.append(time.perf_counter() - start)
            answered.append(sum(status == "ok" for status, _ in table(output).values()))
    limits = (deadline * pace, ENGINE_TIME)
    able = sum(seconds * pace < min(limits) for seconds in SECONDS.values())
    slowest = max(SECONDS.values()) * pace
    return Figure(
        deadline, min(*limits, slowest), statistics.median(took), pace * sum(SECONDS.values()), min(answered), able
    )


def _after(name: str, seconds: float) -> Answer:
    status, headers, body = answers.with_results(name)  # type: ignore[misc]

    async def answer(request: Request) -> None:
        await asyncio.sleep(seconds)
        await request.send(status, {"content-length": str(len(body)), **headers}, body)

    return answer


def report(figures: list[Figure]) -> str:
    lines = ["WebSearch, ten engines that take 0.1 to 5 s", "", "deadline   took   slowest or deadline   sum   in time"]
    for one in figures:
        lines.append(
            f"{one.deadline:6.2f} s {one.took:5.2f} s {one.expected:17.2f} s {one.total:5.1f} s"
            f"   {one.answered}/{one.able}"
            f"  {'met' if one.met else 'NOT MET'}"
        )
    return "\n".join(lines)
