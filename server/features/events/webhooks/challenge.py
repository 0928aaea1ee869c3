"""Verify that an endpoint wants webhooks: it must return a random challenge before anything else is sent to it.

Else anyone could make this server post to others. The answer holds nothing else: a service that repeats what it is sent
has agreed to nothing. The challenge lives as long as the request that carries it. A failure
is one word: it must not become a way to read what the server can reach.
"""

import hmac
import secrets
import time
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from toolgate.server.base.limits.rate_limit import SlidingWindow
from toolgate.server.features.events.webhooks.delivery import Failure, create_message_id
from toolgate.server.features.events.webhooks.sender import WebhookSender, name_failure
from toolgate.server.features.events.webhooks.signature import WebhookSecret
from toolgate.tools.api.context.services import Page
from toolgate.tools.api.errors import ToolError

PER_PRINCIPAL = 10  # challenges a minute
PER_HOST = 30  # a minute: of many principals, since hosted clients share a host
ALL = 100  # a minute; fewer than the connections of a lane, though all hang at once
MAX_ANSWER = 4_096  # bytes; a challenge and its JSON take 60

Reason = Literal["challenge_failed"] | Failure


class EndpointError(Exception):
    """The endpoint did not pass. `reason` is all that a subscriber may learn."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"the callback endpoint did not pass verification: {reason}")
        self.reason: Reason = reason


class ChallengeRateError(Exception):
    """Too many endpoints were verified in the last minute. `wait`: seconds until one may be."""

    def __init__(self, wait: int) -> None:
        super().__init__(f"too many callback endpoints were verified; try again in {wait} s")
        self.wait = wait


class ChallengeAnswer(msgspec.Struct, forbid_unknown_fields=True):
    challenge: str


class EndpointVerifier:
    """Send challenges, limited per minute by principal, by host and in all. `now` is in seconds and never set back."""

    def __init__(
        self,
        sender: WebhookSender,
        *,
        per_principal: int = PER_PRINCIPAL,
        per_host: int = PER_HOST,
        all: int = ALL,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sender = sender
        self._limits = {"principal": per_principal, "host": per_host, "all": all}
        self._now = now
        self._minutes: dict[Hashable, SlidingWindow] = {}
        self.verified = 0
        self.failures: Counter[Reason] = Counter()

    async def verify_endpoint(self, url: str, secret: WebhookSecret, *, subscription: str, principal: str) -> None:
        """Return if the endpoint returns the challenge.

        - `secret`: signs it. `subscription`: an id that the receiver has not seen yet.

        Raises:
            CallbackUrlError: the URL is not https, or malformed.
            ChallengeRateError: the limit of the principal, of the host or of all is reached. Nothing was sent.
            EndpointError: the endpoint did not pass.
        """
        self._sender.check_url(url)
        self._count(principal, urlsplit(url).hostname or "")
        reason = await self._challenge(url, secret, subscription)
        if reason is not None:
            self.failures[reason] += 1
            raise EndpointError(reason)
        self.verified += 1

    async def _challenge(self, url: str, secret: WebhookSecret, subscription: str) -> Reason | None:
        challenge = secrets.token_urlsafe(32)
        body = msgspec.json.encode({"type": "verification", "challenge": challenge})
        id = create_message_id("verification")
        try:
            answer = await self._sender.post(url, id, subscription, body, [secret], lane="challenge", limit=MAX_ANSWER)
        except ToolError as error:
            return name_failure(error)
        return _judge(answer, challenge)

    def _count(self, principal: str, host: str) -> None:
        """Count a challenge. Raises ChallengeRateError, and counts nothing, above a limit."""
        now = self._now()
        self._minutes = {key: minute for key, minute in self._minutes.items() if not minute.is_over(now)}
        keys = ("principal", principal), ("host", host), ("all", "")
        minutes = {key: self._minutes.get(key) or SlidingWindow() for key in keys}
        if wait := max(minutes[key].wait(now, self._limits[key[0]]) for key in keys):
            raise ChallengeRateError(wait)
        for key, minute in minutes.items():
            minute.add(now)
            self._minutes[key] = minute


def _judge(answer: Page, challenge: str) -> Reason | None:
    if answer.status >= 500:
        return "http_5xx"
    if answer.status >= 400:
        return "http_4xx"
    if not 200 <= answer.status < 300 or answer.truncated:
        return "challenge_failed"
    try:
        returned = msgspec.json.decode(answer.body, type=ChallengeAnswer).challenge
    except (ValueError, RecursionError):
        return "challenge_failed"
    is_same = hmac.compare_digest(returned.encode("utf-8", "surrogatepass"), challenge.encode())
    return None if is_same else "challenge_failed"
