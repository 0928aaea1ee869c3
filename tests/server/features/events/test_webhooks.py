"""Events by webhook end to end: a server process with sign-in, and a receiver over TLS that verifies signatures."""

import asyncio
import base64
import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from standardwebhooks import WebhookVerificationError

from tests.clients.raw_client import PATIENCE, eventually
from tests.server.auth.minted_tokens import Signed, asked, signed_site
from tests.server.auth.test_revocation_watch import OFTEN, WITHIN, account, granted, revoke
from tests.server.features.events.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.server.features.events.webhooks.fake_authority import FakeAuthority
from tests.servers.forked_command import changed_command
from tests.servers.reserved_port import kept_port
from toolgate.server.cli.doctor.report import run_checks
from toolgate.server.config import load
from toolgate.server.features.events.doctor import list_checks

SECRET = "whsec_" + base64.b64encode(b"a" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"b" * 32).decode()


# The same command, in which all that a start puts off waits for ever
LATER = "from toolgate.server.features.events import feature; feature.SWEEP_AFTER = 1e6"
PROMPT = f"from toolgate.server.app import app; app.CLEAN_AFTER = 1e6; {LATER}; {OFTEN}"
LOADED = """
import sys
from toolgate.server.app.app import App
from toolgate.server.config import load
options = dict(each.split("=") for each in sys.argv[2:])
app = App(load.load({"state": sys.argv[1], "sandbox": "none", "browser": "none", **options}))
(events,) = (each for each in app.features if type(each).__name__ == "EventsFeature")
subscriptions = events.service().subscriptions
ways_out = {"httpx", "httpcore", "toolgate.server.features.events.webhooks.sender"} & sys.modules.keys()
print(subscriptions is not None, *sorted(ways_out))
"""


class Scene(NamedTuple):
    signed: Signed
    receiver: WebhookReceiver
    token: str
    person: str

    def ask(self, method: str, **params: Any) -> Any:
        _, raw, said = asked(self.signed, self.token, method, params)
        assert said is not None, raw
        return said

    def subscribe(self, name: str = "command.ended", secret: str = SECRET, **more: Any) -> Any:
        delivery = {"mode": "webhook", "url": self.receiver.url, "secret": secret}
        said = self.ask("events/subscribe", name=name, arguments={}, cursor=None, delivery=delivery, **more)
        assert "result" in said, said
        return said["result"]

    def unsubscribe(self, name: str = "command.ended") -> Any:
        return self.ask("events/unsubscribe", name=name, arguments={}, delivery={"url": self.receiver.url})

    def run(self, command: str) -> None:
        said = self.ask("tools/call", name="BackgroundBash", arguments={"command": command})
        assert said["result"]["isError"] is False, said

    def add_todo(self, name: str) -> None:
        said = self.ask("tools/call", name="TaskManager", arguments={"action": "create", "query": name})
        assert said["result"]["isError"] is False, said


@contextlib.contextmanager
def trusting_site(folder: Path, authority: FakeAuthority, *options: str, command: str = OFTEN) -> Iterator[Signed]:
    """Run a server that trusts the authority, may reach loopback, and looks often for revocations."""
    environment = {"SSL_CERT_FILE": str(authority.write())}
    reach = ("--allow-private", "localhost", *options)
    with signed_site(folder, *reach, env=environment, command=changed_command(command)) as signed:
        yield signed


@pytest.fixture
def authority(tmp_path: Path) -> FakeAuthority:
    return FakeAuthority(tmp_path)


@pytest.fixture
def receiver(authority: FakeAuthority) -> Iterator[WebhookReceiver]:
    with webhook_receiver(authority.issue("localhost")) as held:
        yield held


@pytest.fixture
def scene(tmp_path: Path, authority: FakeAuthority, receiver: WebhookReceiver) -> Iterator[Scene]:
    with trusting_site(tmp_path / "server", authority) as signed:
        person = account(signed, "ada")
        granted(signed, person, "one")
        yield Scene(signed, receiver, signed.token(person, "one", noted=False), person)


def test_a_client_that_hung_up_is_woken_when_its_build_ends(scene: Scene) -> None:
    listed = scene.ask("events/list")["result"]["events"]
    assert all("webhook" in type["delivery"] for type in listed)
    made = scene.subscribe()
    (challenge,) = scene.receiver.challenges
    assert challenge.verify(SECRET)["type"] == "verification"
    scene.run("echo built; exit 2")  # each request has a connection of its own: the client is gone
    (delivery,) = scene.receiver.wait(1)
    event = delivery.verify(SECRET)
    assert delivery.headers["webhook-id"] == event["eventId"]
    assert delivery.headers["x-mcp-subscription-id"] == made["id"]
    assert (event["name"], event["data"]["exit_code"], event["data"]["last_lines"]) == ("command.ended", 2, "built")
    with pytest.raises(WebhookVerificationError):
        delivery.verify(OTHER)


def test_a_server_that_is_killed_delivers_under_the_same_id_after_its_restart(
    tmp_path: Path, authority: FakeAuthority, receiver: WebhookReceiver
) -> None:
    folder = tmp_path / "server"
    with trusting_site(folder, authority, "--webhook-age=2m", "--webhook-count=1") as signed:
        person = account(signed, "ada")
        granted(signed, person, "one")
        scene = Scene(signed, receiver, signed.token(person, "one", noted=False), person)
        until = datetime.fromisoformat(scene.subscribe()["refreshBefore"]).timestamp()
        assert 60 < until - time.time() < 121
        with pytest.raises(AssertionError, match=r"the limit of subscriptions \(1\) is reached"):
            scene.subscribe("todo.changed")
        receiver.answers.append(500)
        scene.run("exit 3")
        receiver.wait(1)
        signed.site.kill()
        port = signed.site.port
    with trusting_site(folder, authority, f"--port={port}", command=PROMPT) as signed:
        first, second = receiver.wait(2, WITHIN)
        assert first.headers["webhook-id"] == second.headers["webhook-id"]
        assert first.body == second.body
        assert second.verify(SECRET)["data"]["exit_code"] == 3
        receiver.answers.append(500)
        revoke(signed, person, "one")
        ended = receiver.wait(3, WITHIN)[2]
        signed.site.kill()
    with trusting_site(folder, authority, f"--port={port}", command=PROMPT):  # so is the end of the subscription
        again = receiver.wait(4, WITHIN)[3]
        assert (again.headers["webhook-id"], again.body) == (ended.headers["webhook-id"], ended.body)
        assert again.verify(SECRET)["type"] == "terminated"


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.soak)])
def test_of_many_kills_no_event_is_lost_or_has_two_ids(
    tmp_path: Path, authority: FakeAuthority, receiver: WebhookReceiver, rounds: int
) -> None:
    folder, dice = tmp_path / "server", random.Random(rounds)
    person, port = "", f"--port={kept_port()}"
    for number in range(rounds):
        with trusting_site(folder, authority, port) as signed:
            if number == 0:
                person = account(signed, "ada")
                granted(signed, person, "one")
            scene = Scene(signed, receiver, signed.token(person, "one", noted=False), person)
            scene.subscribe("todo.changed")
            for place in range(5):
                scene.add_todo(f"task {number}-{place}")
            time.sleep(dice.random() * 0.05)
            signed.site.kill()
    names = {f"task {number}-{place}" for number in range(rounds) for place in range(5)}
    ids: dict[str, set[str]] = {}

    def has_all() -> bool:
        for each in list(receiver.deliveries):
            ids.setdefault(each.verify(SECRET)["data"]["name"], set()).add(each.headers["webhook-id"])
        return ids.keys() == names

    with trusting_site(folder, authority, port):
        assert eventually(has_all), names - ids.keys()
    assert all(len(found) == 1 for found in ids.values())


def test_both_secrets_sign_after_a_rotation(scene: Scene) -> None:
    made = scene.subscribe()
    assert scene.subscribe(secret=OTHER)["id"] == made["id"]
    scene.run("true")
    (delivery,) = scene.receiver.wait(1)
    assert delivery.verify(SECRET) == delivery.verify(OTHER)
    assert len(scene.receiver.challenges) == 1


def test_a_receiver_that_fails_is_tried_again_until_it_recovers(scene: Scene) -> None:
    scene.subscribe("todo.changed")
    scene.receiver.answers.append(503)
    scene.add_todo("one")
    scene.add_todo("two")
    first, again, second = scene.receiver.wait(3)
    assert first.headers["webhook-id"] == again.headers["webhook-id"] != second.headers["webhook-id"]
    assert [each.verify(SECRET)["data"]["name"] for each in (again, second)] == ["one", "two"]


def test_after_an_unsubscribe_nothing_comes(scene: Scene) -> None:
    scene.subscribe("todo.changed")
    other = scene.subscribe("command.ended")
    assert "result" in scene.unsubscribe("todo.changed")
    scene.add_todo("one")
    scene.run("true")
    (delivery,) = scene.receiver.wait(1)
    assert delivery.headers["x-mcp-subscription-id"] == other["id"]


def test_a_revoked_grant_is_told_so_and_gets_nothing_more(scene: Scene) -> None:
    made = scene.subscribe("todo.changed")
    granted(scene.signed, scene.person, "two")
    other = scene._replace(token=scene.signed.token(scene.person, "two", noted=False))
    others = other.subscribe("todo.changed")
    revoke(scene.signed, scene.person, "one")
    (ended,) = scene.receiver.wait(1, WITHIN)
    assert ended.headers["x-mcp-subscription-id"] == made["id"]
    assert ended.verify(SECRET)["type"] == "terminated"
    other.add_todo("later")
    *_, event = scene.receiver.wait(2)
    assert event.headers["x-mcp-subscription-id"] == others["id"]


def test_doctor_finds_callbacks_that_can_not_be_reached(
    scene: Scene, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def look() -> str:
        flags = {"http": "true", "auth": "oauth", "state": str(scene.signed.site.state), "allow_private": ["localhost"]}
        config = load.load(flags, {})
        asyncio.run(run_checks(list_checks(config).checks))
        return capsys.readouterr().out

    monkeypatch.setenv("SSL_CERT_FILE", str(authority.write()))
    assert look().startswith("skip  webhooks")
    scene.subscribe()
    assert look().startswith("ok    webhooks")
    monkeypatch.delenv("SSL_CERT_FILE")
    found = look()
    assert found.startswith("note  webhooks")
    assert "tls_error" in found
    assert "/hook" not in found


def test_an_endpoint_that_can_not_be_reached_is_refused_with_a_word(scene: Scene) -> None:
    delivery = {"mode": "webhook", "url": "https://192.0.2.1/hook", "secret": SECRET}
    said = scene.ask("events/subscribe", name="todo.changed", arguments={}, cursor=None, delivery=delivery)
    assert (said["error"]["code"], said["error"]["data"]) == (-32015, {"reason": "connection_refused"})


@pytest.mark.parametrize(
    ("options", "loaded"),
    [
        ([], "False"),
        (["http=true", "auth=none"], "False"),
        (["http=true", "auth=oauth"], "True toolgate.server.features.events.webhooks.sender"),
    ],
)
def test_no_client_of_http_is_loaded_before_the_first_subscription(
    tmp_path: Path, options: list[str], loaded: str
) -> None:
    words = [sys.executable, "-c", LOADED, str(tmp_path), *options]
    assert subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=PATIENCE).stdout.strip() == loaded
