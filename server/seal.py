"""Seals what a client carries for us between two tries of a request (`requestState`). Knows nothing of what is inside.

AES-256-GCM: the client can neither read nor change it. Bound to the principal and the request it was given for, and
dead after `LIFETIME`. Source: MCP 2026-07-28 basic/patterns/mrtr, "Server Requirements".
"""

import base64
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.errors import InvalidParams

LIFETIME = 15 * 60  # seconds a person may take to answer
MAX_STATE = 32 * 2**20  # characters of a requestState we look at: what answers one message can carry
KEY, NONCE = 32, 12  # bytes, as AES-256 and GCM want them
VERSION = b"1"  # authenticated, so that a later format can't be confused with this one


class Seal:
    """`key_file` holds the key; it is made at first use, readable by its owner only. What is sealed can be opened for
    `lifetime` seconds; None is for ever."""

    def __init__(self, key_file: Path, lifetime: float | None = LIFETIME) -> None:
        self._key_file = key_file
        self._lifetime = lifetime
        self._cipher: Any = None

    def close(self, value: Any, principal: str, request: Any) -> str:
        """Seal `value` (any JSON value) for `principal` and `request` (what identifies the request, any JSON value)."""
        until = None if self._lifetime is None else time.time() + self._lifetime
        plain = msgspec.json.encode([until, value])
        nonce = os.urandom(NONCE)
        sealed = self._aead().encrypt(nonce, plain, _binding(principal, request))
        return base64.urlsafe_b64encode(VERSION + nonce + sealed).decode()

    def open(self, state: object, principal: str, request: Any) -> Any:
        """What was sealed. Raises InvalidParams for anything not sealed here, for them, for this, and lately."""
        from cryptography.exceptions import InvalidTag  # start-up: only the retry of a request needs it

        refusal = InvalidParams("'requestState' is not one given for this request, or has expired")
        if not isinstance(state, str) or len(state) > MAX_STATE:
            raise refusal
        try:
            raw = base64.b64decode(state.encode("ascii"), altchars=b"-_", validate=True)
            version, nonce, sealed = raw[:1], raw[1 : 1 + NONCE], raw[1 + NONCE :]
            if version != VERSION or len(nonce) != NONCE:
                raise refusal
            plain = self._aead().decrypt(nonce, sealed, _binding(principal, request))
        except (ValueError, InvalidTag):
            raise refusal from None
        until, value = msgspec.json.decode(plain)
        if until is not None and time.time() > until:
            raise refusal
        return value

    def _aead(self) -> Any:
        if self._cipher is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # start-up, as above

            self._cipher = AESGCM(self._key())
        return self._cipher

    def _key(self) -> bytes:
        """The key, made when there is none; two servers on one state end up with the same."""
        self._key_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._key_file.with_name(f".{self._key_file.name}.{os.getpid()}")
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "wb") as file:
                file.write(os.urandom(KEY))
            os.link(draft, self._key_file)  # fails where another was first: never half a key, never two
        except FileExistsError:
            pass
        finally:
            draft.unlink(missing_ok=True)
        key = self._key_file.read_bytes()
        if len(key) != KEY:
            raise OSError(f"{self._key_file} is damaged: remove it, and a new key is made")
        return key


def _binding(principal: str, request: Any) -> bytes:
    digest = hashlib.sha256(msgspec.json.encode([principal, request], order="deterministic"))
    return VERSION + digest.digest()
