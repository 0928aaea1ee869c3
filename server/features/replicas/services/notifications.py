"""Carry notifications to the sessions and subscriptions of a principal at all replicas.

Each replica follows the files of its own plugins and skills, so what changes for everybody is announced by each.
"""

import asyncio
import logging
import secrets
from functools import partial

import msgspec

from toolgate.server.base.bus.bus import Bus, BusUnreachableError
from toolgate.server.protocol.notifications import Notifications
from toolgate.server.protocol.resource_updates import NotificationThrottle, ResourceUpdates

LISTS, UPDATES, LOGS = "resource lists", "resource updates", "session logs"  # topics
MAX_THROTTLES = 2_000  # before those at rest are dropped
CLAIMED = 60.0  # seconds that a message stays claimed: no replica gets it later

log = logging.getLogger("toolgate.updates")


class SessionLog(msgspec.Struct, frozen=True, array_like=True):
    """A log message for one session of a principal: see `Notifications.log_to_principal`."""

    id: str
    principal: str
    key: str
    level: str
    text: str
    scope: str


class SharedNotifications:
    """Notify the sessions and subscriptions of all replicas, here at once. Changes of one URI go out at most every
    `resource_updates.PAUSE`."""

    def __init__(self, bus: Bus, notifications: Notifications, updates: ResourceUpdates) -> None:
        self._bus = bus
        self._notifications = notifications
        self._updates = updates
        self._throttles: dict[tuple[str, str], NotificationThrottle] = {}  # by topic and data
        self._claiming: set[asyncio.Task[None]] = set()
        bus.topics.subscribe(LISTS, self._receive_list, self._look_again)
        bus.topics.subscribe(UPDATES, self._receive_update, lambda: None)
        bus.topics.subscribe(LOGS, self._receive_log, lambda: None)

    def notify_resource_list(self, principal: str) -> None:
        """Announce that resources/list has changed for this principal."""
        self._publish(LISTS, principal)

    def notify_updated(self, principal: str, uri: str) -> None:
        """Notify the principal's subscribers of `uri`."""
        self._publish(UPDATES, f"{principal} {uri}")

    def log_to_principal(self, principal: str, key: str, level: str, text: str, scope: str) -> None:
        """Log `text` to the session with the place `key`, or to another one of the principal: here, or elsewhere."""
        if not self._notifications.log_to_principal(principal, key, level, text, scope):
            message = SessionLog(secrets.token_hex(8), principal, key, level, text, scope)
            self._bus.topics.publish(LOGS, msgspec.msgpack.encode(message))

    def _publish(self, topic: str, text: str) -> None:
        throttle = self._throttles.get((topic, text))
        if throttle is None:
            if len(self._throttles) >= MAX_THROTTLES:
                self._throttles = {key: each for key, each in self._throttles.items() if each.is_resting}
            publish = partial(self._bus.topics.publish, topic, text.encode("utf-8", "surrogatepass"))
            throttle = self._throttles[topic, text] = NotificationThrottle(publish)
        throttle.notify()

    def _receive_list(self, data: bytes) -> None:
        self._notifications.notify_resource_list(data.decode())

    def _receive_update(self, data: bytes) -> None:
        principal, _, uri = data.decode("utf-8", "surrogatepass").partition(" ")
        self._updates.notify(principal, uri)

    def _receive_log(self, data: bytes) -> None:
        message = msgspec.msgpack.decode(data, type=SessionLog)
        if self._notifications.has_session_for_log(message.principal, message.key, message.level, message.scope):
            claiming = asyncio.get_running_loop().create_task(self._claim_log(message))
            self._claiming.add(claiming)
            claiming.add_done_callback(self._claiming.discard)

    async def _claim_log(self, message: SessionLog) -> None:
        """Log the message here, unless another replica does."""
        try:
            if await self._bus.keys.set_if_absent(f"session log {message.id}", b"1", CLAIMED):
                words = message.principal, message.key, message.level, message.text, message.scope
                self._notifications.log_to_principal(*words)
        except BusUnreachableError as error:
            log.warning("a log message for a session was lost: %s", error)

    def _look_again(self) -> None:
        """Have all clients look again: messages of other replicas may have been lost."""
        self._notifications.announce_list("resources")
        self._updates.notify_all()
