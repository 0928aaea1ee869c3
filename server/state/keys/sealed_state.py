"""Seal what a client carries between two tries of a request (`requestState`).

AES-256-GCM: the client can neither read nor change it. It is bound to its principal and request, and expires after
`LIFETIME`. Source: MCP 2026-07-28 basic/patterns/mrtr, "Server Requirements".
"""

import base64
import hashlib
import os
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from toolgate.server.state.tables import Connection

LIFETIME = 15 * 60  # seconds a person may take to answer
MAX_STATE = 32 * 2**20  # characters of a requestState: what the answers of one message can carry
UNKNOWN = "it was not sealed here for this, or has expired"
NONCE = 12  # bytes, as GCM wants them
VERSION = b"1"  # authenticated, so that a later format can't be confused with this one


class SealError(Exception):
    """A sealed value can't be opened: it is another's, changed, or has expired."""


class SealingKey(Protocol):
    """A secret key that any process may rotate."""

    def mark(self) -> Hashable:
        """Return what changes when the key is rotated."""
        ...

    def read(self) -> tuple[bytes, list[tuple[bytes, float]]]:
        """Return the key, and others that are valid for reading, each until a time."""
        ...

    def refresh(self, connection: "Connection") -> None:
        """See rotations up to now, inside a transaction."""
        ...


class FixedKey:
    """A `SealingKey` that no process rotates."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def mark(self) -> Hashable:
        return self._key

    def read(self) -> tuple[bytes, list[tuple[bytes, float]]]:
        return self._key, []

    def refresh(self, connection: "Connection") -> None:
        pass


class Sealer:
    """Seals values for a principal and a request.

    lifetime: seconds until a sealed value expires; None is for ever
    now: seconds since the epoch
    """

    def __init__(
        self, key: SealingKey, lifetime: float | None = LIFETIME, now: Callable[[], float] = time.time
    ) -> None:
        self._key = key
        self._lifetime = lifetime
        self._now = now
        self._mark: Hashable = None
        self._cipher: Any = None
        self._before: list[tuple[Any, float]] = []  # ciphers, and until when

    def seal(self, value: Any, principal: str, request: Any) -> str:
        """Seal `value` (any JSON value) for `principal` and `request` (what identifies the request, any JSON value)."""
        until = None if self._lifetime is None else self._now() + self._lifetime
        plain = msgspec.json.encode([until, value])
        nonce = os.urandom(NONCE)
        sealed = self._current_cipher().encrypt(nonce, plain, _binding(principal, request))
        return base64.urlsafe_b64encode(VERSION + nonce + sealed).decode()

    def unseal(self, state: object, principal: str, request: Any) -> Any:
        """Return the sealed value. Raises SealError unless it was sealed here for both, and lately."""
        from cryptography.exceptions import InvalidTag  # start-up: only the retry of a request needs it

        if not isinstance(state, str) or len(state) > MAX_STATE:
            raise SealError(UNKNOWN)
        try:
            raw = base64.b64decode(state.encode("ascii"), altchars=b"-_", validate=True)
            version, nonce, sealed = raw[:1], raw[1 : 1 + NONCE], raw[1 + NONCE :]
            is_ours = base64.urlsafe_b64encode(raw).decode() == state  # base64 is ambiguous: unused bits, "+"
            if version != VERSION or len(nonce) != NONCE or not is_ours:
                raise SealError(UNKNOWN)
        except ValueError:
            raise SealError(UNKNOWN) from None
        for cipher in self._ciphers():
            with suppress(InvalidTag):
                plain = cipher.decrypt(nonce, sealed, _binding(principal, request))
                break
        else:
            raise SealError(UNKNOWN)
        until, value = msgspec.json.decode(plain)
        if until is not None and self._now() > until:
            raise SealError(UNKNOWN)
        return value

    def refresh(self, connection: "Connection") -> None:
        """See rotations of the key up to now, inside a transaction."""
        self._key.refresh(connection)

    def _current_cipher(self) -> Any:
        """Return the cipher of the present key."""
        mark = self._key.mark()
        if mark != self._mark:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # start-up, as above

            key, others = self._key.read()
            self._cipher = AESGCM(key)
            self._before = [(AESGCM(other), until) for other, until in others]
            self._mark = mark
        return self._cipher

    def _ciphers(self) -> Iterator[Any]:
        """Yield the ciphers of the present key and of valid previous ones."""
        yield self._current_cipher()
        now = self._now()
        yield from (cipher for cipher, until in self._before if now < until)


def _binding(principal: str, request: Any) -> bytes:
    digest = hashlib.sha256(msgspec.json.encode([principal, request], order="deterministic"))
    return VERSION + digest.digest()
