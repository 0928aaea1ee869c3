"""The cost of subscriptions, and one principal's share: URIs, watches, unread notifications."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, STATELESS
from tests.servers.http_in_process import Exchange, Inside, inside, named
from tests.servers.line_counter import counted_lines
from toolgate.server.app import builtin_tools
from toolgate.server.base.limits.rate_limit import ANY, CallRateLimiter
from toolgate.server.base.principals.scopes import READ
from toolgate.server.methods.scopes import ScopeRules
from toolgate.server.protocol.messages import Notification, Request
from toolgate.server.protocol.resource_updates import MAX_OWNED, MAX_URIS, MAX_WATCHES
from toolgate.tools.api.registry import Registry
from toolgate.tools.builtin.workspace_files import workspace_file
from toolgate.transports.http.sessions.event_stream import EventStream

META = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}
HOSTILE = "file:///N/" + "%C3%A9" * 1_350  # as long as a URI may be, and nothing of it is spelled as it could be


def run(body: Callable[[Inside], Coroutine[Any, Any, None]], folder: Path) -> None:
    async def main() -> None:
        async with inside(folder) as here:
            await body(here)

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))


def listen(here: Inside, user: str, uris: Sequence[str]) -> Exchange:
    params = {"notifications": {"resourceSubscriptions": list(uris)}, "_meta": META}
    message = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
    return here.ask("POST", message, mcp_protocol_version=STATELESS, mcp_method="subscriptions/listen", x_user=user)


async def acknowledged(stream: Exchange) -> list[str]:
    event = await stream.first("notifications/subscriptions/acknowledged")
    found: list[str] = json.loads(event["data"])["params"]["notifications"].get("resourceSubscriptions", [])
    return found


def lines(work: Callable[[], object]) -> int:
    """Return how many lines of Python it executes."""
    with counted_lines() as count:
        work()
    return count.lines


REGISTRY = Registry([*builtin_tools.TOOLS, workspace_file])


@pytest.mark.parametrize("method", ["resources/read", "resources/subscribe", "subscriptions/listen"])
def test_what_a_uri_takes_is_decided_before_it_is_matched(method: str) -> None:
    def request(uri: str) -> Request:
        return Request(1, method, {"uri": uri, "notifications": {"resourceSubscriptions": [uri] * 100}})

    rules = ScopeRules(SimpleNamespace(registry_of=lambda principal: REGISTRY))
    scopes_of = rules.subscription if method == "subscriptions/listen" else rules.resource
    assert scopes_of(request(HOSTILE).params, "") == {READ}
    short, long = (lines(lambda uri=uri: scopes_of(request(uri).params, "")) for uri in ("file:///N/a", HOSTILE))  # type: ignore[misc]
    assert short == long


def test_a_uri_of_another_scheme_is_never_taken_apart() -> None:
    assert lines(lambda: REGISTRY.resource("zzz" + HOSTILE)) < 30


def test_the_uris_of_one_request_are_bounded(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        most = [f"note://{number}" + "a" * 8_000 for number in range(MAX_URIS // 8_010)]
        stream = listen(here, "ada", most)
        assert await acknowledged(stream) == sorted(most)
        await stream.hang_up()
        refused = await listen(here, "ada", [*most, "note://more" + "a" * 8_000]).json()
        assert refused["error"] == {
            "code": -32600,
            "message": "more than 131072 characters in the URIs of 'resourceSubscriptions'",
        }

    run(body, tmp_path)


def test_the_uris_of_one_session_are_bounded(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()

        async def subscribe(number: int) -> Any:
            params = {"uri": f"note://{number}" + "a" * 8_000}
            asked = {"jsonrpc": "2.0", "id": number, "method": "resources/subscribe", "params": params}
            return await here.ask("POST", asked, mcp_session_id=session).json()

        answers = [await subscribe(number) for number in range(MAX_URIS // 8_000 + 1)]
        assert [answer.get("result") for answer in answers[:16]] == [{}] * 16
        assert answers[-1]["error"]["code"] == -32600
        assert (await subscribe(0))["result"] == {}  # it has that one

    run(body, tmp_path)


def test_a_subscription_counts_as_a_call(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        here.app.host.server().policy.limiter = CallRateLimiter({ANY: 2})
        for _ in range(2):
            stream = listen(here, "ada", ["note://one"])
            assert await acknowledged(stream) == ["note://one"]
            await stream.hang_up()
        assert "calls" in (await listen(here, "ada", ["note://one"]).json())["error"]["message"]
        other = listen(here, "bob", ["note://one"])
        assert await acknowledged(other) == ["note://one"]
        await other.hang_up()

    run(body, tmp_path)


def test_one_principal_can_not_have_all_the_watches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A subscription without a watch is not acknowledged; other principals still get their changes."""

    async def body(here: Inside) -> None:
        folder = here.app.host.folder() / "workspaces"
        adas = [
            listen(here, "ada", [f"file://{folder / named('ada')}/{part}-{number}" for number in range(700)])
            for part in range(4)
        ]
        assert [len(await acknowledged(stream)) for stream in adas] == [MAX_OWNED, 0, 0, 0]
        uri = f"file://{folder / named('bob')}/file"
        bobs = listen(here, "bob", [uri])
        assert await acknowledged(bobs) == [uri]
        while here.app.host.file_changes()._task is None:
            await asyncio.sleep(0.01)
        (folder / named("bob")).mkdir(parents=True, exist_ok=True)
        (folder / named("bob") / "file").write_text("changed")
        await bobs.first("notifications/resources/updated")
        for stream in (*adas, bobs):
            await stream.hang_up()
        assert not here.app.host.server().updates._watches.total()

    with caplog.at_level(logging.WARNING):
        run(body, tmp_path)
    assert not [record for record in caplog.records if "watched" in record.getMessage()]


def test_a_session_is_refused_what_can_not_be_watched(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        session = await here.session()
        full = listen(
            here, "ada", [f"file://{here.app.host.folder()}/workspaces/{named('ada')}/{n}" for n in range(MAX_OWNED)]
        )
        assert len(await acknowledged(full)) == MAX_OWNED

        async def subscribe(uri: str) -> Any:
            asked = {"jsonrpc": "2.0", "id": uri, "method": "resources/subscribe", "params": {"uri": uri}}
            return await here.ask("POST", asked, mcp_session_id=session).json()

        refused = await subscribe(f"file://{here.app.host.folder()}/workspaces/{named('ada')}/more")
        assert refused["error"]["message"] == "too many resources are watched: unsubscribe from some"
        assert (await subscribe("task://list"))["result"] == {}  # takes no watch
        await full.hang_up()

    run(body, tmp_path)


def test_the_one_caller_of_a_machine_may_have_all_watches() -> None:
    assert MAX_WATCHES >= 2 * MAX_OWNED


def test_news_that_waits_for_a_reader_waits_once() -> None:
    async def main() -> None:
        stream = EventStream("s", numbered=True)
        news = [
            Notification("notifications/resources/list_changed"),
            Notification("notifications/resources/updated", {"uri": "task://list"}),
            Notification("notifications/resources/updated", {"uri": "task://1"}),
        ]
        for _ in range(100):
            for each in news:
                stream.send(each)
        assert stream.last == 3
        stream.sent = 2  # a reader has got two of them
        for each in news:
            stream.send(each)
        assert stream.last == 5
        for _ in range(2):
            stream.send(Notification("notifications/message", {"level": "info", "data": "said twice"}))
        assert stream.last == 7

    asyncio.run(main())
