"""Send one signed POST to a webhook, by the way out that web pages are fetched through (tools/api/outbound/fetch.py).

Only https, to vetted public addresses; each attempt resolves the name again and opens a connection of its own. No
redirect is followed. The answer is bounded in size and time, and only its status and `Retry-After` are used.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolgate.server.features.events.webhooks.delivery import Delivery, Disposition, Failure, Outcome
from toolgate.server.features.events.webhooks.retry_schedule import parse_retry_after
from toolgate.server.features.events.webhooks.signature import WebhookSecret, sign_message
from toolgate.tools.api.context.services import Page
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.outbound.dns import Resolver
from toolgate.tools.api.outbound.errors import REDIRECTS, AddressRefusedError, PageTimeoutError, PageTlsError, Resolve
from toolgate.tools.api.outbound.fetch import Web

if TYPE_CHECKING:
    import ssl

TIMEOUT = 10.0  # seconds for an attempt, from the look-up of the name to the head of the answer
MAX_RECEIVED = 2**17  # bytes read from a connection: a head of 100 KiB, which httpcore accepts, and a short body
MAX_LOOKUP = 60.0  # seconds for which a hanging look-up keeps its turn, so that no principal has many
MAX_URL = 2_048  # characters
AGENT = "toolgate-webhooks"
GONE, TOO_LARGE = 410, 413  # this delivery is not wanted, now or later
NOT_READY = (425, 503)  # also how a receiver answers that is still storing the subscription

log = logging.getLogger("toolgate.webhooks")


class CallbackUrlError(ValueError):
    """The URL can't be a callback; the text says why."""


class WebhookSender:
    """`allow_private` and `refuse_networks`: as for `Web`, which raises ValueError for a bad entry. `verify` and
    `resolve` replace the certificates and the DNS. `now` is in seconds since 1970."""

    def __init__(
        self,
        allow_private: Sequence[str] = (),
        refuse_networks: Sequence[str] = (),
        *,
        verify: "ssl.SSLContext | None" = None,
        resolve: Resolve | None = None,
        timeout: float = TIMEOUT,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._resolver = Resolver()
        self._web = Web(
            allow_private,
            refuse_networks,
            verify=verify,
            resolve=resolve or self._resolver.addresses,
            max_received=MAX_RECEIVED,
        )
        self._timeout = timeout
        self._now = now

    def check_url(self, url: str) -> None:
        """Raises CallbackUrlError unless `url` is an https URL that can be requested. Resolves no name."""
        if len(url) > MAX_URL:
            raise CallbackUrlError(f"the URL is longer than {MAX_URL} characters")
        if not url.lower().startswith("https://") or not url.isprintable() or url != url.strip():
            raise CallbackUrlError("the URL does not begin with https://")
        if "#" in url:
            raise CallbackUrlError("the URL has a fragment, which is never sent")
        try:
            self._web.normalise_url(url)
        except ToolError as error:
            raise CallbackUrlError(error.text) from None

    async def send(self, delivery: Delivery) -> Outcome:
        """Make one attempt. Nothing that a receiver does raises."""
        if not delivery.is_valid:
            log.error(
                "the delivery %.100r can't be sent: its id or size is impossible, or no secret signs it", delivery.id
            )
            return Outcome(Disposition.FINAL, "http_4xx")
        try:
            answer = await self.post(
                delivery.url, delivery.id, delivery.subscription, delivery.body, delivery.secrets, lane="delivery"
            )
        except ToolError as error:
            if isinstance(error, PageTimeoutError):
                await self._resolver.wait_until_idle(urlsplit(delivery.url).hostname or "", MAX_LOOKUP)
            return Outcome(Disposition.RETRY, name_failure(error))
        return judge_answer(answer, self._now())

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
        """Sign `body` now and post it; return the answer with up to `limit` bytes. Raises ToolError."""
        if not url.lower().startswith("https://"):
            raise AddressRefusedError("only https URLs are callbacks")
        timestamp = int(self._now())
        headers = {
            "content-type": "application/json",
            "user-agent": AGENT,
            "webhook-id": id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign_message(id, timestamp, body, secrets),
            "x-mcp-subscription-id": subscription,
        }
        return await self._web.fetch(
            url, method="POST", headers=headers, body=body, limit=limit, timeout=self._timeout, lane=lane
        )

    async def find_fault(self, url: str) -> Failure | None:
        """Return why `url` can't be reached, or None if it gives any answer but a redirect. It gets an unsigned HEAD
        request."""
        try:
            self.check_url(url)
            page = await self._web.fetch(
                url,
                method="HEAD",
                headers={"user-agent": AGENT},
                limit=0,
                timeout=self._timeout,
                redirects=None,
                lane="check",
            )
        except CallbackUrlError:
            return "connection_refused"
        except ToolError as error:
            return name_failure(error)
        return "http_4xx" if page.status in REDIRECTS else None

    async def close(self) -> None:
        await self._web.close()


def judge_answer(answer: Page, now: float) -> Outcome:
    """Return what a receiver's status means. A redirect is a failure; the words have no other place for it than 4xx."""
    status = answer.status
    if 200 <= status < 300:
        return Outcome(Disposition.ACKNOWLEDGED)
    error: Failure = "http_5xx" if status >= 500 else "http_4xx"
    if status in (GONE, TOO_LARGE):
        return Outcome(Disposition.FINAL, error)
    retry_after = parse_retry_after(answer.headers.get("retry-after", ""), now)
    return Outcome(Disposition.RETRY, error, retry_after, is_soon=status in NOT_READY)


def name_failure(error: ToolError) -> Failure:
    """Return the word for an attempt without an answer. A refused address and an unknown name are not told apart from a
    refused connection: else subscribers could explore the server's network."""
    match error:
        case PageTimeoutError():
            return "timeout"
        case PageTlsError():
            return "tls_error"
        case _:
            return "connection_refused"
