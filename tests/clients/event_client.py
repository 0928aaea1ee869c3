"""Wait for events by poll and by stream, with the raw clients."""

import json
from typing import Any

from tests.clients.raw_client import PATIENCE, Server

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def first_cursor(client: Server, name: str, arguments: dict[str, Any] | None = None) -> str:
    """Return a cursor from which the client sees what happens from now on."""
    page = client.request("events/poll", {"name": name, "arguments": arguments or {}, "cursor": None})
    assert page["events"] == []
    cursor: str = page["cursor"]
    return cursor


def poll(client: Server, name: str, cursor: str | None, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
    return client.request("events/poll", {"name": name, "arguments": arguments or {}, "cursor": cursor, **more})


def data_of(page: dict[str, Any]) -> list[Any]:
    return [event["data"] for event in page["events"]]


class Stream:
    """An `events/stream` that has become active."""

    def __init__(
        self,
        client: Server,
        name: str,
        arguments: dict[str, Any] | None = None,
        cursor: str | None = None,
        **more: Any,
    ) -> None:
        self.client = client
        params = {"name": name, "arguments": arguments or {}, "cursor": cursor, **more}
        self.id = client.begin("events/stream", params)
        self.active = self.wait("active")

    def _is_own(self, message: dict[str, Any], kind: str) -> bool:
        is_kind = message.get("method") == f"notifications/events/{kind}"
        return is_kind and message["params"]["_meta"][SUBSCRIPTION] == self.id

    def wait(self, kind: str, count: int = 1, timeout: float = PATIENCE) -> dict[str, Any]:
        """Return the parameters of its notification number `count` of this kind."""
        self.client.wait(lambda _: len(self.all(kind)) >= count, timeout)
        return self.all(kind)[count - 1]

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return the parameters of all its notifications of this kind so far."""
        return [message["params"] for message in list(self.client.messages) if self._is_own(message, kind)]

    def cancel(self) -> None:
        self.client.notify("notifications/cancelled", {"requestId": self.id})


def wait_for_event(client: Server, name: str, cursor: str, arguments: dict[str, Any] | None = None) -> Any:
    """Return the payload of the first event after a cursor."""
    stream = Stream(client, name, arguments, cursor)
    event = stream.wait("event")
    stream.cancel()
    assert event["name"] == name, json.dumps(event)
    return event["data"]
