"""Notifications at two replicas: each client hears of a change once, wherever it is."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.server.features.replicas.bus.conftest import eventually
from tests.server.features.replicas.bus.conftest import shared_redis as shared_redis
from tests.server.features.replicas.bus.pairs import run_replicas as run_replicas
from toolgate.server.base.bus.bus import Bus
from toolgate.server.features.replicas.services.notifications import LISTS, LOGS, UPDATES, SharedNotifications
from toolgate.server.protocol.messages import Notification
from toolgate.server.protocol.notifications import Notifications
from toolgate.server.protocol.resource_updates import ResourceUpdates
from toolgate.server.protocol.session import Session

Run = Callable[..., None]


class Replica:
    """The notifications of one replica, with a session of `principal` that has subscribed to `file:///a`."""

    def __init__(self, bus: Bus, principal: str) -> None:
        self.bus = bus
        self.sent: list[str] = []
        self.notifications = Notifications()
        self.updates = ResourceUpdates(lambda _principal, _uri: None, ConnectionError)
        self.shared = SharedNotifications(bus, self.notifications, self.updates)
        self.session = Session(principal)
        self.session.channel = self  # type: ignore[assignment]  # as a stream
        self.session.ready = True
        self.session.log_level = 0
        self.notifications.sessions.add(self.session)
        self.updates.subscribe(self, principal, "file:///a")

    def notify_updated(self, uri: str) -> None:
        self.sent.append(uri)

    def send(self, message: Notification) -> None:
        self.sent.append(message.method.rpartition("/")[2] + str(message.params.get("data", "")))

    async def confirm(self) -> None:
        for topic in (LISTS, UPDATES, LOGS):
            await self.bus.topics.subscribe(topic, lambda _: None, lambda: None).confirm()

    async def expect(self, *sent: str) -> None:
        async def has_come() -> bool:
            return len(self.sent) >= len(sent)

        await eventually(has_come)
        await asyncio.sleep(0.05)  # what comes twice
        assert self.sent == list(sent)
        self.sent.clear()


def test_clients_of_all_replicas_hear_of_a_change_once(run_replicas: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there, other = Replica(one, "ada"), Replica(two, "ada"), Replica(two, "bob")
        await there.confirm()
        here.shared.notify_updated("ada", "file:///a")
        here.shared.notify_resource_list("ada")
        for replica in (here, there):
            await replica.expect("file:///a", "list_changed")
        assert other.sent == []

    run_replicas(check)


def test_a_flood_of_changes_is_published_a_few_times_a_second(run_replicas: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here = Replica(one, "ada")
        count: list[Any] = []
        await two.topics.subscribe(UPDATES, count.append, lambda: None).confirm()
        for _ in range(1_000):
            here.shared.notify_updated("ada", "file:///a")
        await asyncio.sleep(0.4)
        assert 1 <= len(count) <= 2

    run_replicas(check)


def test_one_session_hears_a_log_message(run_replicas: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there, also = Replica(one, "ada"), Replica(two, "ada"), Replica(two, "ada")
        await there.confirm()
        here.shared.log_to_principal("ada", "", "notice", "tea", "tools:workflow")
        await here.expect("messagetea")
        here.notifications.sessions.clear()
        here.shared.log_to_principal("ada", "", "notice", "more tea", "tools:workflow")
        await asyncio.sleep(0.2)
        assert sorted(there.sent + also.sent) == ["messagemore tea"]

    run_replicas(check)


def test_after_a_loss_clients_look_again(run_replicas: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        there = Replica(two, "ada")
        there.shared._look_again()
        await there.expect("list_changed", "file:///a")

    run_replicas(check)
