"""Ten thousand events by webhook, of a server that is killed a hundred times: none is lost, none has two ids."""

import contextlib
import http.client
import json
import re
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, STATELESS, eventually
from tests.server.auth.minted_tokens import ENVELOPE, Signed, request
from tests.server.auth.test_revocation_watch import account, granted
from tests.server.features.events.test_webhooks import SECRET, Scene, trusting_site
from tests.server.features.events.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.server.features.events.webhooks.fake_authority import FakeAuthority
from tests.servers.reserved_port import kept_port

Step = tuple[str, int]  # the name of a task, and the number of the step; 0 for its creation

EVENTS = 10_000
PRODUCERS = 4
STEPS = 150  # of a task, which may have 200
ADDED = re.compile(r"Step (\d+) added")
LIFE = 100  # steps of a server before its kill: in one second, a busy machine adds few
LATEST = 600.0  # seconds for these steps: a call took two at a load of 30, whose disk was busy, too
GRANTED = 24 * 3600.0  # seconds: the subscription ends with its grant


HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "Mcp-Protocol-Version": STATELESS,
    "Mcp-Method": "tools/call",
    "Mcp-Name": "TaskManager",
}


class Producers:
    """Threads that add steps to tasks, each on its connection. `certain`: the steps whose calls were answered."""

    def __init__(self) -> None:
        self.certain: set[Step] = set()
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

    def add(self, steps: int) -> None:
        """Wait until so many more steps are certain."""
        goal = len(self.certain) + steps
        assert eventually(lambda: len(self.certain) >= goal, LATEST), len(self.certain)

    def end(self) -> None:
        self._is_over = True
        self.serve(None)
        for thread in self._threads:
            thread.join(PATIENCE)

    def _run(self, number: int) -> None:
        count, task, steps = 0, "", STEPS
        while not self._is_over:
            with self._is_served:
                self._is_served.wait_for(lambda: self._signed is not None or self._is_over)
                signed = self._signed
            if signed is None:
                return
            killed = contextlib.suppress(OSError, http.client.HTTPException)
            with killed, contextlib.closing(signed.site.connect()) as line:
                while self._signed is signed:
                    if steps >= STEPS:
                        count += 1
                        task, steps = f"task {number}-{count}", 0
                        self._call(line, {"action": "create", "query": task})
                    steps += 1  # also of a call that gets no answer: there may be a step more
                    text = self._call(line, {"action": "add", "query": task, "text": "a step"})
                    found = ADDED.search(text)
                    if found is None:  # its creation got no answer, and never happened
                        steps = STEPS
                    else:
                        self.certain.add((task, int(found[1])))

    def _call(self, line: http.client.HTTPConnection, arguments: dict[str, Any]) -> str:
        params = {"name": "TaskManager", "arguments": arguments, "_meta": ENVELOPE}
        line.request("POST", "/mcp", json.dumps(request("tools/call", params)), self._headers)
        return line.getresponse().read().decode()


class Tally:
    """The ids under which each step was delivered."""

    def __init__(self, receiver: WebhookReceiver) -> None:
        self.ids: dict[Step, set[str]] = {}
        self.count = 0  # deliveries, repeated ones too
        self._receiver = receiver

    def find_missing(self, steps: Collection[Step]) -> set[Step]:
        """Return those of the steps that were not delivered yet."""
        new = self._receiver.deliveries[self.count :]
        self.count += len(new)
        for delivery in new:
            event = delivery.verify(SECRET)
            step = event["data"]["name"], event["data"].get("step_id") or 0
            self.ids.setdefault(step, set()).add(delivery.headers["webhook-id"])
        return set(steps).difference(self.ids)

    def wait_for(self, steps: Collection[Step]) -> None:
        """Wait until each of the steps was delivered. Each delivery has its time, however many there are."""
        while self.find_missing(steps):
            self._receiver.wait(self.count + 1)


@pytest.mark.soak
def test_of_ten_thousand_events_none_is_lost_and_none_has_two_ids(tmp_path: Path) -> None:
    authority, folder, options = (
        FakeAuthority(tmp_path),
        tmp_path / "server",
        ["--event-count=100000", f"--port={kept_port()}"],
    )
    began, kills = time.monotonic(), 0
    with webhook_receiver(authority.issue("localhost")) as receiver, contextlib.ExitStack() as stack:
        with trusting_site(folder, authority, *options) as signed:
            person = account(signed, "ada")
            granted(signed, person, "one", lifetime=GRANTED)
            Scene(signed, receiver, signed.token(person, "one", noted=False), person).subscribe("todo.changed")
        tally, producers = Tally(receiver), Producers()
        stack.callback(producers.end)
        while len(producers.certain) < EVENTS:
            with trusting_site(folder, authority, *options) as signed:
                producers.serve(signed, signed.token(person, "one", noted=False))
                producers.add(LIFE)
                signed.site.kill()
                producers.serve(None)
                kills += 1
            tally.find_missing(())  # a signature is valid for five minutes
        producers.end()
        with trusting_site(folder, authority, *options):
            tally.wait_for(producers.certain)
    assert {step: ids for step, ids in tally.ids.items() if len(ids) > 1} == {}
    print(f"{len(tally.ids)} events in {tally.count} deliveries, {kills} kills, {time.monotonic() - began:.0f} s")
