"""Notify the clients of a principal, at this server or at all that share its state."""

from typing import Protocol

from toolgate.server.protocol.notifications import Notifications
from toolgate.server.protocol.resource_updates import ResourceUpdates


class Notifier(Protocol):
    """What tools and callbacks tell clients by."""

    def notify_updated(self, principal: str, uri: str) -> None:
        """Notify the principal's subscribers of `uri`."""
        ...

    def notify_resource_list(self, principal: str) -> None:
        """Announce that resources/list has changed for this principal."""
        ...

    def log_to_principal(self, principal: str, key: str, level: str, text: str, scope: str) -> None:
        """Log `text` to the session with the place `key`, or to another one of the principal."""
        ...


class LocalNotifier:
    """Notify the sessions and subscriptions of this server."""

    def __init__(self, notifications: Notifications, updates: ResourceUpdates) -> None:
        self._notifications = notifications
        self._updates = updates

    def notify_updated(self, principal: str, uri: str) -> None:
        self._updates.notify(principal, uri)

    def notify_resource_list(self, principal: str) -> None:
        self._notifications.notify_resource_list(principal)

    def log_to_principal(self, principal: str, key: str, level: str, text: str, scope: str) -> None:
        self._notifications.log_to_principal(principal, key, level, text, scope)
