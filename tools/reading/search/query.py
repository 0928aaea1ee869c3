"""Query one engine within its time limit, and return the outcome."""

import asyncio
import logging
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from toolgate.tools.api.context.services import Page
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.outbound.errors import PageTimeoutError
from toolgate.tools.api.text.cleaning import to_line
from toolgate.tools.reading.search.engine import (
    EngineBlockedError,
    EngineFailedError,
    EngineQuery,
    EngineRequest,
)
from toolgate.tools.reading.search.html_engine import BuildRequestJob, ReadResultsJob, ResultReader
from toolgate.tools.reading.search.outcome import EngineOutcome, Status

if TYPE_CHECKING:  # start-up of a worker
    from toolgate.tools.api.outbound.fetch import Web

T = TypeVar("T")
log = logging.getLogger(__name__)

MAX_ANSWER = 2 * 2**20  # bytes of an engine's answer; pages of results reach one MiB
MAX_REASON = 160  # characters


async def ask_engine(web: "Web", reader: ResultReader, query: EngineQuery, contact: str = "") -> EngineOutcome:
    """Return the engine's outcome, within the engine's own time. Raises only CancelledError."""
    engine = query.engine

    async def fetch(request: EngineRequest) -> Page:
        # Name this program, so that an operator can reach its users
        agent = {"user-agent": f"Mozilla/5.0 (compatible; toolgate; +{contact})"} if contact else {}
        return await web.fetch(
            request.url,
            method=request.method,
            headers={**agent, **request.headers},
            body=request.body,
            limit=MAX_ANSWER,
            redirects=5,
            lane=engine.name,
        )

    async def work(job: BuildRequestJob | ReadResultsJob, kind: type[T]) -> T:
        query.is_queued = True
        return await reader.read(query, job, kind)

    status: Status
    query.begin()
    query.until = asyncio.get_running_loop().time() + engine.seconds
    start = time.monotonic()
    try:
        async with asyncio.timeout_at(query.until):
            reading = await engine.ask(query.query, fetch, work)
        status = "ok" if reading.results else "empty"
        outcome = EngineOutcome(engine.name, status, reading.results, wait=reading.wait)
    except (TimeoutError, PageTimeoutError):
        outcome = timeout_outcome(query, f"within {engine.seconds:g} s")
    except EngineFailedError as error:
        status, is_fault = "blocked" if isinstance(error, EngineBlockedError) else "error", error.is_engine_fault
        outcome = EngineOutcome(engine.name, status, reason=error.reason, wait=error.wait, is_engine_fault=is_fault)
    except ToolError as error:
        outcome = EngineOutcome(engine.name, "error", reason=to_line(error.text, MAX_REASON), is_engine_fault=True)
    except Exception:  # one engine's nonsense must not fail the others
        log.warning("the answer of search engine %s can't be read", engine.name, exc_info=True)
        outcome = EngineOutcome(engine.name, "error", reason="its answer can't be read", is_engine_fault=True)
    return msgspec.structs.replace(outcome, ms=elapsed_ms(start))


def timeout_outcome(query: EngineQuery, when: str) -> EngineOutcome:
    name = query.engine.name
    if query.is_queued:
        return EngineOutcome(name, "timeout", reason="too many searches at once: its turn did not come")
    return EngineOutcome(name, "timeout", reason=f"no answer {when}", is_engine_fault=True)


def elapsed_ms(start: float) -> int:
    return round((time.monotonic() - start) * 1000)
