"""Check that the endpoints of stored subscriptions to events can be reached."""

import asyncio
import time
from contextlib import aclosing
from functools import partial
from urllib.parse import urlsplit

from toolgate.server.cli.doctor.report import CheckFinding, CheckNote, CheckSkippedError, DoctorPart
from toolgate.server.config.load import Config

MAX_HOSTS = 20  # that are asked: a check takes as long as the slowest


def list_checks(config: Config) -> DoctorPart:
    """Return the checks of events."""
    checks = [("webhooks", partial(endpoints, config), ())]
    return DoctorPart(checks, after="signing key")


async def endpoints(config: Config) -> CheckFinding:
    """Send a HEAD request to one endpoint of each host. URLs are not shown: they may hold a client's secret."""
    if not config.is_remote or config.auth == "none":
        raise CheckSkippedError("callers do not sign in here: there are no webhooks")
    from toolgate.server.features.events.webhook_sender import create_sender  # start-up

    urls = await _read_urls(config)
    if not urls:
        raise CheckSkippedError("nobody has subscribed to events by webhook")
    by_host = {urlsplit(url).netloc: url for url in urls}
    asked = dict(list(by_host.items())[:MAX_HOSTS])
    sender = create_sender(config)
    try:
        found = await asyncio.gather(*map(sender.find_fault, asked.values()))
    finally:
        await sender.close()
    faults = [f"{host}: {fault}" for host, fault in zip(asked, found, strict=True) if fault is not None]
    if faults:
        remedy = "let this server reach them; a private address needs --allow-private; other faults are the receiver's"
        return CheckNote(f"callbacks can't be reached: {', '.join(faults)}", remedy)
    return f"reached {len(asked)} of {len(by_host)} hosts with callbacks"


async def _read_urls(config: Config) -> list[str]:
    """Return the URLs of the verified subscriptions, each once."""
    from toolgate.server.app.features import open_store
    from toolgate.server.base.errors import StateError  # start-up
    from toolgate.server.features.events.delivery.subscription_rows import SubscriptionRows
    from toolgate.server.features.events.log.rows import FLAG, EventLimits, EventRows

    try:
        async with aclosing(open_store(config, upgrades=False)) as store:
            if not store.has_flag(FLAG, ""):
                return []
            rows = SubscriptionRows(EventRows(store, EventLimits(), time.time))
            return list({held.url: None for held in await store.read(rows.list_active)})
    except StateError as error:
        raise CheckSkippedError(str(error)) from None
