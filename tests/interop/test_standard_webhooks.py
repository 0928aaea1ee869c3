"""Deliveries as npm's `standardwebhooks` verifies them: the package that receivers in JavaScript use."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.interop.node import node, package
from tests.server.features.events.webhooks.fake_receiver import (
    ACCEPTED,
    HOST,
    OLD_SECRET,
    SECRET,
    delivery,
    receiver,
    sender,
)
from tests.tools.api.outbound.test_fetch import run
from tests.tools.fake_web_site import Request
from toolgate.server.features.events.webhooks.signature import WebhookSecret

VERIFY = """
import { readFileSync } from 'node:fs'
import { Webhook } from 'standardwebhooks'
const { secret, body, headers } = JSON.parse(readFileSync(0, 'utf8'))
console.log(JSON.stringify(new Webhook(secret).verify(body, headers)))
"""
EVENT = {"eventId": "build-7", "data": {"last": "naïve 🙂"}}


def deliver(folder: Path) -> Request:
    """Return the request of a delivery during the rotation of its secret."""

    async def scenario() -> Request:
        async with receiver(folder, {"/": ACCEPTED}) as (place, authority), sender(authority) as sending:
            body = json.dumps(EVENT, ensure_ascii=False).encode()
            await sending.send(delivery(place.url("/", HOST), body=body, secrets=(SECRET, OLD_SECRET)))
            return place.requests[0]

    return run(scenario())


@pytest.mark.parametrize(("secret", "passes"), [(SECRET, True), (OLD_SECRET, True), (WebhookSecret(bytes(24)), False)])
def test_npm_verifies_both_secrets_of_a_rotation_and_no_other(
    tmp_path: Path, secret: WebhookSecret, passes: bool
) -> None:
    request = deliver(tmp_path)
    content = {"secret": secret.to_text(), "body": request.body.decode(), "headers": request.headers}
    verifying = subprocess.run(
        [node(), "--input-type=module", "-e", VERIFY],
        cwd=package("standardwebhooks"),
        input=json.dumps(content),
        capture_output=True,
        text=True,
        timeout=60,
    )
    if passes:
        assert json.loads(verifying.stdout) == EVENT
    else:
        assert "No matching signature found" in verifying.stderr
