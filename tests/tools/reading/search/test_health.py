"""WebSearch over several searches: resting engines, cached answers, concurrency, and cancellation."""

import asyncio
import contextlib
import gc
import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from typing import Any

import psutil
import pytest

from tests.clients.raw_client import PATIENCE
from tests.servers.reserved_port import kept_port
from tests.tools.engines import answers as shapes
from tests.tools.engines.fake_engines import FakeEngines, hasten, street
from tests.tools.fake_web_site import Answer, Request, gone, never
from tests.tools.reading.search.test_search import answered, github, hn
from tests.tools.tool_calls import text
from toolgate.tools.api.concurrency.fair_queue import FairQueue
from toolgate.tools.api.context.services import Page
from toolgate.tools.reading.search.engine import parse_wait
from toolgate.tools.reading.search.health import MAX_REST, REST, EngineHealth
from toolgate.tools.reading.search.outcome import EngineOutcome
from toolgate.tools.reading.search.search import AT_ONCE, MAX_ANSWERS, AnswerCache, Tally

FINE = hn("https://a.example/")
BROKEN = answered("boom", 500)


def within(
    answers: Mapping[str, Answer], body: Callable[[FakeEngines], Awaitable[None]], deadline: float = 15.0
) -> None:
    async def scenario() -> None:
        async with street(answers, deadline=deadline) as place:
            await asyncio.wait_for(body(place), 3 * PATIENCE + deadline)

    asyncio.run(scenario())


async def sent(request: Request, answer: Answer) -> None:
    status, headers, data = answer  # type: ignore[misc]
    await request.send(status, {"content-length": str(len(data)), **headers}, data)


# -- resting engines


def test_an_engine_that_keeps_failing_is_skipped_and_tried_again() -> None:
    async def body(place: FakeEngines) -> None:
        for n in range(3):
            assert (await place.statuses(f"q{n}"))["github"] == ("error", 0)
        assert place.asked("github") == 3
        output = await place.find("q4")
        assert "github error 0 (0 ms: HTTP 500; next try in 30 s)" in text(output)
        assert place.asked("github") == 3

        place.clock.now += REST
        assert (await place.statuses("q5"))["github"] == ("error", 0)
        assert place.asked("github") == 4
        assert "next try in 30 s" in text(await place.find("q6"))  # the first rest has the initial length

        place.clock.now += REST
        await place.find("q7")
        assert "next try in 60 s" in text(await place.find("q8"))

        place.site.pages["/github"] = github("https://b.example/")
        place.clock.now += 2 * REST
        assert (await place.statuses("q9"))["github"] == ("ok", 1)
        place.site.pages["/github"] = BROKEN
        for n in range(3):
            await place.find(f"r{n}")
        assert "next try in 30 s" in text(await place.find("r4"))

    within({"github": BROKEN, "hackernews": FINE}, body)


def test_after_its_rest_one_search_tries_the_engine_and_the_others_skip_it() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def held(request: Request) -> None:
        asked.set()
        await answer.wait()
        await sent(request, github("https://b.example/"))

    async def body(place: FakeEngines) -> None:
        for n in range(3):
            await place.find(f"q{n}")
        place.clock.now += REST
        place.site.pages["/github"] = held
        trying = asyncio.ensure_future(place.find("try"))
        await asked.wait()
        other = await place.find("other")
        assert "github error 0 (0 ms: HTTP 500; another search is trying it)" in text(other)
        answer.set()
        assert not (await trying).is_error
        assert place.asked("github") == 4
        place.site.pages["/github"] = github("https://c.example/")
        assert (await place.statuses("after"))["github"] == ("ok", 1)

    within({"github": BROKEN, "hackernews": FINE}, body)


def test_a_search_cancelled_during_a_trial_leaves_the_trial_to_the_next() -> None:
    asked = asyncio.Event()

    async def held(request: Request) -> None:
        asked.set()
        await never(request)

    async def body(place: FakeEngines) -> None:
        for n in range(3):
            await place.find(f"q{n}")
        place.clock.now += REST
        place.site.pages["/github"] = held
        trying = asyncio.ensure_future(place.find("try"))
        await asked.wait()
        trying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trying
        place.site.pages["/github"] = github("https://c.example/")
        assert (await place.statuses("after"))["github"] == ("ok", 1)

    within({"github": BROKEN}, body)


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (answered("slow down", 429, retry_after="90"), 90),
        (answered("later", 503, retry_after="45"), 45),
        (answered("l", 429, date="Sun, 06 Nov 1994 08:49:37 GMT", retry_after="Sun, 06 Nov 1994 08:51:37 GMT"), 120),
        (
            answered(
                "x", 403, date="Sun, 06 Nov 1994 08:49:37 GMT", x_ratelimit_remaining="0", x_ratelimit_reset="784111807"
            ),
            30,
        ),
        (answered({"items": [], "backoff": 20}), 20),
        (answered({"error_id": 502, "error_name": "throttle_violation", "backoff": 70}, 400), 70),
        (answered({"error_id": 400, "error_message": "bad parameter", "backoff": 15}, 400), 15),
        (answered("slow down", 429), 30),
        (answered("slow down", 429, retry_after="999999"), 3600),
    ],
)
def test_an_engine_is_skipped_for_as_long_as_it_asks(answer: Answer, seconds: int) -> None:
    async def body(place: FakeEngines) -> None:
        await place.find("first")
        place.clock.now += seconds - 1
        assert (await place.statuses("second"))["stackexchange"][0] in ("blocked", "error")
        assert "next try in 1 s" in text(await place.find("third"))
        assert place.asked("stackexchange") == 1
        place.clock.now += 1
        await place.find("fourth")
        assert place.asked("stackexchange") == 2

    within({"stackexchange": answer}, body)


def test_an_invalid_retry_after_is_no_wait() -> None:
    for headers in ({"retry-after": "soon"}, {"retry-after": "-5"}, {"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}):
        assert parse_wait(Page("http://a.example/", 429, headers, b"", False)) == 0


def test_a_date_is_compared_with_our_clock_where_the_engine_does_not_tell_its_own() -> None:
    after = formatdate(time.time() + 100, usegmt=True)
    assert 50 < parse_wait(Page("http://a.example/", 429, {"retry-after": after}, b"", False)) <= 100


def test_a_query_that_an_engine_can_not_read_says_nothing_of_the_engine() -> None:
    async def body(place: FakeEngines) -> None:
        for n in range(5):
            assert await place.statuses(f"q{n}") == {"github": ("error", 0)}
        assert place.asked("github") == 5

    within({"github": answered({"message": "Validation Failed"}, 422)}, body)


def test_rests_grow_up_to_ten_minutes() -> None:
    now = 0.0
    health = EngineHealth("x", lambda: now)
    rests = []
    failure = EngineOutcome("x", "error", reason="HTTP 500", is_engine_fault=True)
    for _ in range(9):
        while health.skip_outcome() is None:
            health.record(failure, health.begin())
        start = now
        while health.skip_outcome() is not None:
            now += 1
        rests.append(now - start)
    assert rests == [30, 30, 60, 120, 240, 480, 600, 600, MAX_REST]


def test_failures_of_concurrent_queries_count_as_one_and_prolong_no_rest() -> None:
    now = 0.0
    health = EngineHealth("x", lambda: now)
    failure = EngineOutcome("x", "error", reason="HTTP 500", is_engine_fault=True)
    for _ in range(2):
        for asked in [health.begin() for _ in range(16)]:  # together: they count as one
            health.record(failure, asked)
        assert health.skip_outcome() is None
    together = [health.begin() for _ in range(16)]
    for asked in together:
        health.record(EngineOutcome("x", "blocked", reason="HTTP 429", is_engine_fault=True), asked)
    assert health.skip_outcome() is not None
    now += REST
    assert health.skip_outcome() is None
    trial = health.begin()
    health.record(EngineOutcome("x", "timeout", is_engine_fault=True), together[0])  # of a search from before
    assert health.skip_outcome() is not None
    health.record(EngineOutcome("x", "ok"), trial)
    assert health.skip_outcome() is None


# -- cached answers


def test_a_search_that_is_repeated_asks_only_the_engines_that_failed() -> None:
    async def body(place: FakeEngines) -> None:
        first = await place.find("same")
        place.site.pages["/github"] = github("https://b.example/")
        place.clock.now += 100
        second = await place.find("  same ")
        assert (place.asked("hackernews"), place.asked("marginalia"), place.asked("github")) == (1, 1, 2)
        assert "hackernews ok 1 (as 100 s ago)" in text(second)
        assert "as 100 s ago" not in text(first)
        assert len(second.structured["results"]) == 2
        place.clock.now += 21
        await place.find("same")
        assert (place.asked("hackernews"), place.asked("github")) == (2, 2)

    within({"hackernews": FINE, "marginalia": shapes.without("marginalia"), "github": BROKEN}, body)


def test_a_cached_answer_reveals_no_other_callers_query() -> None:
    async def body(place: FakeEngines) -> None:
        await place.search.ask("one", "secret", 5)
        (outcome,) = await place.search.ask("two", "secret", 5)
        assert outcome.age is None
        assert place.asked("hackernews") == 2

    within({"hackernews": FINE}, body)


def test_the_same_search_at_once_is_asked_once_for_each_caller() -> None:
    async def body(place: FakeEngines) -> None:
        whos = [f"caller {n % 3}" for n in range(30)]
        answers = await asyncio.gather(*(place.search.ask(who, "same", 10) for who in whos))
        assert [[one.status for one in outcomes] for outcomes in answers] == [["ok", "ok"]] * 30
        assert (place.asked("hackernews"), place.asked("mojeek")) == (3, 3)

    within({"hackernews": FINE, "mojeek": shapes.with_results("mojeek")}, body)


def test_a_search_that_is_cancelled_takes_nothing_from_the_same_one_of_another_call() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def held(request: Request) -> None:
        asked.set()
        await answer.wait()
        await sent(request, github("https://b.example/"))

    async def body(place: FakeEngines) -> None:
        first, second = asyncio.ensure_future(place.find()), asyncio.ensure_future(place.find())
        await asked.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        answer.set()
        assert not (await second).is_error
        assert place.asked("github") == 1

    within({"github": held}, body)


def test_cached_answers_are_bounded() -> None:
    recent = AnswerCache(lambda: 0.0)
    for n in range(MAX_ANSWERS + 50):
        recent.store("me", f"q{n}", EngineOutcome("x", "ok"))
    assert len(recent) == MAX_ANSWERS
    assert recent.get("me", "x", "q0") is None
    for status in ("blocked", "timeout", "error"):
        recent.store("me", status, EngineOutcome("x", status))  # type: ignore[arg-type]
        assert recent.get("me", "x", status) is None


# -- many at once, and the end


def connected(port: int) -> int:
    """Return our ends of connections to a port."""
    found = psutil.Process().net_connections("tcp")
    return sum(one.raddr != () and one.raddr.port == port and one.status == "ESTABLISHED" for one in found)


def test_two_hundred_searches_at_once_leave_no_socket_and_no_task_behind() -> None:
    names = ("stackexchange", "hackernews", "github", "mojeek")

    async def body(place: FakeEngines) -> None:
        await place.find("warm")
        gc.collect()
        process = psutil.Process()
        tasks, held = len(asyncio.all_tasks()), process.memory_info().rss
        outputs = await asyncio.gather(*(place.find(f"query {n}", hold=10 * PATIENCE) for n in range(200)))
        grown = process.memory_info().rss - held
        assert all(len(output.structured["results"]) >= 2 for output in outputs)
        at_least = 200 * len(names) // 2  # a busy machine may not do all of them by the deadline
        answers = [row["status"] for output in outputs for row in output.structured["engines"]]
        assert answers.count("ok") >= at_least
        assert set(answers) <= {"ok", "timeout"}
        assert grown < 120 * 2**20
        assert len(asyncio.all_tasks()) <= tasks + place.site.connections  # the fake site's: one per connection
        port = place.site.port
        await place.web.close()
        assert connected(port) == 0

    within({name: shapes.with_results(name) for name in names}, body, deadline=10 * PATIENCE)


async def order(turns: FairQueue, waiting: list[tuple[str, Tally]]) -> list[int]:
    """Return the order in which waiting callers get turns."""
    came: list[int] = []

    async def one(number: int, whose: str, tally: Tally) -> None:
        async with turns.slot(whose, rank=lambda: tally.engines):
            came.append(number)

    async with turns.slot("another"):
        tasks = [asyncio.ensure_future(one(number, *given)) for number, given in enumerate(waiting)]
        await asyncio.sleep(0)
        tasks.pop(1).cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    return came


def test_turns_rotate_among_callers_and_go_to_the_search_with_fewest_engines() -> None:
    some = [Tally(1), Tally(1), Tally(0), Tally(2), Tally(0)]
    greedy, modest = [("greedy", tally) for tally in some], [("modest", Tally(9)), ("modest", Tally(9))]

    async def scenario() -> None:
        turns = FairQueue(1, "questions")
        for _ in range(2):
            assert await order(turns, [*greedy, *modest]) == [2, 5, 4, 6, 0, 3]

    asyncio.run(scenario())


def test_the_turn_of_a_cancelled_search_goes_to_the_next() -> None:
    async def scenario() -> None:
        turns = FairQueue(1, "questions")
        entered: list[str] = []

        async def one(name: str) -> None:
            async with turns.slot(name):
                entered.append(name)

        async with turns.slot("holder"):
            tasks = [asyncio.ensure_future(one(name)) for name in "ab"]
            await asyncio.sleep(0)
        tasks[0].cancel()  # it has its turn, but does not know yet
        await asyncio.gather(*tasks, return_exceptions=True)
        assert entered == ["b"]

    asyncio.run(scenario())


def test_pages_of_one_engine_are_read_in_one_job() -> None:
    async def body(place: FakeEngines) -> None:
        sizes: list[int] = []
        do = place.workers.run_job

        async def noted(name: str, jobs: Any, *given: Any) -> Any:
            sizes.append(len(jobs.jobs))
            return await do(name, jobs, *given)

        place.workers.run_job = noted  # type: ignore[method-assign]
        outputs = await asyncio.gather(*(place.find(f"query {n}") for n in range(16)))
        assert [len(output.structured["results"]) for output in outputs] == [2] * 16
        assert sum(sizes) == 32  # a wording and a page each
        assert len(sizes) < 32

    within({"mojeek": shapes.with_results("mojeek")}, body)


def test_an_engine_whose_pages_take_for_ever_to_read_holds_up_no_other() -> None:
    async def body(place: FakeEngines) -> None:
        do = place.workers.run_job
        never_ends = asyncio.Event()

        async def hung(name: str, jobs: Any, *given: Any) -> Any:
            if jobs.jobs[0].engine == "duckduckgo":
                await never_ends.wait()
            return await do(name, jobs, *given)

        place.workers.run_job = hung  # type: ignore[method-assign]
        outputs = await asyncio.gather(*(place.find(f"query {n}") for n in range(16)))
        tables = [{row["name"]: row["status"] for row in output.structured["engines"]} for output in outputs]
        assert tables == [{"duckduckgo": "timeout", "mojeek": "ok", "yahoo": "ok"}] * 16

    within({name: shapes.with_results(name) for name in ("duckduckgo", "mojeek", "yahoo")}, body, deadline=8.0)


def test_a_busy_worker_is_not_counted_against_an_engine() -> None:
    async def body(place: FakeEngines) -> None:
        workers = place.workers
        async with workers.turn("search", "x"), workers.turn("search", "y"):
            for n in range(4):
                output = await place.find(f"q{n}")
                assert "mojeek timeout 0" in text(output) and "its turn did not come" in text(output)
        place.search.deadline = 40.0
        assert (await place.statuses("after"))["mojeek"] == ("ok", 2)

    within({"mojeek": shapes.with_results("mojeek")}, body, deadline=0.5)


def test_a_slow_engine_takes_no_connection_from_the_others() -> None:
    served, answer = asyncio.Semaphore(0), asyncio.Event()

    async def fine(request: Request) -> None:
        await sent(request, FINE)
        served.release()

    async def slow(request: Request) -> None:
        await answer.wait()
        await sent(request, github("https://b.example/"))

    async def body(place: FakeEngines) -> None:
        searches = [asyncio.ensure_future(place.find(f"query {n}")) for n in range(30)]
        for _ in searches:
            await served.acquire()
        assert place.asked("github") == AT_ONCE  # the others wait for their turn
        answer.set()
        for output in await asyncio.gather(*searches):
            rows = {row["name"]: row["status"] for row in output.structured["engines"]}
            assert rows == {"hackernews": "ok", "github": "ok"}
        assert place.asked("github") == 30

    within({"hackernews": fine, "github": slow}, body, deadline=40.0)


@pytest.mark.parametrize(("waited", "is_asked"), [(7.0, True), (8.0, False)])
def test_an_engine_whose_turn_comes_too_late_is_not_queried_and_not_blamed(waited: float, is_asked: bool) -> None:
    async def body(place: FakeEngines) -> None:
        turns = place.search._queues["github"]
        async with contextlib.AsyncExitStack() as taken:
            for n in range(AT_ONCE):
                await taken.enter_async_context(turns.slot(f"caller {n}"))
            search = asyncio.ensure_future(place.search.ask("me", "frobs", 10.0))
            while not turns._lines:
                await asyncio.sleep(0)
            place.clock.now += waited
        (outcome,) = await search
        assert (outcome.status, outcome.is_engine_fault) == ("ok" if is_asked else "timeout", False)
        assert ("its turn did not come" in outcome.reason) != is_asked
        assert place.asked("github") == is_asked

    within({"github": github("https://b.example/")}, body)


def test_an_engine_whose_turn_does_not_come_by_the_deadline_is_not_blamed() -> None:
    async def body(place: FakeEngines) -> None:
        async with contextlib.AsyncExitStack() as taken:
            for n in range(AT_ONCE):
                await taken.enter_async_context(place.search._queues["github"].slot(f"caller {n}"))
            (outcome,) = await place.search.ask("me", "frobs", 0.1)
        assert (outcome.status, outcome.is_engine_fault) == ("timeout", False)
        assert "its turn did not come" in outcome.reason
        assert place.asked("github") == 0

    within({"github": github("https://b.example/")}, body)


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
def test_sockets_are_closed_when_a_search_ends_before_its_engines(how: str) -> None:
    asked = {name: asyncio.Event() for name in ("github", "mojeek", "serper")}
    closed = {name: asyncio.Event() for name in asked}

    def held(name: str) -> Answer:
        async def page(request: Request) -> None:
            asked[name].set()
            await gone(request)
            closed[name].set()

        return page

    async def body(place: FakeEngines) -> None:
        before = asyncio.all_tasks()
        search = asyncio.ensure_future(place.find())
        await asyncio.gather(*(event.wait() for event in asked.values()))
        if how == "cancelled":
            search.cancel()
            with pytest.raises(asyncio.CancelledError):
                await search
        else:
            hasten(10.0)
            assert (await search).is_error
        await asyncio.gather(*(event.wait() for event in closed.values()))
        assert not [task for task in asyncio.all_tasks() - before if "_asked" in repr(task)]

    within({name: held(name) for name in asked}, body, deadline=10.0)


def test_connections_are_used_again() -> None:
    async def body(place: FakeEngines) -> None:
        for n in range(5):
            await place.find(f"q{n}")
        assert place.asked("hackernews") == 5
        assert place.site.connections == 1

    within({"hackernews": FINE}, body)


def test_an_engine_that_does_not_listen_is_an_error_with_its_reason() -> None:
    url = f"http://127.0.0.1:{kept_port()}/"

    async def scenario() -> None:
        async with street({"hackernews": FINE}, entries=[f"github={url}"]) as place:
            output = await place.find()
            assert "connection refused" in text(output)
            assert (await place.statuses())["github"] == ("error", 0)

    asyncio.run(scenario())
