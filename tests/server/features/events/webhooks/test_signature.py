"""Secrets and signatures, beside Standard Webhooks' own verifier."""

import json
import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from tests.server.features.events.webhooks.fake_receiver import OLD_SECRET, SECRET
from toolgate.server.features.events.webhooks.signature import WebhookSecret, WebhookSecretError, sign_message

BODY = json.dumps({"text": "naïve 🙂"}, ensure_ascii=False).encode()


def headers(signature: str, timestamp: int) -> dict[str, str]:
    return {"webhook-id": "a.b-1", "webhook-timestamp": str(timestamp), "webhook-signature": signature}


def test_the_vector_of_standard_webhooks_is_signed_alike() -> None:
    signature = sign_message("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [SECRET])
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_both_secrets_of_a_rotation_verify_and_no_other_does() -> None:
    now = int(time.time())
    signed = headers(sign_message("a.b-1", now, BODY, [SECRET, OLD_SECRET]), now)
    for secret in (SECRET, OLD_SECRET):
        assert Webhook(secret.to_text()).verify(BODY, signed) == json.loads(BODY)
    with pytest.raises(WebhookVerificationError):
        Webhook(WebhookSecret(bytes(24)).to_text()).verify(BODY, signed)


@pytest.mark.parametrize("size", [24, 32, 64])
def test_a_secret_is_read_and_written(size: int) -> None:
    text = WebhookSecret(bytes(range(size))).to_text()
    assert WebhookSecret.parse(text) == WebhookSecret(bytes(range(size)))


LONG = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"  # 24 bytes
MALFORMED = {
    "empty": "",
    "prefix alone": "whsec_",
    "no prefix": LONG,
    "another case": f"WHSEC_{LONG}",
    "two prefixes": f"whsec_whsec_{LONG}",
    "23 bytes": WebhookSecret(bytes(23)).to_text(),
    "65 bytes": WebhookSecret(bytes(65)).to_text(),
    "no base64": "whsec_" + "!" * 32,
    "a space": f"whsec_{LONG} ",
    "a line break": f"whsec_{LONG}\n",
    "no padding": WebhookSecret(bytes(32)).to_text().rstrip("="),
    "too much padding": f"whsec_{LONG}====",
    "another alphabet": f"whsec_{'_' * 32}",
    "spare bits": "whsec_" + "A" * 42 + "B=",
    "not ASCII": "whsec_" + "é" * 32,
    "half a surrogate pair": "whsec_\ud800" + LONG,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_secret_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(WebhookSecretError) as caught:
        WebhookSecret.parse(MALFORMED[name])
    assert str(caught.value) == "the secret is not whsec_ and the base64 of 24 to 64 bytes"
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


def test_a_secret_does_not_show() -> None:
    for text in (repr(SECRET), str(SECRET), f"{SECRET}", f"{[SECRET]}"):
        assert "hidden" in text
        assert "MfKQ" not in text
        assert repr(SECRET.key)[2:-1] not in text
