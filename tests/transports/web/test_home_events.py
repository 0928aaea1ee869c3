"""One update for all pages of a person, its interval, and the lifetime of a page's stream."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.clients.raw_client import PATIENCE
from toolgate.server.auth.login.accounts import Person
from toolgate.server.base.reports.health import ServerHealth
from toolgate.server.calls.dashboard import Activity, ShownCallback
from toolgate.transports.web import home_events
from toolgate.transports.web.home import PARTS, HomePage
from toolgate.transports.web.home_events import REST, HomeCache
from toolgate.transports.web.page_context import ANONYMOUS, PageContext, Visitor

COST = 0.02  # seconds


class _Home:
    """A fake first page, as far as updates need it."""

    def __init__(self) -> None:
        self.context = PageContext("http://127.0.0.1:1", "t")
        self.looks = 0
        self.dashboard = self
        self.page_parts = ()  # that features add

    list_parts, render_part = HomePage.list_parts, HomePage.render_part

    async def identify_visitor(self, _incoming: Any) -> Visitor:
        return Visitor(Person("http://127.0.0.1:1", "ada", "Ada"))

    async def watch(self, _principal: str, _tell: Callable[[], None]) -> None:
        await asyncio.Event().wait()

    def server_values(self) -> dict[str, Any]:
        return {"health": ServerHealth(False, "none"), "sandbox": ""}

    async def part_values(self, _visitor: Any, csrf: str, *, is_live: bool) -> dict[str, Any]:
        self.looks += 1
        await asyncio.sleep(COST)
        going = Activity([], callbacks=[ShownCallback(1, "m", 60, 0.0, 1)])
        return {
            "csrf": csrf,
            "going": going,
            "questions": [],
            "sessions": [],
            "more_sessions": 0,
            "grants": [],
            "more_grants": 0,
        } | {
            "names": {},
            "approvals": [],
            "busy": True,
            "connected": True,
        }


def test_pages_share_an_update_and_a_costly_one_is_followed_by_a_pause() -> None:
    async def body() -> None:
        home = _Home()
        seen = HomeCache(cast(HomePage, home), ANONYMOUS)
        now = time.monotonic()
        assert await asyncio.gather(*(seen.refresh(now) for _ in range(8))) == [0.0] * 8
        assert home.looks == 1 and tuple(seen.parts) == PARTS
        bound = seen.with_csrf(seen.parts["callbacks"], "mine")
        assert 'name="csrf" value="mine"' in bound and bound != seen.parts["callbacks"]
        due = await seen.refresh(time.monotonic())
        assert home.looks == 1 and due - now >= COST * (REST + 1) * 0.9
        await asyncio.sleep(due - time.monotonic())
        assert await seen.refresh(due) == 0.0 and home.looks == 2

    asyncio.run(body())


class _FailingHome(_Home):
    async def part_values(self, *_: Any, **__: Any) -> dict[str, Any]:
        raise RuntimeError("a fault of a feature")


def _follow(home: _Home, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what a stream sends until it is renewed."""
    monkeypatch.setattr(home_events, "PROXIED", 0.05)
    monkeypatch.setattr(home_events, "PACE", 0.01)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def body() -> None:
        async with asyncio.timeout(PATIENCE):
            scope = {"method": "GET", "path": "/events", "headers": [], "type": "http"}
            await home_events.HomeEvents(cast(HomePage, home), recheck=0.01)(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]

    asyncio.run(body())
    return sent


def test_work_that_can_not_be_shown_hides_nothing_of_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent = _follow(_FailingHome(), monkeypatch)
    assert b'{"name": "server"' in b"".join(message.get("body", b"") for message in sent)
    assert "a fault of a feature" in caplog.text


def test_a_stream_behind_a_signing_in_proxy_is_soon_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = _follow(_Home(), monkeypatch)
    assert sent[0]["status"] == 200 and sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert b"event: part" in b"".join(message.get("body", b"") for message in sent)
    assert b"event: bye" not in b"".join(message.get("body", b"") for message in sent)
