"""Parse the secrets of webhooks, and sign messages with them (Standard Webhooks, symmetric signatures `v1`)."""

import base64
import hashlib
import hmac
from collections.abc import Sequence

import msgspec

PREFIX = "whsec_"
MIN_KEY, MAX_KEY = 24, 64  # bytes, by Standard Webhooks


class WebhookSecretError(ValueError):
    """The text is not a secret. The message does not repeat it."""


class WebhookSecret(msgspec.Struct, frozen=True):
    """The key that a receiver shares with this server. Its repr hides it."""

    key: bytes

    @classmethod
    def parse(cls, text: str) -> "WebhookSecret":
        """Return the secret in `whsec_` and the base64 of 24 to 64 bytes. Raises WebhookSecretError."""
        key = _decode_base64(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else None
        if key is None or not MIN_KEY <= len(key) <= MAX_KEY:
            raise WebhookSecretError(f"the secret is not {PREFIX} and the base64 of {MIN_KEY} to {MAX_KEY} bytes")
        return cls(key)

    def to_text(self) -> str:
        """Return what `parse` reads."""
        return PREFIX + base64.b64encode(self.key).decode()

    def __repr__(self) -> str:
        return "WebhookSecret(hidden)"


def sign_message(id: str, timestamp: int, body: bytes, secrets: Sequence[WebhookSecret]) -> str:
    """Return the header `webhook-signature`: a signature for each secret, the newest first."""
    content = f"{id}.{timestamp}.".encode() + body
    return " ".join(f"v1,{_sign(secret.key, content)}" for secret in secrets)


def _sign(key: bytes, content: bytes) -> str:
    return base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()


def _decode_base64(text: str) -> bytes | None:
    """Return the decoded bytes, or None unless `text` is exactly how they are encoded."""
    try:
        decoded = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return decoded if base64.b64encode(decoded).decode() == text else None
