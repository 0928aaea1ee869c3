"""Topics, on each kind of bus."""

from collections.abc import Callable

import pytest

from toolgate.server.base.bus.bus import MAX_MESSAGE, Bus

Run = Callable[..., None]


def ignore(*_: bytes) -> None:
    """Take a message."""


def test_subscribers_here_have_a_message_before_publish_returns(run: Run) -> None:
    async def check(bus: Bus) -> None:
        received: list[tuple[str, bytes]] = []
        first = bus.topics.subscribe("list", lambda data: received.append(("first", data)), ignore)
        bus.topics.subscribe("list", lambda data: received.append(("second", data)), ignore)
        bus.topics.subscribe("other", lambda data: received.append(("other", data)), ignore)
        bus.topics.publish("list", b"1")
        assert received == [("first", b"1"), ("second", b"1")]
        first.close()
        first.close()
        bus.topics.publish("list", b"2")
        assert received[2:] == [("second", b"2")]
        await bus.streams.flush()
        assert len(received) == 3  # its own message does not come back

    run(check)


def test_a_subscription_is_confirmed_also_when_it_is_begun_again_at_once(run: Run) -> None:
    async def check(bus: Bus) -> None:
        missed: list[str] = []
        for _ in range(3):
            subscription = bus.topics.subscribe("list", ignore, lambda: missed.append("list"))
            await subscription.confirm()
            subscription.close()
            again = bus.topics.subscribe("list", ignore, lambda: missed.append("list"))
            await again.confirm()
            again.close()
            await again.confirm()
        assert missed == []

    run(check)


def test_a_subscriber_that_fails_or_leaves_costs_the_others_nothing(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def check(bus: Bus) -> None:
        received: list[bytes] = []

        def leave(_: bytes) -> None:
            leaving.close()
            last.close()

        def fail(_: bytes) -> None:
            raise RuntimeError("a fault of this subscriber")

        leaving = bus.topics.subscribe("list", leave, ignore)
        bus.topics.subscribe("list", fail, ignore)
        bus.topics.subscribe("list", received.append, ignore)
        last = bus.topics.subscribe("list", received.append, ignore)
        bus.topics.publish("list", b"1")
        bus.topics.publish("list", b"2")
        assert received == [b"1", b"2"]

    run(check)
    assert caplog.text.count("RuntimeError: a fault of this subscriber") == 2


def test_a_message_may_be_published_by_a_subscriber(run: Run) -> None:
    async def check(bus: Bus) -> None:
        received: list[bytes] = []
        bus.topics.subscribe("question", lambda data: bus.topics.publish("answer", data + b"!"), ignore)
        bus.topics.subscribe("answer", received.append, ignore)
        bus.topics.publish("question", b"1")
        assert received == [b"1!"]

    run(check)


def test_a_topic_or_a_message_out_of_bounds_is_refused(run: Run) -> None:
    async def check(bus: Bus) -> None:
        with pytest.raises(ValueError, match="bytes"):
            bus.topics.publish("", b"")
        with pytest.raises(ValueError, match="bytes"):
            bus.topics.subscribe("x" * 600, ignore, ignore)
        with pytest.raises(ValueError, match="more than the bus carries"):
            bus.topics.publish("list", bytes(MAX_MESSAGE + 1))
        with pytest.raises(ValueError, match="surrogates"):
            bus.topics.publish("file:///\udc80", b"")
        bus.topics.publish("list", bytes(MAX_MESSAGE))
        await bus.streams.flush()

    run(check)
