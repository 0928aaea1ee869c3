"""Questions on the page at two replicas: shown, answered and used at either, each once."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.server.features.replicas.bus.conftest import eventually
from tests.server.features.replicas.bus.conftest import shared_redis as shared_redis
from tests.server.features.replicas.bus.pairs import run_replicas as run_replicas
from toolgate.server.base.bus.bus import Bus
from toolgate.server.calls.pending_questions import GONE, PendingQuestions
from toolgate.server.calls.question import PendingQuestion
from toolgate.server.features.replicas.services.questions import RedisQuestionStore, SharedQuestion
from toolgate.tools.api.errors import StillWaitingError

Run = Callable[..., None]
URL = "https://gate.example/"
CALL = ["ada", "a client", "tools/call", "ask"]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def pair(one: Bus, two: Bus) -> tuple[PendingQuestions, PendingQuestions]:
    names = {one.replica.name, two.replica.name}
    here, there = (PendingQuestions(URL, store=RedisQuestionStore(bus, lambda: names)) for bus in (one, two))
    return here, there


def put(questions: PendingQuestions) -> PendingQuestion:
    return questions.find_or_add("ada", CALL, "name", tool="ask", client="a client", message="Who?", schema=SCHEMA)


async def shown(questions: PendingQuestions) -> str:
    """Return the id of the one question, once a page shows it."""

    async def is_there() -> bool:
        return bool(await questions.list_waiting("ada"))

    await eventually(is_there)
    (view,) = await questions.list_waiting("ada")
    return view.id


async def leave(questions: PendingQuestions, asked: PendingQuestion, **once: Any) -> None:
    """End the call with the question left waiting, as a call without an open page does."""
    with contextlib.suppress(StillWaitingError):
        await questions.wait([asked], 0)
    questions.leave(asked, once)


def test_an_answer_at_another_replica_reaches_the_call_that_waits(run_replicas: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = pair(one, two)
        asked = put(here)
        waiting = asyncio.create_task(here.wait([asked], 20))
        id = await shown(there)
        assert await there.answer_any("ada", id, "accept", {"name": 5}) == "name: this must be text."
        assert await there.answer_any("bob", id, "accept", {"name": "Ada"}) == GONE
        clicks = (each.answer_any("ada", id, "accept", {"name": "Ada"}) for each in (here, there, there))
        assert sorted(map(str, await asyncio.gather(*clicks))) == sorted([GONE, GONE, "None"])
        assert await waiting == [{"action": "accept", "content": {"name": "Ada"}}]
        assert await there.list_waiting("ada") == []

    run_replicas(check)


@pytest.mark.parametrize("times", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_the_repeated_call_gets_the_answer_at_one_replica(run_replicas: Run, times: int) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = pair(one, two)
        for number in range(times):
            asked = put(here)
            await leave(here, asked, key=number)
            assert await there.answer_any("ada", await shown(there), "accept", {"name": "Ada"}) is None
            await asyncio.gather(here.fetch("ada", CALL), there.fetch("ada", CALL))
            kept = [each.once_results("ada", lambda: CALL) for each in (here, there)]
            assert sorted(map(str, kept)) == sorted(["{}", str({"key": number})])
            again = put(there if kept[1] else here)
            assert await (there if kept[1] else here).wait([again], 0) == [
                {"action": "accept", "content": {"name": "Ada"}}
            ]

    run_replicas(check)


def test_an_answer_outlives_its_replica(run_replicas: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = pair(one, two)
        asked = put(here)
        await leave(here, asked)
        assert await here.answer_any("ada", await shown(there), "accept", {"name": "Ada"}) is None
        assert b"Ada" in (await two.keys.get(f"questions {one.replica.name} ada") or b"")
        here.close()
        await one.close()
        await there.fetch("ada", CALL)
        assert await there.wait([put(there)], 0) == [{"action": "accept", "content": {"name": "Ada"}}]
        await there.fetch("ada", CALL)
        assert not put(there).answer.done()

    run_replicas(check)


def test_a_question_whose_id_names_no_replica_is_not_taken(run_replicas: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = pair(one, two)
        asked = put(here)
        await leave(here, asked)
        assert await here.answer_any("ada", await shown(there), "accept", {"name": "Ada"}) is None
        key = f"questions {one.replica.name} ada"
        (question,) = msgspec.msgpack.decode(await one.keys.get(key) or b"", type=list[SharedQuestion])
        forged = msgspec.structs.replace(question, view=msgspec.structs.replace(question.view, id="nowhere.1"))
        await one.keys.set(key, msgspec.msgpack.encode([forged]), 60)
        await there.fetch("ada", CALL)
        assert not put(there).answer.done()

    run_replicas(check)


def test_a_page_that_is_open_at_one_replica_is_open_for_all(run_replicas: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = pair(one, two)
        assert not await here.is_open("ada")
        with there.follow("ada") as changes:
            await eventually(lambda: here.is_open("ada"))
            put(here)
            await asyncio.wait_for(anext(changes), 5)

        async def is_closed() -> bool:
            return not await here.is_open("ada")

        await eventually(is_closed)

    run_replicas(check)


def test_one_tab_decides_at_a_time_and_others_learn_what(run_replicas: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = (each.store for each in pair(one, two))
        assert await here.begin_decision("ada", "x") and not await there.begin_decision("ada", "x")
        await here.end_decision("ada", "x", "You allowed this call.")
        assert await there.find_decision("ada", "x") == "You allowed this call."
        assert await there.begin_decision("ada", "x")

    run_replicas(check)
