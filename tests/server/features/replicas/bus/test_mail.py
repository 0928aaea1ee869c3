"""Mail of a replica to itself, and to one that is not there, on each kind of bus."""

import asyncio
from collections.abc import Callable

import pytest

from toolgate.server.base.bus.bus import MAX_DATA, Bus, NoReplyError, UndeliveredError

Run = Callable[..., None]


async def echo(data: bytes) -> bytes:
    return data + b"!"


def test_the_handler_of_a_kind_replies(run: Run) -> None:
    async def check(bus: Bus) -> None:
        bus.mail.receive("echo", echo)
        assert await bus.mail.send(bus.replica.name, "echo", b"hello") == b"hello!"
        with pytest.raises(ValueError, match="has a handler"):
            bus.mail.receive("echo", echo)

    run(check)


def test_mail_to_a_name_without_a_replica_is_undelivered_at_once(run: Run) -> None:
    async def check(bus: Bus) -> None:
        began = asyncio.get_running_loop().time()
        for name in ("00000000", "nobody", ""):
            with pytest.raises(UndeliveredError, match="reads its mail"):
                await bus.mail.send(name, "echo", b"")
        assert asyncio.get_running_loop().time() - began < 1

    run(check)


def test_a_kind_without_a_handler_or_with_one_that_fails_has_no_reply(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: bytes) -> bytes:
        raise RuntimeError("a fault of this handler")

    async def check(bus: Bus) -> None:
        bus.mail.receive("fail", fail)
        with pytest.raises(NoReplyError, match="no handler for other"):
            await bus.mail.send(bus.replica.name, "other", b"")
        with pytest.raises(NoReplyError, match="the handler for fail failed") as failure:
            await bus.mail.send(bus.replica.name, "fail", b"")
        assert "a fault of this handler" not in str(failure.value)

    run(check)
    assert "a fault of this handler" in caplog.text


def test_a_handler_has_the_time_of_its_sender(run: Run) -> None:
    ended = asyncio.Event()

    async def wait(_: bytes) -> bytes:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()
        return b""

    async def check(bus: Bus) -> None:
        bus.mail.receive("wait", wait)
        with pytest.raises(NoReplyError, match=r"0\.1 s"):
            await bus.mail.send(bus.replica.name, "wait", b"", seconds=0.1)
        await asyncio.wait_for(ended.wait(), 5)

    run(check)


def test_mail_out_of_bounds_is_refused(run: Run) -> None:
    async def check(bus: Bus) -> None:
        with pytest.raises(ValueError, match="more than the bus carries"):
            await bus.mail.send(bus.replica.name, "echo", bytes(MAX_DATA + 1))
        with pytest.raises(ValueError, match="bytes"):
            await bus.mail.send(bus.replica.name, "", b"")

    run(check)
