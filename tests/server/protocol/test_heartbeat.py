"""Heartbeats: a waiting client hears regularly from its call, in one stream of progress."""

import asyncio
import time
from pathlib import Path
from typing import Any

from toolgate.server.calls.client import CallClient
from toolgate.server.calls.pending_questions import PendingQuestions
from toolgate.server.protocol.messages import Notification, Outbound
from toolgate.server.protocol.revisions import REVISIONS
from toolgate.server.protocol.session import Call, Session
from toolgate.server.state.keys.file import KeyFile
from toolgate.server.state.keys.sealed_state import Sealer

FIRST, BEAT = 0.25, 1.0  # seconds


class Heard:
    """A call's channel; `message` is set when something arrives."""

    def __init__(self) -> None:
        self.params: list[dict[str, Any]] = []
        self.message = asyncio.Event()

    def send(self, message: Outbound) -> None:
        assert isinstance(message, Notification)
        self.params.append(message.params or {})
        self.message.set()

    def pause(self) -> None: ...


def waiting(folder: Path) -> tuple[CallClient, Heard]:
    session = Session("me")
    session.revision = REVISIONS["2025-11-25"]
    heard = Heard()
    call = Call(1, "tools/call", {"_meta": {"progressToken": "t"}}, session, heard)
    caller = CallClient(call, Sealer(KeyFile(folder / "key")), PendingQuestions(), 45.0, True)
    caller.start_heartbeat(FIRST, BEAT)
    return caller, heard


def test_a_client_that_hears_nothing_is_told_that_the_call_lives(tmp_path: Path) -> None:
    async def body() -> None:
        began = time.monotonic()
        caller, heard = waiting(tmp_path)
        await asyncio.wait_for(heard.message.wait(), 10)
        first, heard.message = time.monotonic() - began, asyncio.Event()
        await asyncio.wait_for(heard.message.wait(), 10)
        second = time.monotonic() - began
        caller.stop()
        assert heard.params[0]["message"] == "running for 0 s"
        assert first >= FIRST
        assert first + BEAT * 0.9 <= second

    asyncio.run(body())


def test_a_call_that_shows_progress_by_itself_has_no_second_stream(tmp_path: Path) -> None:
    async def body() -> None:
        caller, heard = waiting(tmp_path)
        caller.progress(0, None, "line")
        for count in range(1, 10):
            await asyncio.sleep(BEAT / 5)
            caller.progress(count, None, "line")
        caller.stop()
        assert {params["message"] for params in heard.params} == {"line"}
        progress = [params["progress"] for params in heard.params]
        assert progress == sorted(set(progress))

    asyncio.run(body())
