"""Subscriptions by webhook, with a way out that answers what the test says."""

import asyncio
import base64
import json
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.raw_client import PATIENCE, STATELESS
from tests.server.features.events.event_service import events_of
from tests.servers.http_in_process import Exchange, Inside, inside, named
from toolgate.server.base.principals.principal import GrantKey
from toolgate.server.features.events.delivery.outbox import CONTROL_TRIES
from toolgate.server.features.events.delivery.subscription_request import SubscriptionLimits
from toolgate.server.features.events.delivery.subscription_rows import SubscriptionRows
from toolgate.server.features.events.delivery.subscriptions import ROTATION
from toolgate.server.features.events.webhooks.retry_schedule import RetrySchedule
from toolgate.server.features.events.webhooks.sender import WebhookSender
from toolgate.server.features.events.webhooks.signature import WebhookSecret
from toolgate.tools.api.context.services import Page
from toolgate.tools.api.outbound.errors import PageTimeoutError

PREFIX = "io.modelcontextprotocol/"
DECLARED = {"extensions": {PREFIX + "events": {}}}
URL = "https://receiver.example/hooks/x"
SECRET = "whsec_" + base64.b64encode(b"a" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"b" * 32).decode()
SOON = RetrySchedule((0.01,), 0.01, 0.01)
NEVER = RetrySchedule((1e6,), 1e6, 1e6)


class Post(NamedTuple):
    url: str
    id: str
    subscription: str
    secrets: tuple[str, ...]
    body: Any


class FakeSender(WebhookSender):
    """Opens no connection: challenges pass, and deliveries get `answers`, or else 204."""

    def __init__(self) -> None:
        super().__init__()
        self.is_hanging = False
        self.challenged: list[tuple[str, tuple[str, ...], str]] = []
        self.posts: list[Post] = []
        self.answers: deque[int] = deque()
        self._news = asyncio.Event()

    async def post(
        self,
        url: str,
        id: str,
        subscription: str,
        body: bytes,
        secrets: Sequence[WebhookSecret],
        *,
        lane: str,
        limit: int = 0,
    ) -> Page:
        texts, content = tuple(secret.to_text() for secret in secrets), json.loads(body)
        if lane == "challenge":
            self.challenged.append((url, texts, subscription))
            if self.is_hanging:
                raise PageTimeoutError("the endpoint hangs")
            return Page(url, 200, {}, json.dumps({"challenge": content["challenge"]}).encode(), False)
        self.posts.append(Post(url, id, subscription, texts, content))
        self._news.set()
        return Page(url, self.answers.popleft() if self.answers else 204, {}, b"", False)

    async def wait(self, count: int) -> None:
        """Wait until so many bodies have come."""
        async with asyncio.timeout(PATIENCE):
            while len(self.posts) < count:
                self._news.clear()
                await self._news.wait()

    @property
    def names(self) -> list[str]:
        return [post.body["data"]["name"] for post in self.posts]


Body = Callable[[Inside, FakeSender], Awaitable[None]]


def run(
    body: Body,
    folder: Path,
    limits: SubscriptionLimits | None = None,
    *,
    schedule: RetrySchedule = SOON,
    revoked: Collection[GrantKey] = (),
) -> None:
    async def find_valid(grants: Collection[GrantKey]) -> Collection[GrantKey]:
        return set(grants).difference(revoked)

    async def main() -> None:
        async with inside(folder) as here:
            sender = FakeSender()
            events_of(here.app).open_webhooks(sender, find_valid, limits, schedule)
            events_of(here.app).log.start()
            assert events_of(here.app).subscriptions is not None
            await events_of(here.app).subscriptions.start()
            await body(here, sender)
            await events_of(here.app).subscriptions.close()

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))


async def settle(here: Inside) -> None:
    """Wait until the queue is idle."""
    subscriptions = events_of(here.app).subscriptions
    assert subscriptions is not None
    async with asyncio.timeout(PATIENCE):
        while subscriptions.queue.pending:
            await here.app.host.store().read(lambda _: None)


async def wait_failing(here: Inside) -> None:
    """Wait until it is stored that an attempt has failed: the end of a server leaves that only a moment."""
    list_active = SubscriptionRows(events_of(here.app).log.rows).list_active
    async with asyncio.timeout(PATIENCE):
        while not any(held.failing_since for held in await here.app.host.store().read(list_active)):
            await asyncio.sleep(0.01)


def ask(here: Inside, method: str, params: dict[str, Any], who: str = "ada", declared: Any = DECLARED) -> Exchange:
    meta = {f"{PREFIX}protocolVersion": STATELESS, f"{PREFIX}clientCapabilities": declared}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    named = {"mcp_name": params["name"]} if method == "tools/call" else {}
    return here.ask("POST", message, mcp_protocol_version=STATELESS, mcp_method=method, x_user=who, **named)


def asked(url: str = URL, secret: str = SECRET, **more: Any) -> dict[str, Any]:
    delivery = {"mode": "webhook", "url": url, "secret": secret}
    return {"name": "todo.changed", "arguments": {}, "cursor": None, "delivery": delivery, **more}


async def subscribe(here: Inside, who: str = "ada", **how: Any) -> Any:
    answer = await ask(here, "events/subscribe", asked(**how), who).json()
    assert "result" in answer, answer
    return answer["result"]


async def refusal(here: Inside, params: dict[str, Any], who: str = "ada", declared: Any = DECLARED) -> Any:
    return (await ask(here, "events/subscribe", params, who, declared).json())["error"]


async def unsubscribe(here: Inside, who: str = "ada", declared: Any = DECLARED) -> Any:
    params = {"name": "todo.changed", "arguments": {}, "delivery": {"url": URL}}
    return await ask(here, "events/unsubscribe", params, who, declared).json()


async def create(here: Inside, name: str, who: str = "ada") -> None:
    arguments = {"action": "create", "query": name}
    answer = await ask(here, "tools/call", {"name": "TaskManager", "arguments": arguments}, who).json()
    assert answer["result"]["isError"] is False, answer


def test_webhooks_are_listed_where_they_are_open_and_a_caller_with_a_name(tmp_path: Path) -> None:
    async def body(here: Inside, _: FakeSender) -> None:
        for method, expected in (("events/list", ["poll", "push", "webhook"]),):
            listed = (await ask(here, method, {}).json())["result"]["events"]
            assert all(type["delivery"] == expected for type in listed)

    run(body, tmp_path)


def test_where_webhooks_are_not_open_the_mode_is_not_supported(tmp_path: Path) -> None:
    async def main() -> None:
        async with inside(tmp_path) as here:
            listed = (await ask(here, "events/list", {}).json())["result"]["events"]
            assert all(type["delivery"] == ["poll", "push"] for type in listed)
            error = await refusal(here, asked())
            assert (error["code"], error["data"]) == (-32026, {"feature": "deliveryMode", "value": "webhook"})

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))


def test_an_endpoint_is_verified_before_an_event_is_sent_and_once(tmp_path: Path) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        made = await subscribe(here)
        assert made["id"].startswith("sub_")
        assert made["resultType"] == "complete"
        assert (made["truncated"], made["deliveryStatus"]["active"]) == (False, True)
        assert sender.challenged == [(URL, (SECRET,), made["id"])]
        await create(here, "tidy up")
        await sender.wait(1)
        post, told = sender.posts[0], sender.posts[0].body
        assert (post.url, post.secrets, post.subscription) == (URL, (SECRET,), made["id"])
        assert post.id == told["eventId"]
        assert (told["name"], told["data"]["name"], told["cursor"]) == ("todo.changed", "tidy up", made["cursor"])
        again = await subscribe(here)
        assert again["id"] == made["id"]
        assert len(sender.challenged) == 1

    run(body, tmp_path)


def test_an_endpoint_that_fails_gets_nothing_and_leaves_no_subscription(tmp_path: Path) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        sender.is_hanging = True
        error = await refusal(here, asked())
        assert (error["code"], error["data"]) == (-32027, {"reason": "timeout"})
        assert (await refusal(here, asked(), declared={}))["code"] == -32015
        await create(here, "tidy up")
        assert (await unsubscribe(here))["error"]["data"] == {"kind": "subscription"}
        assert sender.posts == []

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"url": "http://receiver.example/"}, -32602),
        ({"url": "https://"}, -32602),
        ({"url": "https://ada:secret@receiver.example/"}, -32602),
        ({"url": "https://receiver.example/#x"}, -32602),
        ({"url": "https://receiver.example:99999/"}, -32602),
        ({"url": "https://receiver.example/" + "a" * 2_048}, -32602),
        ({"url": "https://receiver.example/\r\nHost: other"}, -32602),
        ({"url": "https://[::1/"}, -32602),
        ({"secret": "whsec_"}, -32602),
        ({"secret": "whsec_!!!!"}, -32602),
        ({"secret": "whsec_" + base64.b64encode(b"a" * 23).decode()}, -32602),
        ({"secret": "whsec_" + base64.b64encode(b"a" * 65).decode()}, -32602),
        ({"secret": base64.b64encode(b"a" * 32).decode()}, -32602),
        ({"ttlMs": -1}, -32602),
        ({"ttlMs": "1h"}, -32602),
        ({"name": "no.such"}, -32023),
        ({"delivery": {"mode": "email", "url": URL}}, -32026),
        ({"delivery": {"url": 7}}, -32602),
        ({"cursor": "AAAA"}, -32602),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_sent(tmp_path: Path, wrong: dict[str, Any], code: int) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        parts = {key: value for key, value in wrong.items() if key in ("url", "secret")}
        params = {**asked(**parts), **{key: value for key, value in wrong.items() if key not in parts}}
        assert (await refusal(here, params))["code"] == code
        assert sender.challenged == []

    run(body, tmp_path)


def test_another_principal_neither_receives_nor_ends_a_subscription(tmp_path: Path) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        mine, others = await subscribe(here), await subscribe(here, "bob", url=URL)
        assert mine["id"] != others["id"]
        assert "error" in await unsubscribe(here, "eve")
        await create(here, "of bob", "bob")
        await create(here, "of ada")
        await sender.wait(2)
        told = {post.subscription: post.body["data"]["name"] for post in sender.posts}
        assert told == {mine["id"]: "of ada", others["id"]: "of bob"}

    run(body, tmp_path)


def test_an_ended_subscription_delivers_nothing(tmp_path: Path) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        await subscribe(here)
        assert "error" not in await unsubscribe(here)
        await create(here, "tidy up")
        assert (await unsubscribe(here))["error"]["code"] == -32023
        assert "result" in await unsubscribe(here, declared={})
        assert sender.posts == []

    run(body, tmp_path)


def test_a_lifetime_is_granted_within_limits(tmp_path: Path) -> None:
    async def body(here: Inside, _: FakeSender) -> None:
        begin = events_of(here.app).now()
        rows = events_of(here.app).log.rows
        for ttl, seconds in ((..., 100), (1, 60), (80_000, 80), (None, 200), (10**9, 200)):
            rows.now = lambda: begin
            more: dict[str, Any] = {} if ttl is ... else {"ttlMs": ttl}
            made = await subscribe(here, **more)
            lasts = await here.app.host.store().read(
                lambda connection: connection.exec_driver_sql("SELECT expires_at FROM event_subscription").scalar_one()
            )
            assert round(lasts - begin) == seconds
            assert made["refreshBefore"].endswith("Z")

    run(body, tmp_path, SubscriptionLimits(usual=100.0, longest=200.0))


def test_past_its_time_a_subscription_is_silent_and_can_begin_again_at_its_cursor(tmp_path: Path) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        made = await subscribe(here)
        now = events_of(here.app).now
        events_of(here.app).log.rows.now = lambda: now() + 3_600
        await create(here, "while it had lapsed")
        again = await subscribe(here, cursor=made["cursor"])
        await sender.wait(1)
        assert (again["id"], again["truncated"]) == (made["id"], False)
        assert sender.names[0] == "while it had lapsed"
        assert len(sender.challenged) == 1  # the endpoint was verified

    run(body, tmp_path, SubscriptionLimits(usual=60.0))


def test_the_number_of_subscriptions_is_bounded_before_the_challenge(tmp_path: Path) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        for number in range(2):
            await subscribe(here, url=f"{URL}/{number}")
        error = await refusal(here, asked(url=f"{URL}/2"))
        assert (error["code"], error["data"]) == (-32025, {"limit": "subscriptions", "max": 2})
        assert len(sender.challenged) == 2
        await subscribe(here, url=f"{URL}/1")  # a refresh
        await subscribe(here, "bob")

    run(body, tmp_path, SubscriptionLimits(count=2))


def test_a_replaced_secret_signs_for_a_while(tmp_path: Path) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        await subscribe(here)
        await subscribe(here, secret=OTHER)
        await create(here, "one")
        await sender.wait(1)
        assert sender.posts[0].secrets == (OTHER, SECRET)
        now = events_of(here.app).now
        events_of(here.app).log.rows.now = lambda: now() + ROTATION
        await create(here, "two")
        await sender.wait(2)
        assert sender.posts[1].secrets == (OTHER,)

    run(body, tmp_path)


def test_what_waits_is_delivered_by_the_next_server_under_the_same_id(tmp_path: Path) -> None:
    ids = list[str]()

    async def before(here: Inside, sender: FakeSender) -> None:
        sender.answers.extend([204, 500])
        await subscribe(here)
        for name in ("one", "two", "three"):
            await create(here, name)
        await sender.wait(2)
        await wait_failing(here)
        ids.extend(post.id for post in sender.posts)

    async def after(here: Inside, sender: FakeSender) -> None:
        await here.app.host.store().read(lambda _: None)
        assert sender.posts == []  # the retry is not due yet
        status = (await subscribe(here))["deliveryStatus"]
        assert (status["active"], status["lastError"]) == (False, "http_5xx")
        await sender.wait(2)  # a refresh makes it due
        assert (sender.posts[0].id, sender.names) == (ids[1], ["two", "three"])

    run(before, tmp_path, schedule=NEVER)
    run(after, tmp_path)


def test_a_receiver_that_fails_gets_each_event_in_order_once_it_recovers(tmp_path: Path) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        sender.answers.extend([500, 404, 302])
        await subscribe(here)
        await create(here, "one")
        await create(here, "two")
        await sender.wait(5)
        assert sender.names == ["one"] * 4 + ["two"]
        assert len({post.id for post in sender.posts[:4]}) == 1
        await settle(here)
        assert (await subscribe(here))["deliveryStatus"]["active"] is True

    run(body, tmp_path)


def test_a_cursor_is_that_before_an_event_which_is_not_acknowledged(tmp_path: Path) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        sender.answers.extend([500, 500])
        made = await subscribe(here)
        await create(here, "one")
        await sender.wait(3)
        await create(here, "two")
        await sender.wait(4)
        cursors = [post.body["cursor"] for post in sender.posts]
        assert cursors[:3] == [made["cursor"]] * 3
        assert cursors[3] != made["cursor"]

    run(body, tmp_path)


@pytest.mark.parametrize("final", [410, 413])
def test_an_event_that_is_refused_for_good_is_a_gap_told_before_the_next(tmp_path: Path, final: int) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        sender.answers.extend([final, 503])
        made = await subscribe(here)
        await create(here, "too large")
        await create(here, "next")
        await sender.wait(4)
        gaps, event = sender.posts[1:3], sender.posts[3]
        assert {post.body["type"] for post in gaps} == {"gap"}
        assert {post.id for post in gaps} == {gaps[0].id}  # at both attempts
        assert gaps[0].id.startswith("msg_gap_")
        assert isinstance(gaps[0].body["cursor"], str)
        assert event.body["data"]["name"] == "next"
        await settle(here)
        await create(here, "last")
        await sender.wait(5)
        assert sender.posts[4].body["data"]["name"] == "last"
        assert {post.subscription for post in sender.posts} == {made["id"]}

    run(body, tmp_path)


def test_a_client_that_refuses_gaps_still_gets_its_events(tmp_path: Path) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        sender.answers.extend([410] + [400] * CONTROL_TRIES)
        await subscribe(here)
        await create(here, "too large")
        await create(here, "next")
        await sender.wait(CONTROL_TRIES + 2)
        assert sender.posts[-1].body["data"]["name"] == "next"

    run(body, tmp_path)


def test_a_revoked_grant_gets_nothing_before_the_watch_has_ended_it(tmp_path: Path) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        await subscribe(here)
        await subscribe(here, "bob")
        await create(here, "of ada")
        await create(here, "of bob", "bob")
        await sender.wait(1)
        await settle(here)
        assert sender.names == ["of bob"]

    run(body, tmp_path, revoked=[("ada", "client")])


def test_a_subscription_ends_with_its_grant_and_the_endpoint_is_told(tmp_path: Path) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        mine = await subscribe(here)
        await subscribe(here, "bob")
        rights = set(events_of(here.app).rights())
        assert rights == {("ada", "client"), ("bob", "client")}
        await events_of(here.app).terminate_rights({("ada", "client")})
        await sender.wait(1)
        assert sender.posts[0].subscription == mine["id"]
        assert sender.posts[0].id.startswith("msg_terminated_")
        assert sender.posts[0].body["type"] == "terminated"
        assert "revoked" in sender.posts[0].body["error"]["message"]
        await create(here, "of ada")
        await create(here, "of bob", "bob")
        await sender.wait(2)
        assert sender.posts[1].body["data"]["name"] == "of bob"
        assert set(events_of(here.app).rights()) == {("bob", "client")}

    run(body, tmp_path)


def test_a_subscription_that_two_watches_end_at_once_is_told_of_its_end_once(tmp_path: Path) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        await subscribe(here)
        events = events_of(here.app)
        await asyncio.gather(*(events.terminate_rights({("ada", "client")}) for _ in range(2)))
        await sender.wait(1)
        await settle(here)
        assert [post.body["type"] for post in sender.posts] == ["terminated"]

    run(body, tmp_path)


def test_an_end_that_another_server_stored_outlasts_a_second_one(tmp_path: Path) -> None:
    async def body(here: Inside, _: FakeSender) -> None:
        made = await subscribe(here)
        rows = SubscriptionRows(events_of(here.app).log.rows)

        def end_twice(connection: Any) -> list[str]:
            for message in ("first", "second"):
                rows.end(connection, [made["id"]], b"{}", lambda message=message: message)
            return [end.message for end in rows.list_ends(connection)]

        assert await here.app.host.store().transact(end_twice, alone="events") == ["first"]

    run(body, tmp_path)


def test_the_end_of_a_subscription_is_told_by_the_next_server_until_it_is_heard(tmp_path: Path) -> None:
    ids = list[str]()

    async def end(here: Inside, sender: FakeSender) -> None:
        sender.answers.append(500)
        await subscribe(here)
        await events_of(here.app).forget(named("ada"))
        await sender.wait(1)
        ids.append(sender.posts[0].id)

    async def tell(here: Inside, sender: FakeSender) -> None:
        await sender.wait(1)
        assert [(post.id, post.body["type"]) for post in sender.posts] == [(ids[0], "terminated")]
        ends = SubscriptionRows(events_of(here.app).log.rows).list_ends
        async with asyncio.timeout(PATIENCE):
            while await here.app.host.store().read(ends):
                await asyncio.sleep(0.01)

    async def begin_again(here: Inside, sender: FakeSender) -> None:
        await end(here, sender)
        await subscribe(here)
        assert await here.app.host.store().read(SubscriptionRows(events_of(here.app).log.rows).list_ends) == []
        await create(here, "one")
        async with asyncio.timeout(PATIENCE):
            while not any("data" in post.body for post in sender.posts):  # the end may be posted twice, under its id
                await asyncio.sleep(0.01)
        others = [post.body["data"]["name"] for post in sender.posts if post.id != ids[-1]]
        assert others == ["one"]

    run(end, tmp_path / "heard", schedule=NEVER)
    run(tell, tmp_path / "heard")
    run(begin_again, tmp_path / "begun", schedule=NEVER)


def test_the_end_of_a_new_subscription_is_told_again_no_sooner_than_another(tmp_path: Path) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        sender.answers.append(500)
        made = await subscribe(here)
        await events_of(here.app).forget(named("ada"))
        other = await subscribe(here, "bob")
        await unsubscribe(here, "bob")
        await create(here, "while it had lapsed", "bob")
        await subscribe(here, "bob", cursor=other["cursor"])
        await sender.wait(2)  # what waits for a new subscription is sent after a while, and the first one's is over
        assert [post.subscription for post in sender.posts] == [made["id"], other["id"]]

    run(body, tmp_path, schedule=NEVER)


def test_a_principal_who_is_removed_leaves_nothing(tmp_path: Path) -> None:
    async def body(here: Inside, sender: FakeSender) -> None:
        await subscribe(here)
        await events_of(here.app).forget(named("ada"))
        await sender.wait(1)
        assert sender.posts[0].body["type"] == "terminated"
        assert not events_of(here.app).log.has_interest(named("ada"))

    run(body, tmp_path)
