"""Features are connected and entered in their order, and left in reverse, also where the start fails half-way."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE
from toolgate.server.app.app import App
from toolgate.server.app.host import AppHost, Job
from toolgate.server.base.errors import UsageError
from toolgate.server.config import load
from toolgate.server.state import lock


class FakeFeature:
    """A feature that writes down what the app does with it, and fails in one step.

    breaks: `connect`, `enter` or `leave`
    hangs: the step in which a signal comes, and that never ends
    """

    def __init__(self, name: str, steps: list[str], breaks: str = "", hangs: str = "") -> None:
        self.name = name
        self.steps = steps
        self.breaks = breaks
        self.hangs = hangs

    def build(self, host: AppHost) -> None:
        host.on.close.append(self._close)

    async def connect(self, host: AppHost) -> None:
        await self._take_step("connect")

    @asynccontextmanager
    async def run(self, host: AppHost) -> AsyncIterator[None]:
        await self._take_step("enter")
        try:
            yield
        finally:
            await self._take_step("leave")

    async def _close(self) -> None:
        await self._take_step("close")

    async def _take_step(self, step: str) -> None:
        self.steps.append(f"{self.name} {step}")
        if step == self.breaks:
            raise UsageError(f"{self.name} can't {step}")
        if step == self.hangs:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()


CONNECTED = ["first connect", "second connect"]
ENTERED = [*CONNECTED, "first enter", "second enter"]
LEFT = ["second leave", "first leave"]
CLOSED = ["first close", "second close"]


def build_app(folder: Path, breaks: str = "", hangs: str = "", **options: str) -> tuple[App, list[str]]:
    """Return an app with two features more, and the list of their steps. The second fails where `breaks` says, and
    hangs where `hangs` says."""
    steps: list[str] = []
    words = {"state": str(folder / "state"), "workspace": str(folder), "sandbox": "none", **options}
    app = App(load.load(words, {"PATH": os.environ["PATH"]}))
    for feature in (FakeFeature("first", steps), FakeFeature("second", steps, breaks, hangs)):
        feature.build(app.host)
        app.features.append(feature)
    return app, steps


def serve_stdio(app: App, *, has_input: bool = False) -> None:
    """Serve a client that sends nothing, and has ended its input already unless `has_input`."""
    (source, writer), (reader, sink) = os.pipe(), os.pipe()
    with os.fdopen(writer, "wb") as given:
        if not has_input:
            given.close()
        try:
            asyncio.run(asyncio.wait_for(app.serve_stdio(source, sink), PATIENCE))
        finally:
            for descriptor in (source, reader, sink):
                os.close(descriptor)


def has_let_go(folder: Path) -> bool:
    """Return whether nobody uses the state of the app. Raises StateInUseError otherwise."""
    with lock.hold_exclusive(folder / "state"):
        return True


def test_features_are_entered_in_order_and_left_in_reverse(tmp_path: Path) -> None:
    app, steps = build_app(tmp_path)
    serve_stdio(app)
    assert steps == [*ENTERED, *LEFT, *CLOSED] and has_let_go(tmp_path)


@pytest.mark.parametrize(
    ("breaks", "expected"),
    [
        ("connect", [*CONNECTED, *CLOSED]),
        ("enter", [*ENTERED, "first leave", *CLOSED]),
        ("leave", [*ENTERED, *LEFT, *CLOSED]),
        ("close", [*ENTERED, *LEFT, *CLOSED]),
    ],
)
def test_what_was_started_ends_where_a_feature_fails(tmp_path: Path, breaks: str, expected: list[str]) -> None:
    app, steps = build_app(tmp_path, breaks)
    with pytest.raises(UsageError, match=f"second can't {breaks}"):
        serve_stdio(app)
    assert steps == expected and has_let_go(tmp_path)


@pytest.mark.parametrize(
    ("hangs", "expected"),
    [
        ("enter", [*ENTERED, "first leave", *CLOSED]),
        ("leave", [*ENTERED, *LEFT, *CLOSED]),
        ("close", [*ENTERED, *LEFT, *CLOSED]),
    ],
)
def test_a_signal_ends_what_hangs_and_the_rest_ends_in_order(tmp_path: Path, hangs: str, expected: list[str]) -> None:
    app, steps = build_app(tmp_path, hangs=hangs)
    serve_stdio(app)
    assert steps == expected and has_let_go(tmp_path)


def test_work_of_a_feature_ends_before_it_is_left(tmp_path: Path) -> None:
    app, steps = build_app(tmp_path)

    async def work() -> None:
        steps.append("begin")
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            steps.append("end")

    app.host.jobs.append(Job(work, 0.0))
    serve_stdio(app, has_input=True)
    assert steps == [*ENTERED, "begin", "end", *LEFT, *CLOSED]


def test_the_end_goes_on_where_a_feature_fails_as_it_begins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app, steps = build_app(tmp_path)

    def fail() -> None:
        steps.append("fail")
        raise ValueError("no such stream")

    for hook in (app.host.on.ending, app.host.on.calls_end):
        hook += [fail, lambda: steps.append("go on")]
    serve_stdio(app)
    assert steps == [*ENTERED, "fail", "go on", *LEFT, "fail", "go on", *CLOSED] and has_let_go(tmp_path)
    assert caplog.messages.count("a part failed at the end") == 2


def test_what_was_connected_ends_where_the_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app, steps = build_app(tmp_path, http="true", auth="none", port=str(listener.getsockname()[1]))
        with pytest.raises(UsageError, match="--port: can't listen"):
            asyncio.run(asyncio.wait_for(app.serve_http(), PATIENCE))
    assert steps == [*CONNECTED, *CLOSED] and has_let_go(tmp_path)
