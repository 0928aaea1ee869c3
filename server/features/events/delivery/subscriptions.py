"""Subscribe to events by webhook: check, verify, refresh, end.

A subscription is the principal's, through one client: another one of the same person has its own. It is stored before
its endpoint is challenged, and delivers nothing until that has passed. It ends with its time, or with its grant.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from toolgate.server.base.errors import StateError
from toolgate.server.features.events.delivery.outbox import EventOutbox, format_right, parse_right, to_pending
from toolgate.server.features.events.delivery.subscription_request import (
    SubscriptionLimits,
    SubscriptionRequest,
    make_subscription_id,
)
from toolgate.server.features.events.delivery.subscription_rows import (
    StoredSubscription,
    SubscriptionRows,
    TooManySubscriptionsError,
)
from toolgate.server.features.events.log.cursors import CursorCoder
from toolgate.server.features.events.log.errors import EventError
from toolgate.server.features.events.log.format import format_time
from toolgate.server.features.events.log.log import EventLog
from toolgate.server.features.events.log.rows import FLAG, EventFilter, Position
from toolgate.server.features.events.webhooks.challenge import ChallengeRateError, EndpointError, EndpointVerifier
from toolgate.server.features.events.webhooks.delivery import Delivery, Outcome, create_message_id
from toolgate.server.features.events.webhooks.delivery_queue import DeliveryQueue
from toolgate.server.features.events.webhooks.retry_schedule import RetrySchedule
from toolgate.server.features.events.webhooks.sender import CallbackUrlError, WebhookSender
from toolgate.server.features.events.webhooks.signature import WebhookSecret, WebhookSecretError
from toolgate.server.protocol.errors import InvalidParams
from toolgate.server.protocol.messages import encode_value
from toolgate.server.state.keys.sealed_state import Sealer, SealError, SealingKey
from toolgate.tools.api.event import EventType

if TYPE_CHECKING:
    from toolgate.server.base.principals.principal import GrantKey

ROTATION = 3_600.0  # seconds in which a replaced secret signs too
SHORTEST = 60.0  # seconds that a subscription lives at least
FIRST_LOOK = 0.1  # seconds after subscribe: the client should have the id before the first event
RETRY = 10.0  # seconds until the state is read again
TEST_TIME = 5.0  # seconds that a person waits for the end of a test
STOPPING = 1.0  # seconds for deliveries under way to end when the server does

PublishChange = Callable[[str, str, Collection[str]], None]

log = logging.getLogger("toolgate.events")


class EventSubscriptions:
    """The subscriptions of one server, and the queue of what they get.

    - `key` seals their secrets. `find_valid(grants)` returns those that still allow access.
    """

    def __init__(
        self,
        events: EventLog,
        cursors: CursorCoder,
        sender: WebhookSender,
        key: SealingKey,
        find_valid: "Callable[[Collection[GrantKey]], Awaitable[Collection[GrantKey]]]",
        limits: SubscriptionLimits | None = None,
        schedule: RetrySchedule | None = None,
    ) -> None:
        self.limits = limits or SubscriptionLimits()
        self._log = events
        self._rows = SubscriptionRows(events.rows)
        self._cursors = cursors
        self._sender = sender
        self._sealer = Sealer(key, None)
        self._outbox = EventOutbox(events.store, self._rows, cursors, self._open_secrets, find_valid)
        self.verifier = EndpointVerifier(sender)
        self.queue = DeliveryQueue(self._outbox, sender.send, schedule=schedule, now=lambda: events.rows.now())
        self._publish: PublishChange | None = None  # tells the other replicas
        self._active: dict[str, StoredSubscription] = {}
        self._by_type: dict[tuple[str, str], set[str]] = {}  # principal and type → ids
        self._ending: set[str] = set()
        events.on_news.append(self._wake)
        self._outbox.on_outcome.append(lambda delivery, _: events.note_change(delivery.principal))

    def __len__(self) -> int:
        return len(self._active)

    def share(self, is_own: Callable[[str], bool], publish: PublishChange) -> None:
        """Deliver only for those that `is_own(id)`, and call `publish(principal, type, ended)` at each change."""
        self._outbox.is_own, self._publish = is_own, publish

    async def run_start(self) -> None:
        """Take up the subscriptions of earlier servers, and try again until the state can be read."""
        while True:
            try:
                await self.start()
            except StateError as error:
                log.warning("subscriptions are taken up in %d s: %s", RETRY, error)
                await asyncio.sleep(RETRY)
            else:
                return

    async def start(self) -> None:
        """Take up the subscriptions and deliveries of earlier servers, and of other replicas. Raises StateError."""
        if not self._log.store.has_flag(FLAG, ""):
            return
        for held in await self._log.store.read(self._rows.list_active):
            self._add(held)
        for end in await self._log.store.read(self._rows.list_ends):
            if self._outbox.is_own(end.held.id) and not self._outbox.has_end(end.held.id):
                self.queue.add(self._outbox.add_end(end))
        await self.queue.start()

    async def follow(self, principal: str, type: str, ended: Collection[str]) -> None:
        """Take up the subscriptions of a principal to a type as another replica has changed them. Raises StateError."""
        await self._forget(ended)
        rows = self._rows
        for held in await self._log.store.read(lambda connection: rows.list_active(connection, principal, type)):
            if held.id not in ended:
                self._take_up(held)

    def make_request(
        self,
        wanted: EventFilter,
        *,
        owner: str,
        right: "GrantKey | None",
        url: str,
        secret: str,
        after: Position | None,
        not_before: float,
        ttl: float | None,
        until: float | None = None,
    ) -> SubscriptionRequest:
        """Return a checked request. Raises InvalidParams for a wrong URL or secret."""
        try:
            self._sender.check_url(url)
        except CallbackUrlError as error:
            raise InvalidParams(f"'delivery.url': {error}") from None
        try:
            key = WebhookSecret.parse(secret)
        except WebhookSecretError as error:
            raise InvalidParams(f"'delivery.secret': {error}") from None
        return SubscriptionRequest(wanted, owner, right, url, key, after, not_before, ttl, until)

    async def subscribe(self, request: SubscriptionRequest) -> dict[str, Any]:
        """Subscribe, or refresh a subscription, and return the result. Raises EventError and StateError."""
        store, rows = self._log.store, self._rows
        secret = self._sealer.seal(request.secret.to_text(), request.wanted.principal, request.id)

        def begin(connection: Any) -> tuple[StoredSubscription, Position, bool]:
            held = rows.find(connection, request.id)
            if held is not None and held.active:
                fresh = self._refresh(held, request, secret)
                rows.refresh(connection, fresh)
                return fresh, rows.watermark(connection, fresh), False
            made = self._make(request, secret)
            return rows.begin(connection, made, request.after, request.not_before, self.limits.count)

        try:
            held, position, is_truncated = await store.transact(begin, alone="events")
        except TooManySubscriptionsError:
            most = self.limits.count
            message = f"the limit of subscriptions ({most}) is reached: end some first"
            raise EventError("ResourceExhausted", message, limit="subscriptions", max=most) from None
        if not held.active:
            held = await self._verify(request, held, position)
        self._take_up(held)
        self._publish_change([held], [])
        return self._format(held, position, is_truncated)

    async def unsubscribe(self, wanted: EventFilter, owner: str, url: str) -> bool:
        """End a subscription. Return whether there was one."""
        found = await self._remove([make_subscription_id(owner, url, wanted)])
        return any(each.active for each in found)

    def rights(self) -> Collection["GrantKey"]:
        """Return what the access of each subscription depends on."""
        keys = {each.grant_key for each in self._active.values()}
        return [right for key in keys if (right := parse_right(key)) is not None]

    async def terminate_rights(self, rights: Collection["GrantKey"]) -> None:
        """End the subscriptions of revoked grants."""
        ended = [each.id for each in self._active.values() if parse_right(each.grant_key) in rights]
        await self.terminate(ended, EventError("Forbidden", "the access that allowed this subscription was revoked"))

    async def terminate_principal(self, principal: str) -> None:
        """End the subscriptions of a principal who was removed."""
        ended = [each.id for each in self._active.values() if each.principal == principal]
        await self.terminate(ended, EventError("Forbidden", "the access that allowed this subscription was revoked"))

    async def terminate_type(self, type: str, error: EventError) -> None:
        """End the subscriptions to a type that is served no longer."""
        await self.terminate([each.id for each in self._active.values() if each.type == type], error)

    async def terminate(self, ids: Collection[str], error: EventError) -> None:
        """End subscriptions, and tell their endpoints why. One that another call ends now is left to it."""
        ids = [id for id in ids if id not in self._ending]
        if not ids:
            return
        self._ending.update(ids)
        try:
            await self._end(ids, error)
        finally:
            self._ending.difference_update(ids)

    async def _end(self, ids: Collection[str], error: EventError) -> None:
        body = encode_value({"type": "terminated", "error": error.to_wire(is_declared=False)})
        store, rows, create_id = self._log.store, self._rows, partial(create_message_id, "terminated")
        ends = await store.transact(lambda connection: rows.end(connection, ids, body, create_id), alone="events")
        await self._forget(ids)
        self._publish_change([end.held for end in ends], ids)
        for end in ends:
            self.queue.add(self._outbox.add_end(end))

    async def send_test(self, held: StoredSubscription, type: EventType) -> Outcome | None:
        """Send a test event to a subscription alone. Return how its first attempt ended, or an earlier event's that
        failed; None if neither did within seconds. Raises EventError and StateError."""
        ids = set[str]()
        ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def note(delivery: Delivery, outcome: Outcome) -> None:
            is_end = outcome.error is not None or delivery.id in ids
            if delivery.subscription == held.id and is_end and not ended.done():
                ended.set_result(outcome)

        self._outbox.on_outcome.append(note)
        try:
            arguments = msgspec.json.decode(held.arguments)
            ids.update(await self._log.send_tests(held.principal, type, arguments, {held.id}))
            self._deliver_now(held)
            async with asyncio.timeout(TEST_TIME):
                return await ended
        except TimeoutError:
            return None
        finally:
            self._outbox.on_outcome.remove(note)

    async def close(self) -> None:
        """End the deliveries. Those that are not acknowledged are sent again by the next server, under the same id."""
        await self.queue.close(STOPPING)
        await self._sender.close()

    async def _verify(
        self, request: SubscriptionRequest, pending: StoredSubscription, begin: Position
    ) -> StoredSubscription:
        """Challenge the endpoint. A subscription that fails, or whose client has left, is removed."""
        store, rows, is_verified = self._log.store, self._rows, False
        try:
            await self._challenge(request, pending)
            held = await store.transact(
                lambda connection: rows.activate(connection, pending, begin, request.not_before), alone="events"
            )
            is_verified = True
            return held
        finally:
            if not is_verified:
                remove = store.transact(lambda connection: rows.remove_pending(connection, pending.id), alone="events")
                await asyncio.shield(remove)

    async def _challenge(self, request: SubscriptionRequest, pending: StoredSubscription) -> None:
        """Have the endpoint return a challenge. Raises EventError."""
        try:
            await self.verifier.verify_endpoint(
                request.url, request.secret, subscription=pending.id, principal=pending.principal
            )
        except EndpointError as error:
            raise EventError("CallbackEndpointError", str(error), reason=error.reason) from None
        except ChallengeRateError as error:
            raise EventError("ResourceExhausted", str(error), limit="verifications") from None

    async def _remove(self, ids: Collection[str]) -> list[StoredSubscription]:
        removed = await self._log.store.transact(lambda connection: self._rows.remove(connection, ids), alone="events")
        await self._forget(ids)
        self._publish_change(removed, ids)
        return removed

    async def _forget(self, ids: Collection[str]) -> None:
        """Send nothing more for subscriptions that are removed."""
        for id in ids:
            self._drop(id)
            await self.queue.cancel(id)

    def _take_up(self, held: StoredSubscription) -> None:
        """Deliver for a subscription that was made or refreshed, soon also what would be tried again later."""
        self._outbox.withdraw_end(held.id)
        self._add(held)
        asyncio.get_running_loop().call_later(FIRST_LOOK, self._deliver_now, held)

    def _publish_change(self, held: Collection[StoredSubscription], ended: Collection[str]) -> None:
        if self._publish is not None:
            for principal, type in {(each.principal, each.type) for each in held}:
                self._publish(principal, type, ended)

    def _add(self, held: StoredSubscription) -> None:
        self._active[held.id] = held
        self._by_type.setdefault((held.principal, held.type), set()).add(held.id)
        self._log.note_change(held.principal)

    def _drop(self, id: str) -> None:
        held = self._active.pop(id, None)
        self._outbox.forget(id)
        if held is not None:
            same = self._by_type[held.principal, held.type]
            same.discard(id)
            if not same:
                del self._by_type[held.principal, held.type]
            self._log.note_change(held.principal)

    def _wake(self, principal: str, type: str) -> None:
        now = self._log.rows.now()
        for id in list(self._by_type.get((principal, type), ())):
            if self._active[id].expires_at > now:
                if self._outbox.is_own(id):
                    self.queue.add(to_pending(self._active[id]))
            else:
                self._drop(id)  # its row goes with the next sweep

    def _deliver_now(self, held: StoredSubscription) -> None:
        """Deliver what waits for a subscription, also what would be tried again later: not word of its end."""
        if held.id in self._active and self._outbox.is_own(held.id):
            self.queue.add(to_pending(held))
            self.queue.retry_now(held.id)

    def _make(self, request: SubscriptionRequest, secret: str) -> StoredSubscription:
        wanted, now = request.wanted, self._log.rows.now()
        return StoredSubscription(
            id=request.id,
            principal=wanted.principal,
            owner=request.owner,
            grant_key=format_right(request.right),
            url=request.url,
            type=wanted.type,
            arguments=wanted.arguments,
            sealed=secret,
            expires_at=self._end_of(request, now),
            made_at=now,
        )

    def _refresh(self, held: StoredSubscription, request: SubscriptionRequest, secret: str) -> StoredSubscription:
        """Return the subscription with another time and secret. The secret before it signs too for a while."""
        now = self._log.rows.now()
        is_rotated = self._unseal(held, held.sealed) != request.secret
        previous = (held.sealed, now + ROTATION) if is_rotated else (held.previous, held.previous_until)
        return replace(
            held,
            grant_key=format_right(request.right),
            sealed=secret if is_rotated else held.sealed,
            previous=previous[0],
            previous_until=previous[1],
            expires_at=self._end_of(request, now),
        )

    def _end_of(self, request: SubscriptionRequest, now: float) -> float:
        wish = self.limits.usual if request.ttl is None else request.ttl
        end = now + min(max(wish, SHORTEST), self.limits.longest)
        return end if request.until is None else min(end, request.until)

    def _open_secrets(self, held: StoredSubscription) -> tuple[WebhookSecret, ...]:
        sealed = [held.sealed]
        if held.previous is not None and (held.previous_until or 0.0) > self._log.rows.now():
            sealed.append(held.previous)
        return tuple(secret for each in sealed if (secret := self._unseal(held, each)) is not None)

    def _unseal(self, held: StoredSubscription, sealed: str) -> WebhookSecret | None:
        """Return a secret, or None if its key is gone."""
        try:
            return WebhookSecret.parse(self._sealer.unseal(sealed, held.principal, held.id))
        except (SealError, WebhookSecretError):
            return None

    def _format(self, held: StoredSubscription, position: Position, is_truncated: bool) -> dict[str, Any]:
        status: dict[str, Any] = {
            "active": held.failing_since is None,
            "lastDeliveryAt": None if held.delivered_at is None else format_time(held.delivered_at),
            "lastError": held.last_error,
        }
        if held.failing_since is not None:
            status["failedSince"] = format_time(held.failing_since)
        return {
            "id": held.id,
            "refreshBefore": format_time(held.expires_at),
            "cursor": self._cursors.format_cursor(held.principal, position),
            "truncated": is_truncated,
            "deliveryStatus": status,
        }
