"""Ten thousand events by webhook, of a server that is killed every second: none is lost, none comes under two ids."""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, STATELESS, eventually
from tests.server.auth.minted_tokens import ENVELOPE, Signed, request
from tests.server.auth.test_revocation_watch import account, granted
from tests.server.events.test_webhooks import SECRET, Scene, trusting_site
from tests.server.events.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.server.webhooks.fake_authority import FakeAuthority

Change = tuple[str, str]  # the name of a task, and what happened to it

EVENTS = 10_000
PRODUCERS = 4
LIFE = 1.0  # seconds from a server's first answer to its kill
LATEST = 600.0  # seconds for the last server to deliver what is left


HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "Mcp-Protocol-Version": STATELESS,
    "Mcp-Method": "tools/call",
    "Mcp-Name": "TaskManager",
}


class Producers:
    """Threads that create and complete tasks, each on its connection. `certain`: the changes whose calls were answered,
    and `possible` those that were begun, as (name, change)."""

    def __init__(self) -> None:
        self.certain: set[Change] = set()
        self.possible: set[Change] = set()
        self._headers = dict[str, str]()
        self._signed: Signed | None = None
        self._is_served = threading.Condition()
        self._is_over = False
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(PRODUCERS)]
        for thread in self._threads:
            thread.start()

    def serve(self, signed: Signed | None, token: str = "") -> None:
        """Use this server from now on, or none."""
        with self._is_served:
            self._headers = HEADERS | {"Authorization": f"Bearer {token}"}
            self._signed = signed
            self._is_served.notify_all()

    def end(self) -> None:
        self._is_over = True
        self.serve(None)
        for thread in self._threads:
            thread.join(PATIENCE)

    def _run(self, number: int) -> None:
        count = 0
        while not self._is_over:
            with self._is_served:
                self._is_served.wait_for(lambda: self._signed is not None or self._is_over)
                signed = self._signed
            if signed is None:
                return
            killed = contextlib.suppress(OSError, http.client.HTTPException)
            with killed, contextlib.closing(signed.site.connect()) as line:
                while self._signed is signed:
                    count += 1
                    self._change_task(line, f"task {number}-{count}")

    def _change_task(self, line: http.client.HTTPConnection, name: str) -> None:
        self._change(line, name, "created", {"action": "create", "query": name})
        self._change(line, name, "completed", {"action": "complete", "query": name})

    def _change(self, line: http.client.HTTPConnection, name: str, change: str, arguments: dict[str, Any]) -> None:
        self.possible.add((name, change))
        params = {"name": "TaskManager", "arguments": arguments, "_meta": ENVELOPE}
        line.request("POST", "/mcp", json.dumps(request("tools/call", params)), self._headers)
        said = line.getresponse().read()
        assert b'"isError":false' in said, said
        self.certain.add((name, change))


class Tally:
    """The ids under which each change was delivered."""

    def __init__(self, receiver: WebhookReceiver) -> None:
        self.ids: dict[Change, set[str]] = {}
        self.count = 0  # deliveries, repeated ones too
        self._receiver = receiver

    def find_missing(self, changes: Collection[Change]) -> set[Change]:
        """Return those of the changes that were not delivered yet."""
        new = self._receiver.deliveries[self.count :]
        self.count += len(new)
        for delivery in new:
            event = delivery.verify(SECRET)
            change = event["data"]["name"], event["data"]["change"]
            self.ids.setdefault(change, set()).add(delivery.headers["webhook-id"])
        return set(changes).difference(self.ids)


@pytest.mark.soak
def test_of_ten_thousand_events_none_is_lost_and_none_has_two_ids(tmp_path: Path) -> None:
    authority, folder, options = FakeAuthority(tmp_path), tmp_path / "server", ["--event-count=100000"]
    began, kills = time.monotonic(), 0
    with webhook_receiver(authority.issue("localhost")) as receiver, contextlib.ExitStack() as stack:
        with trusting_site(folder, authority, *options) as signed:
            person = account(signed, "ada")
            granted(signed, person, "one")
            Scene(signed, receiver, signed.token(person, "one", noted=False), person).subscribe("todo.changed")
            options.append(f"--port={signed.site.port}")
        tally, producers = Tally(receiver), Producers()
        stack.callback(producers.end)
        while len(producers.certain) < EVENTS:
            with trusting_site(folder, authority, *options) as signed:
                producers.serve(signed, signed.token(person, "one", noted=False))
                time.sleep(LIFE)
                signed.site.kill()
                producers.serve(None)
                kills += 1
        producers.end()
        with trusting_site(folder, authority, *options):
            assert eventually(lambda: not tally.find_missing(producers.certain), LATEST), len(producers.certain)
    assert {change: ids for change, ids in tally.ids.items() if len(ids) > 1} == {}
    assert tally.ids.keys() <= producers.possible
    print(f"{len(tally.ids)} events in {tally.count} deliveries, {kills} kills, {time.monotonic() - began:.0f} s")
