"""The queue of deliveries: order, retries, fairness, cancellation and its end. The receivers are functions."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.server.features.events.webhooks.fake_outbox import FakeOutbox
from tests.server.features.events.webhooks.fake_receiver import ACCEPTED, HOST, receiver, sender
from tests.tools.api.outbound.test_fetch import run
from tests.tools.fake_web_site import Answer, never
from toolgate.server.features.events.webhooks import delivery_queue
from toolgate.server.features.events.webhooks.delivery import Delivery, Disposition, Outcome
from toolgate.server.features.events.webhooks.delivery_queue import DeliveryQueue
from toolgate.server.features.events.webhooks.retry_schedule import RetrySchedule
from toolgate.server.features.events.webhooks.turns import TurnLimits

ACKNOWLEDGED = Outcome(Disposition.ACKNOWLEDGED)
GONE = Outcome(Disposition.FINAL, "http_4xx")
DOWN = Outcome(Disposition.RETRY, "http_5xx")
TIMEOUT = Outcome(Disposition.RETRY, "timeout")
QUICK = RetrySchedule(pauses=(0.001,) * 5, probe=0.001, random=lambda: 0.5)
NEVER = RetrySchedule(pauses=(1_000.0,), random=lambda: 0.5)


@dataclass
class FakeReceivers:
    """Answers each delivery by its URL: with an outcome, or never. `sent`: the ids, in order."""

    outcomes: dict[str, Outcome | None] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    running: Counter[str] = field(default_factory=lambda: Counter[str]())
    most: Counter[str] = field(default_factory=lambda: Counter[str]())
    cancelled: list[str] = field(default_factory=list)

    async def send(self, delivery: Delivery) -> Outcome:
        self.sent.append(delivery.id)
        keys = "all", delivery.principal, delivery.url, f"subscription {delivery.subscription}"
        self.running.update(keys)
        self.most |= self.running
        try:
            outcome = self.outcomes.get(delivery.url, ACKNOWLEDGED)
            if outcome is None:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            assert outcome is not None
            return outcome
        except asyncio.CancelledError:
            self.cancelled.append(delivery.id)
            raise
        finally:
            self.running.subtract(keys)


@asynccontextmanager
async def queue(
    outbox: FakeOutbox, send: Callable[[Delivery], Awaitable[Outcome]], **options: Any
) -> AsyncIterator[DeliveryQueue]:
    working = DeliveryQueue(outbox, send, **options)
    try:
        yield working
    finally:
        await working.close(0.0)


def test_what_the_outbox_holds_from_before_is_delivered() -> None:
    async def scenario() -> None:
        outbox, receivers = FakeOutbox(), FakeReceivers()
        for number in range(3):
            outbox.put(f"a{number}", url="https://a.example/")
        outbox.put("b0", url="https://b.example/")
        async with queue(outbox, receivers.send, now=lambda: 7.5) as working:
            await working.start()
            await outbox.wait_for(4)
            assert [id for id in receivers.sent if id[0] == "a"] == ["a0", "a1", "a2"]
            assert {(outcome, retry_at) for _, outcome, retry_at in outbox.noted} == {(ACKNOWLEDGED, None)}
            await settle(working)
            counters = working.counters
            assert (counters.delivered, counters.abandoned, dict(counters.failures)) == (4, 0, {})
            assert (counters.lag, counters.last_lag) == (30.0, 7.5)

    run(scenario())


async def settle(working: DeliveryQueue) -> None:
    """Wait until the queue holds nothing, in a bounded number of the loop's turns."""
    for _ in range(1_000):
        if not working.pending and not working.running:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{working.pending} are pending, {working.running} are running")


def test_order_is_kept_through_failures() -> None:
    async def scenario() -> None:
        outbox, receivers = FakeOutbox(), FakeReceivers({"https://a.example/": DOWN})
        for number in range(3):
            outbox.put(f"a{number}", url="https://a.example/")
        async with queue(outbox, receivers.send, schedule=QUICK) as working:
            await working.start()
            await outbox.wait_for(4)
            assert set(receivers.sent) == {"a0"}
            receivers.outcomes.clear()
            await settle_in_time(working)
        assert list(dict.fromkeys(receivers.sent)) == ["a0", "a1", "a2"]
        assert receivers.most["subscription p https://a.example/"] == 1
        assert receivers.sent[:4] == ["a0"] * 4

    run(scenario())


async def settle_in_time(working: DeliveryQueue) -> None:
    while working.pending:
        await asyncio.sleep(0.001)


def test_a_delivery_that_is_gone_makes_room_for_the_next() -> None:
    async def scenario() -> None:
        outbox, receivers = FakeOutbox(), FakeReceivers({"https://a.example/": GONE})
        for number in range(3):
            outbox.put(f"a{number}", url="https://a.example/")
        async with queue(outbox, receivers.send) as working:
            await working.start()
            await outbox.wait_for(3)
            await settle(working)
            assert receivers.sent == ["a0", "a1", "a2"]
            assert (working.counters.abandoned, dict(working.counters.failures)) == (3, {"http_4xx": 3})

    run(scenario())


def test_the_next_attempt_is_stored_with_its_time() -> None:
    async def scenario() -> None:
        outbox, receivers = FakeOutbox(), FakeReceivers({"https://a.example/": DOWN})
        outbox.put("a", url="https://a.example/")
        async with queue(outbox, receivers.send, schedule=NEVER, now=lambda: 50.0) as working:
            await working.start()
            await outbox.wait_for(1)
            assert outbox.noted == [("a", DOWN, 1050.0)]
            assert (working.pending, dict(working.counters.failures)) == (1, {"http_5xx": 1})

    run(scenario())


def test_a_new_event_does_not_hasten_a_retry_but_retry_now_does() -> None:
    async def scenario() -> None:
        outbox, receivers = FakeOutbox(), FakeReceivers({"https://a.example/": DOWN})
        outbox.put("a0", url="https://a.example/")
        async with queue(outbox, receivers.send, schedule=NEVER) as working:
            await working.start()
            await outbox.wait_for(1)
            outbox.put("a1", url="https://a.example/")
            working.add(outbox.pending("p https://a.example/"))
            for _ in range(20):
                await asyncio.sleep(0)
            assert receivers.sent == ["a0"]
            receivers.outcomes.clear()
            working.retry_now("p https://a.example/")
            working.retry_now("unknown")
            await outbox.wait_for(3)
            await settle(working)
            assert receivers.sent == ["a0", "a0", "a1"]

    run(scenario())


def test_a_delivery_that_is_due_later_waits_for_one_timer() -> None:
    async def scenario() -> None:
        outbox, receivers = FakeOutbox(), FakeReceivers()
        for number in range(100):
            outbox.put(f"a{number}", url=f"https://a{number}.example/")
            outbox.due[f"p https://a{number}.example/"] = 1_000.0 + (0.05 if number % 2 else 500.0)
        async with queue(outbox, receivers.send, now=lambda: 1_000.0) as working:
            await working.start()
            assert timers() == 1
            await outbox.wait_for(50)
            assert {int(id[1:]) % 2 for id in receivers.sent} == {1}
            assert timers() == 1
        assert timers() == 0

    def timers() -> int:
        scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        return sum(not timer.cancelled() and "DeliveryQueue" in repr(timer) for timer in scheduled)

    run(scenario())


def test_what_is_added_together_is_read_together() -> None:
    async def scenario() -> None:
        outbox, receivers = FakeOutbox(), FakeReceivers()
        for number in range(10):
            outbox.put(f"a{number}", url=f"https://a{number}.example/")
        async with queue(outbox, receivers.send) as working:
            await working.start()
            await outbox.wait_for(10)
            assert [len(read) for read in outbox.reads] == [10]

    run(scenario())


def test_an_event_that_comes_during_a_delivery_follows_it() -> None:
    async def scenario() -> None:
        outbox = FakeOutbox()
        sent: list[str] = []

        async def send(delivery: Delivery) -> Outcome:
            sent.append(delivery.id)
            if delivery.id == "a0":
                outbox.put("a1", subscription="s")
                working.add(outbox.pending("s"))
            return ACKNOWLEDGED

        outbox.put("a0", subscription="s")
        async with queue(outbox, send) as working:
            await working.start()
            await outbox.wait_for(2)
            await settle(working)
            assert sent == ["a0", "a1"]

    run(scenario())


def test_a_receiver_that_hangs_costs_the_others_nothing() -> None:
    async def scenario() -> None:
        outbox, receivers = FakeOutbox(), FakeReceivers({"https://hanging.example/": None})
        for number in range(1_000):
            outbox.put(f"h{number}", f"h{number}", "https://hanging.example/")
        async with queue(outbox, receivers.send) as working:
            await working.start()
            while receivers.running["all"] < 12:
                await asyncio.sleep(0)
            for number in range(100):
                outbox.put_and_add(working, f"g{number}", "good", f"https://good{number}.example/")
            await outbox.wait_for(100)
            assert working.running == 12
            assert {id[0] for id, _, _ in outbox.noted} == {"g"}
            assert receivers.most["https://hanging.example/"] == 12

    run(scenario())


def test_a_thousand_that_fail_at_once_cost_the_others_nothing() -> None:
    """Counted in deliveries: a principal's single delivery is among the next ones to begin."""

    async def scenario() -> None:
        outbox, receivers = FakeOutbox(), FakeReceivers()
        for number in range(1_000):
            url = f"https://down{number}.example/"
            receivers.outcomes[url] = DOWN
            outbox.put(f"d{number}", "flood", url)
        async with queue(outbox, receivers.send, schedule=NEVER) as working:
            await working.start()
            await outbox.wait_for(100)
            before = len(receivers.sent)
            outbox.put_and_add(working, "good", "quiet", "https://good.example/")
            await outbox.wait_for(1_001)
            assert receivers.sent.index("good") - before <= 16  # a principal's slots
            assert receivers.most["flood"] <= 16
            assert (working.running, working.pending) == (0, 1_000)
            assert len({retry_at for _, _, retry_at in outbox.noted if retry_at}) > 1

    run(scenario())


def test_the_limits_hold_in_all_per_principal_and_per_host() -> None:
    async def scenario() -> None:
        outbox, receivers = FakeOutbox(), FakeReceivers()
        for principal in range(20):
            for number in range(20):
                host = "shared" if number % 2 else f"h{principal}-{number}"
                name = f"s{principal}-{number}"
                outbox.put(name, f"p{principal}", f"https://{host}.example/", name)
        limits = TurnLimits(all=12, principal=3, host=5, receiver=2)
        async with queue(outbox, receivers.send, limits=limits) as working:
            await working.start()
            await outbox.wait_for(400)
            assert receivers.most["all"] <= 12
            assert max(receivers.most[f"p{principal}"] for principal in range(20)) <= 3
            assert receivers.most["https://shared.example/"] <= 5

    run(scenario())


def test_nothing_is_sent_for_a_cancelled_subscription() -> None:
    async def scenario() -> None:
        urls = {"hanging": None, "down": DOWN, "good": ACKNOWLEDGED}
        receivers = FakeReceivers({f"https://{name}.example/": outcome for name, outcome in urls.items()})
        outbox = FakeOutbox()
        for name in urls:
            outbox.put(name, url=f"https://{name}.example/", subscription=name)
        async with queue(outbox, receivers.send, schedule=NEVER) as working:
            await working.start()
            await working.cancel("good")  # before its turn
            await outbox.wait_for(1)
            await working.cancel("hanging")  # under way
            await working.cancel("down")  # between two attempts
            await working.cancel("unknown")
            assert (sorted(receivers.sent), receivers.cancelled) == (["down", "hanging"], ["hanging"])
            assert (working.pending, working.running) == (0, 0)
            assert [id for id, _, _ in outbox.noted] == ["down"]
            receivers.outcomes.clear()
            working.add(outbox.pending("hanging"))  # subscribed again under the same id
            await outbox.wait_for(2)
            await settle(working)
            assert receivers.sent.count("hanging") == 2

    run(scenario())


def test_a_subscription_cancelled_while_the_outbox_is_read_gets_nothing() -> None:
    async def scenario() -> None:
        outbox, receivers = FakeOutbox(), FakeReceivers()
        outbox.put("a", subscription="s")
        async with queue(outbox, receivers.send) as working:
            await working.start()
            await asyncio.sleep(0)
            assert working.running == 1
            await working.cancel("s")
            await settle(working)
            assert receivers.sent == []

    run(scenario())


def test_an_outcome_may_cancel_its_own_subscription() -> None:
    async def scenario() -> None:
        class EndingOutbox(FakeOutbox):
            async def note_outcome(self, delivery: Delivery, outcome: Outcome, retry_at: float | None) -> bool:
                await working.cancel(delivery.subscription)
                return await super().note_outcome(delivery, outcome, retry_at)

        outbox, receivers = EndingOutbox(), FakeReceivers()
        for id in ("a0", "a1"):
            outbox.put(id, subscription="s")
        async with queue(outbox, receivers.send) as working:
            await working.start()
            await outbox.wait_for(1)
            await settle(working)
            assert receivers.sent == ["a0"]

    run(scenario())


def test_close_lets_deliveries_under_way_end_and_cancels_those_that_hang() -> None:
    async def scenario() -> None:
        outbox, receivers = FakeOutbox(), FakeReceivers({"https://hanging.example/": None})
        outbox.put("hanging", url="https://hanging.example/")
        outbox.put("good", url="https://good.example/")
        before = asyncio.all_tasks()
        working = DeliveryQueue(outbox, receivers.send)
        await working.start()
        while len(receivers.sent) < 2:
            await asyncio.sleep(0)
        await working.close(0.05)
        assert [id for id, _, _ in outbox.noted] == ["good"]
        assert receivers.cancelled == ["hanging"]
        working.add(outbox.pending("p https://hanging.example/"))
        working.retry_now("p https://hanging.example/")
        assert (working.running, working.pending) == (0, 0)
        await working.close()
        assert asyncio.all_tasks() == before

    run(scenario())


def test_a_broken_outbox_is_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(delivery_queue, "OUTBOX_PAUSE", 0.001)

    async def scenario() -> None:
        outbox, receivers = FakeOutbox(broken=2), FakeReceivers()
        for number in range(2):
            outbox.put(f"a{number}", subscription="s")
        async with queue(outbox, receivers.send) as working:
            await working.start()
            await outbox.wait_for(1)
            outbox.broken = 1  # the end of the second is lost: it is sent again under its id
            await outbox.wait_for(2)
            await settle_in_time(working)
            assert receivers.sent[0] == "a0"
            assert receivers.sent[-1] == "a1"
            assert [id for id, _, _ in outbox.noted] == ["a0", "a1"]

    with caplog.at_level(logging.CRITICAL, "toolgate.webhooks"):
        run(scenario())


def test_a_fault_of_ours_is_a_failed_attempt(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(delivery: Delivery) -> Outcome:
        raise RuntimeError("a fault")

    async def scenario() -> None:
        outbox = FakeOutbox()
        outbox.put("a", subscription="s")
        async with queue(outbox, fail, schedule=NEVER) as working:
            await working.start()
            await outbox.wait_for(1)
            assert outbox.noted[0][1] == Outcome(Disposition.RETRY, "connection_refused")

    with caplog.at_level(logging.ERROR, "toolgate.webhooks"):
        run(scenario())
    assert "an attempt to deliver failed in this server" in caplog.text


def test_the_timer_forgets_what_was_hastened() -> None:
    async def scenario() -> None:
        outbox, receivers = FakeOutbox(), FakeReceivers({"https://hooks.example/": DOWN})
        outbox.put("a", subscription="s")
        async with queue(outbox, receivers.send, schedule=NEVER) as working:
            await working.start()
            for attempt in range(1, 300):
                await outbox.wait_for(attempt)
                await asyncio.sleep(0)
                working.retry_now("s")
            assert len(working._heap) < 100

    run(scenario())


def test_real_receivers_get_their_deliveries_beside_one_that_hangs(tmp_path: Path) -> None:
    async def scenario() -> None:
        pages: dict[str, Answer] = {"/hanging": never, "/good": ACCEPTED, "/down": (500, {}, b"")}
        receiving = receiver(tmp_path, pages)
        async with receiving as (place, authority), sender(authority, timeout=2.0) as sending:
            outbox = FakeOutbox()
            for number in range(20):
                names = ("hanging", "down", "good") if number < 4 else ("down", "good")
                for name in names:
                    outbox.put(f"{name}-{number}", name, place.url(f"/{name}", HOST), f"{name}-{number}")
            async with queue(outbox, sending.send, schedule=NEVER) as working:
                await working.start()
                while sum(outcome == ACKNOWLEDGED for _, outcome, _ in outbox.noted) < 20:
                    await outbox.wait_for(len(outbox.noted) + 1)
                await outbox.wait_for(44)
                assert dict(working.counters.failures) == {"http_5xx": 20, "timeout": 4}
                ids = [request.headers["webhook-id"] for request in place.requests]
                assert len(ids) == len(set(ids))

    run(scenario())
