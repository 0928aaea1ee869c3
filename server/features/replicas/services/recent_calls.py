"""Show the last calls of a principal at all replicas on the first page of any.

A replica with an open page says so every few seconds. The others send it the principal's calls when they change, and
nothing while no page is open.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from toolgate.server.base.bus.bus import Bus
from toolgate.server.calls.recent_calls import MAX_CALLS, MAX_PRINCIPALS, RecentCall, RecentCalls

OPEN, CALLS = "page open", "recent calls"  # topics
SIGN = 5.0  # seconds between two signs of an open page
SHOWN = 15.0  # seconds that a page counts as open without a sign
PAUSE = 0.4  # seconds between two messages of one principal: a page shows no more


class ShownCall(msgspec.Struct, frozen=True, array_like=True):
    """A `RecentCall` as other replicas show it."""

    id: int
    tool: str
    client: str
    began: float
    outcome: str
    seconds: float
    task: str | None


class CallsMessage(msgspec.Struct, frozen=True, array_like=True):
    """The last calls of a principal at one replica, the oldest first."""

    replica: str
    principal: str
    calls: list[ShownCall]


class SharedCalls:
    """The last calls here, which `local` has, and those of the other replicas while a page shows them."""

    def __init__(self, bus: Bus, local: RecentCalls) -> None:
        self._bus = bus
        self._local = local
        self._pages: dict[str, list[Callable[[], None]]] = {}  # by principal: what notifies the pages open here
        self._signs: dict[str, asyncio.Task[None]] = {}  # by principal with an open page here
        self._open_until: dict[str, float] = {}  # loop time; by principal with an open page at another replica
        self._leaves: dict[str, Callable[[], None]] = {}  # by such a principal: ends that its calls are watched
        self._sending: dict[str, asyncio.TimerHandle] = {}
        self._others: dict[str, dict[str, tuple[float, list[RecentCall]]]] = {}  # principal → replica → time, calls
        bus.topics.subscribe(OPEN, self._receive_open, lambda: None)
        bus.topics.subscribe(CALLS, self._receive_calls, lambda: None)

    def newest(self, principal: str) -> list[RecentCall]:
        """Return the calls of the principal at all replicas, the newest first."""
        others = [call for calls in self._list_others(principal) for call in calls]
        return sorted([*self._local.newest(principal), *others], key=lambda call: call.began, reverse=True)[:MAX_CALLS]

    def _list_others(self, principal: str) -> list[list[RecentCall]]:
        """Return the calls of each replica that lives: it sends them after each sign of the page."""
        since = asyncio.get_running_loop().time() - SHOWN
        return [calls for at, calls in self._others.get(principal, {}).values() if at > since]

    def watch(self, principal: str, notify: Callable[[], None]) -> Callable[[], None]:
        leave = self._local.watch(principal, notify)
        self._pages.setdefault(principal, []).append(notify)
        if principal not in self._signs:
            self._signs[principal] = asyncio.get_running_loop().create_task(self._show_signs(principal))

        def end() -> None:
            leave()
            self._pages[principal].remove(notify)
            if not self._pages[principal]:
                del self._pages[principal]
                self._signs.pop(principal).cancel()
                self._others.pop(principal, None)

        return end

    async def _show_signs(self, principal: str) -> None:
        while True:
            self._bus.topics.publish(OPEN, f"{self._bus.replica.name} {principal}".encode())
            await asyncio.sleep(SIGN)

    def _receive_open(self, data: bytes) -> None:
        replica, _, principal = data.decode().partition(" ")
        if replica == self._bus.replica.name:
            return
        now = asyncio.get_running_loop().time()
        if len(self._open_until) >= MAX_PRINCIPALS:
            for name in [name for name, until in self._open_until.items() if until <= now]:
                self._close_page(name)
        if principal in self._open_until or len(self._open_until) < MAX_PRINCIPALS:
            if principal not in self._open_until:
                self._leaves[principal] = self._local.watch(principal, partial(self._send_soon, principal))
            self._open_until[principal] = now + SHOWN
            self._send(principal)

    def _close_page(self, principal: str) -> None:
        """Watch the principal's calls no longer: no page at another replica shows them."""
        del self._open_until[principal]
        self._leaves.pop(principal)()

    def _send_soon(self, principal: str) -> None:
        if principal not in self._sending:
            loop = asyncio.get_running_loop()
            self._sending[principal] = loop.call_later(PAUSE, self._send, principal)

    def _send(self, principal: str) -> None:
        if (timer := self._sending.pop(principal, None)) is not None:
            timer.cancel()
        if principal not in self._open_until:
            return
        if self._open_until[principal] < asyncio.get_running_loop().time():
            self._close_page(principal)
            return
        calls = [_to_shown(each) for each in reversed(self._local.newest(principal))]
        message = CallsMessage(self._bus.replica.name, principal, calls)
        self._bus.topics.publish(CALLS, msgspec.msgpack.encode(message))

    def _receive_calls(self, data: bytes) -> None:
        message = msgspec.msgpack.decode(data, type=CallsMessage)
        if message.replica != self._bus.replica.name and message.principal in self._pages:
            calls = [RecentCall(*msgspec.structs.astuple(each)) for each in message.calls]
            self._others.setdefault(message.principal, {})[message.replica] = asyncio.get_running_loop().time(), calls
            for notify in list(self._pages[message.principal]):
                notify()


def _to_shown(seen: RecentCall) -> ShownCall:
    """Return what other replicas show of a call: its outcome tells whether it waits for an answer."""
    outcome = "waiting" if seen.is_waiting else seen.outcome
    return ShownCall(seen.id, seen.tool, seen.client, seen.began, outcome, seen.seconds, seen.task)
