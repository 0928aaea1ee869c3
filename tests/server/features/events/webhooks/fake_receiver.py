"""A receiver of webhooks for tests: an HTTPS site on loopback whose certificate is by an authority of the test."""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from tests.server.features.events.webhooks.fake_authority import FakeAuthority
from tests.tools.fake_web_site import Answer, Request, Site, site
from toolgate.server.features.events.webhooks.delivery import Delivery
from toolgate.server.features.events.webhooks.sender import WebhookSender
from toolgate.server.features.events.webhooks.signature import WebhookSecret

HOST = "hooks.example"
SECRET = WebhookSecret.parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
OLD_SECRET = WebhookSecret(bytes(range(32)))
ACCEPTED: Answer = (204, {}, b"")


@contextlib.asynccontextmanager
async def receiver(
    folder: Path, pages: Mapping[str, Answer], *, names: Sequence[str] = (HOST,)
) -> AsyncIterator[tuple[Site, FakeAuthority]]:
    authority = FakeAuthority(folder)
    async with site(pages, authority.issue(*names)) as place:
        yield place, authority


@contextlib.asynccontextmanager
async def sender(
    authority: FakeAuthority | None = None,
    allow: Sequence[str] = ("127.0.0.1",),
    resolve: Callable[[str, int], Awaitable[Sequence[str]]] | None = None,
    **options: float,
) -> AsyncIterator[WebhookSender]:
    """A sender that trusts the authority and resolves each name to loopback."""
    verify = None if authority is None else authority.trust()
    sending = WebhookSender(allow, verify=verify, resolve=resolve or resolve_to_loopback, **options)  # type: ignore[arg-type]
    try:
        yield sending
    finally:
        await sending.close()


async def resolve_to_loopback(host: str, port: int) -> Sequence[str]:
    return [host] if host.replace(".", "").isdigit() or ":" in host else ["127.0.0.1"]


def delivery(url: str, id: str = "build-7", subscription: str = "sub_1", **changes: object) -> Delivery:
    fields: dict[str, object] = {
        "id": id,
        "subscription": subscription,
        "principal": "p",
        "url": url,
        "body": json.dumps({"eventId": id}).encode(),
        "secrets": (SECRET,),
        "attempts": 0,
        "created_at": 0.0,
    }
    return Delivery(**{**fields, **changes})  # type: ignore[arg-type]


async def echo_challenge(request: Request) -> None:
    """Answer a verification as a receiver does that wants the webhooks."""
    body = json.dumps({"challenge": json.loads(request.body)["challenge"]}).encode()
    await request.send(200, {"content-type": "application/json", "content-length": str(len(body))}, body)
