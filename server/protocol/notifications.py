"""Send clients notifications that answer no request: changed lists, tasks, log messages.

They go out on the session's own stream, or on an open `subscriptions/listen`.
"""

import asyncio
from functools import partial
from typing import Any

import msgspec

from toolgate.server.base.task import StoredTask
from toolgate.server.protocol import serialization
from toolgate.server.protocol.message_ids import Id
from toolgate.server.protocol.messages import Notification
from toolgate.server.protocol.request_meta import SUBSCRIPTION
from toolgate.server.protocol.resource_updates import NotificationThrottle
from toolgate.server.protocol.session import LEVELS, Channel, Session

LISTS = ("tools", "prompts", "resources")  # whose changes sessions are told, too; those of extensions are not


class OpenSubscription(msgspec.Struct, eq=False):
    """An open `subscriptions/listen`: its filter, its channel, and the id that every notification carries."""

    id: Id
    channel: Channel
    principal: str
    owner: str
    kinds: frozenset[str]
    tasks: frozenset[str]  # ids of deferrals
    end_signal: "asyncio.Future[None]"  # done when the server ends it
    uris: frozenset[str] = frozenset()

    def end(self) -> None:
        """End the subscription: its request is answered with a result."""
        if not self.end_signal.done():
            self.end_signal.set_result(None)

    def notify_updated(self, uri: str) -> None:
        self.send("notifications/resources/updated", uri=uri)

    def send(self, method: str, **params: Any) -> None:
        self.channel.send(Notification(method, {"_meta": {SUBSCRIPTION: self.id}, **params}))


class Notifications:
    """The open sessions and subscriptions of one server."""

    def __init__(self) -> None:
        self.sessions: set[Session] = set()
        self.subscriptions: dict[OpenSubscription, None] = {}  # oldest first
        self.is_ending = False  # a subscription that begins now ends at once
        self._list_throttles: dict[str, NotificationThrottle] = {}  # by principal

    def notify_resource_list(self, principal: str) -> None:
        """Announce that resources/list has changed for this principal."""
        throttle = self._list_throttles.get(principal)
        if throttle is None:
            throttle = self._list_throttles[principal] = NotificationThrottle(
                partial(self.announce_list, "resources", principal)
            )
        throttle.notify()

    def announce_list(self, kind: str, principal: str | None = None) -> None:
        """Announce a changed list to all subscribers, or to those of one principal."""
        method = f"notifications/{kind}/list_changed"
        for session in self.sessions if kind in LISTS else ():
            if session.ready and session.channel is not None and principal in (None, session.principal):
                session.channel.send(Notification(method))
        self.announce_to_listeners(kind, principal)

    def announce_to_listeners(self, kind: str, principal: str | None = None) -> None:
        """Announce a changed list to the open `subscriptions/listen` alone, of all or of one principal."""
        for listener in self.subscriptions:
            if kind in listener.kinds and principal in (None, listener.principal):
                listener.send(f"notifications/{kind}/list_changed")

    def notify_task(self, task: StoredTask) -> bool:
        """Notify the subscriptions to this task, and return whether there is one."""
        mine = [each for each in self.subscriptions if task.id in each.tasks and task.principal == each.principal]
        for listener in mine:
            listener.send("notifications/tasks", **serialization.format_detailed_task(task))
        return bool(mine)

    def log_to_principal(self, principal: str, key: str, level: str, text: str, scope: str) -> bool:
        """Log `text` to the session with the place `key` if it is open, else to one open session of the principal whose
        client has `scope`, if any. Return whether there is one."""
        chosen = self._find_session_for_log(principal, key, level, scope)
        if chosen is None or chosen.channel is None:
            return False
        params = {"level": level, "logger": "callback", "data": text}
        chosen.channel.send(Notification("notifications/message", params))
        return True

    def has_session_for_log(self, principal: str, key: str, level: str, scope: str) -> bool:
        """Return whether `log_to_principal` finds a session."""
        return self._find_session_for_log(principal, key, level, scope) is not None

    def _find_session_for_log(self, principal: str, key: str, level: str, scope: str) -> Session | None:
        rank, wanted = LEVELS.index(level), frozenset((scope,))
        mine = [session for session in self.sessions if session.principal == principal]
        open_ones = [
            session
            for session in mine
            if session.channel is not None and session.accepts_log(rank) and session.allows(wanted)
        ]
        return next((each for each in open_ones if each.place.key == key), None) or next(iter(open_ones), None)

    def end_subscriptions(self) -> list[OpenSubscription]:
        """End all subscriptions, and those to come: each answers its request with a result."""
        self.is_ending = True
        ended = list(self.subscriptions)
        for listener in ended:
            listener.end()
        return ended
