"""What a person's apps wait for on the first page: shown, tested and ended, with a receiver of webhooks over TLS."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.chromium import confirm, people
from tests.clients.raw_client import eventually
from tests.server.features.events.test_webhooks import SECRET, authority, receiver, trusting_site
from tests.server.features.events.webhook_receiver import WebhookReceiver
from tests.server.features.events.webhooks.fake_authority import FakeAuthority
from tests.servers.home_page_server import AppUser
from tests.transports.web.conftest import is_live, told
from tests.transports.web.screens import sign_in
from tests.transports.web.test_home import _csrf as find_csrf
from toolgate.server.features.events.log.samples import MARK

__all__ = ["authority", "receiver"]  # fixtures
NAME = "command.ended"
URL_SECRET = "?key=hidden-in-the-url"


class Scene(NamedTuple):
    url: str
    ada: AppUser
    bob: AppUser
    receiver: WebhookReceiver

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        response, raw, said = self.ada.ask(method, params)
        assert response.status == 200, raw
        answer: dict[str, Any] = said or json.loads(raw.decode().rpartition("data: ")[2])
        assert "result" in answer, answer
        return answer["result"]

    def subscribe(self, **arguments: Any) -> str:
        delivery = {"mode": "webhook", "url": self.receiver.url + URL_SECRET, "secret": SECRET}
        asked = {"name": NAME, "arguments": arguments, "cursor": None, "delivery": delivery}
        id: str = self.ask("events/subscribe", **asked)["id"]
        return id

    def poll(self, cursor: str | None) -> dict[str, Any]:
        return self.ask("events/poll", name="todo.changed", arguments={}, cursor=cursor)


@pytest.fixture
def scene(tmp_path: Path, authority: FakeAuthority, receiver: WebhookReceiver) -> Iterator[Scene]:
    with trusting_site(tmp_path / "server", authority) as signed:
        yield Scene(signed.site.url, AppUser(signed, "ada", "Fern"), AppUser(signed, "bob", "Workbench"), receiver)


def test_a_subscription_is_seen_live_tested_and_ended(scene: Scene, chromium: Any) -> None:
    with people(chromium) as arriving:
        page = arriving("desktop")
        page.goto(f"{scene.url}/login")
        sign_in(page, "ada")
        is_live(page)
        assert page.locator(".part-subscriptions").is_hidden()
        id = scene.subscribe(id=7)
        row = page.locator(f"#event-{id}")
        row.get_by_text("0 delivered").wait_for()
        assert {"id=7", "localhost", "Fern"} <= set(row.inner_text().replace("\n", " ").split())
        for hidden in (SECRET, "key=", "/hook"):
            assert hidden not in page.content()
        page.get_by_role("button", name=f"Send a test event of {NAME}").click()
        told(page, "The test event was delivered.")
        row.get_by_text("1 delivered, last").wait_for()
        (delivery,) = scene.receiver.wait(1)
        event = delivery.verify(SECRET)
        assert event["data"]["id"] == 7 and event["data"][MARK] is True
        assert delivery.headers["webhook-id"] == event["eventId"]
        confirm(page, f"End subscription to {NAME}")
        told(page, "The subscription was ended.")
        page.locator(".part-subscriptions").wait_for(state="hidden")
        assert scene.receiver.wait(2)[1].verify(SECRET)["type"] == "terminated"
        scene.subscribe()  # the app comes back
        row = page.locator("#part-subscriptions .row")
        row.get_by_text("0 delivered").wait_for()
        assert len(scene.receiver.deliveries) == 2


def test_without_a_script_and_for_others(scene: Scene) -> None:
    id, cursor = scene.subscribe(), scene.poll(None)["cursor"]
    mine, theirs = scene.ada.browser(), scene.bob.browser()
    shown, foreign = mine.get("/").text, theirs.get("/").text
    own, strange = find_csrf(shown), find_csrf(foreign)
    reader = next(each for each in shown.split('name="test" value="') if each.startswith("read_")).partition('"')[0]
    assert id not in foreign and NAME not in foreign
    for verb in ("test", "unsubscribe"):
        for name in (id, reader, "", "sub_x", "\u0661"):
            refused = theirs.post("/", {"csrf": strange, verb: name})
            assert (refused.status, "already ended" in refused.text) == (404, True)
        assert mine.post("/", {"csrf": strange, verb: id}).status == 403
    scene.receiver.answers.extend([500, 410])
    failed = mine.post("/", {"csrf": own, "test": id})
    assert failed.status == 409
    assert "not delivered: it answered with an error. It is sent again later." in failed.text
    assert "failing" in failed.text and "1 waiting" in failed.text and "next try" in failed.text
    failed = mine.post("/", {"csrf": own, "test": id})  # hastens the one before
    assert "not delivered: it refused the delivery. It is not sent again." in failed.text
    assert eventually(lambda: "failing" not in mine.get("/").text)  # the other was delivered
    tested = mine.post("/", {"csrf": own, "test": reader})
    assert (tested.status, "The test event was sent." in tested.text) == (200, True)
    (event,) = scene.poll(cursor)["events"]
    assert event["eventId"].startswith("evt_test_") and event["data"][MARK] is True
    for name in (reader, id):
        ended = mine.post("/", {"csrf": own, "unsubscribe": name})
        assert (ended.status, "The subscription was ended." in ended.text) == (200, True)
        assert name not in mine.get("/").text
    assert mine.post("/", {"csrf": own, "test": id}).status == 404
