"""Asks one engine and says how it did. Knows statuses and time limits; remembers nothing and ranks nothing."""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.text import folded
from toolgate.tools.search.ddgs_client import Reader
from toolgate.tools.search.engine import Blocked, Engine, Failed, Found, Request
from toolgate.tools.search.html_engine import Results, Wording
from toolgate.tools.web.fetch import TimedOut

if TYPE_CHECKING:
    from toolgate.tools.web.fetch import Page, Web

T = TypeVar("T")
log = logging.getLogger(__name__)

MAX_ANSWER = 2 * 2**20  # bytes of an engine's answer; pages of results have up to one
MAX_REASON = 160  # characters

Status = Literal["ok", "empty", "blocked", "timeout", "error"]


class Outcome(msgspec.Struct, frozen=True):
    """How one engine did: `found` is its results, best first; `ms` how long it took; `reason` why it has none.

    `wait`: seconds it wants to be left alone for. `faulty`: this tells of the engine, not of what it was asked, nor of
    how busy we are. `age`: seconds since it said so, where it was not asked again.
    """

    name: str
    status: Status
    found: list[Found] = []
    ms: int = 0
    reason: str = ""
    wait: float = 0.0
    faulty: bool = False
    age: float | None = None


@dataclass(slots=True, eq=False)
class Question:
    """What is put to an engine. `queued`: it waits for other questions, so that the engine is not to blame if it is
    late."""

    engine: Engine
    query: str
    queued: bool = True

    def begin(self) -> None:
        self.queued = False


async def ask(web: "Web", reader: Reader, question: Question, contact: str = "") -> Outcome:
    """Ask it, for at most the engine's own time. Raises nothing but CancelledError."""
    engine = question.engine

    async def fetch(request: Request) -> "Page":
        headers = {**_identity(contact), **request.headers}
        return await web.fetch(
            request.url,
            method=request.method,
            headers=headers,
            body=request.body,
            limit=MAX_ANSWER,
            redirects=5,
            lane=engine.name,
        )

    async def work(job: Wording | Results, kind: type[T]) -> T:
        question.queued = True
        return await reader.read(job, kind, question.begin)

    question.begin()
    start = time.monotonic()
    try:
        async with asyncio.timeout(engine.seconds):
            reading = await engine.ask(question.query, fetch, work)
        status: Status = "ok" if reading.found else "empty"
        outcome = Outcome(engine.name, status, reading.found, wait=reading.wait)
    except (TimeoutError, TimedOut):
        outcome = late(question, f"within {engine.seconds:g} s")
    except Blocked as error:
        outcome = Outcome(engine.name, "blocked", reason=error.reason, wait=error.wait, faulty=True)
    except Failed as error:
        outcome = Outcome(engine.name, "error", reason=error.reason, wait=error.wait, faulty=error.faulty)
    except ToolError as error:
        outcome = Outcome(engine.name, "error", reason=folded(error.text, MAX_REASON), faulty=True)
    except Exception:  # an engine that answers nonsense must not take the others with it
        log.warning("search engine %s answered what can't be read", engine.name, exc_info=True)
        outcome = Outcome(engine.name, "error", reason="its answer can't be read", faulty=True)
    return msgspec.structs.replace(outcome, ms=since(start))


def late(question: Question, when: str) -> Outcome:
    name = question.engine.name
    if question.queued:
        return Outcome(name, "timeout", reason="too many searches at once: its turn did not come")
    return Outcome(name, "timeout", reason=f"no answer {when}", faulty=True)


def since(start: float) -> int:
    """Milliseconds."""
    return round((time.monotonic() - start) * 1000)


def _identity(contact: str) -> dict[str, str]:
    """Who asks: whoever runs an engine can then ask us to stop."""
    return {"user-agent": f"Mozilla/5.0 (compatible; toolgate; +{contact})"} if contact else {}
