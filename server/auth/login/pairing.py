"""Make the one-time code for creating the first account. It is in the log, which only the operator reads."""

import base64
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable

from toolgate.server.auth.login.throttle import Backoff, Throttle, block_backoffs

LIFETIME = 600.0  # seconds
BYTES = 16  # 128 bits: 26 letters and digits
ADDRESS = Backoff(free=5, longest=60)
ALL = Backoff(free=100, longest=2)  # short: guessing must not keep the operator out, and 128 bits are not guessed

log = logging.getLogger("toolgate.auth")


class PairingCode:
    """`where` is the page that takes the code. The code is only ever in the log and, hashed, here."""

    def __init__(self, where: str, throttle: Throttle | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._where = where
        self._throttle = throttle or Throttle(now)
        self._now = now
        self._hash = b""
        self._until = 0.0

    def offer(self) -> None:
        """See to it that there is a code which still holds, in the log."""
        if self._now() < self._until:
            return
        code = base64.b32encode(secrets.token_bytes(BYTES)).decode().rstrip("=")
        self._hash, self._until = _hash_code(code), self._now() + LIFETIME
        grouped = "-".join(code[at : at + 4] for at in range(0, len(code), 4))
        log.warning(
            "there is no account yet: open %s and make the first with the pairing code %s (within %d minutes)",
            self._where,
            grouped,
            LIFETIME // 60,
        )

    def verify(self, code: str, address: str) -> bool:
        """Whether `code` is the one in the log; `address` is "" where it is unknown. Raises ThrottledError."""
        paces = [*block_backoffs(address, ADDRESS), ("all", ALL)]
        self._throttle.take(paces)
        right = hmac.compare_digest(_hash_code(code), self._hash) and self._now() < self._until
        if right:
            self._throttle.refund(1, *(key for key, _ in paces))
        return right

    def expire(self) -> None:
        """There is an account: the code is dead."""
        self._hash, self._until = b"", 0.0


def _hash_code(code: str) -> bytes:
    """Of the code as a person may type it: in any case, with any or no separators."""
    return hashlib.sha256("".join(filter(str.isalnum, code)).upper().encode()).digest()
