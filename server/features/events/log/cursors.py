"""Turn positions in a log into cursors, and back.

A cursor holds the position in clear and a code that only this server can make for this principal, so that no client
relies on how positions are numbered, or asks for one that it was not given.
"""

import base64
import hmac
import struct

from toolgate.server.features.events.log.rows import Position
from toolgate.server.protocol.errors import InvalidParams
from toolgate.server.state.keys.sealed_state import SealingKey

VERSION = b"\x01"
FORMAT = struct.Struct(">8sQ")  # the log's name, and the number
CODE = 16  # bytes of the code
MAX_CURSOR = 256  # characters; ours have 44
UNKNOWN = "'cursor' was not issued by this server: start with null"


class CursorCoder:
    """Makes and reads the cursors of all principals."""

    def __init__(self, key: SealingKey) -> None:
        self._key = key
        self._secret: bytes | None = None

    def format_cursor(self, principal: str, position: Position) -> str:
        """Return the cursor for a position in the principal's log."""
        plain = VERSION + FORMAT.pack(bytes.fromhex(position.log), position.number)
        return base64.urlsafe_b64encode(plain + self._code(principal, plain)).decode().rstrip("=")

    def parse_cursor(self, principal: str, cursor: str) -> Position:
        """Return the position. Raises InvalidParams unless the cursor was made for this principal."""
        if len(cursor) > MAX_CURSOR or not cursor.isascii():
            raise InvalidParams(UNKNOWN)
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except ValueError:
            raise InvalidParams(UNKNOWN) from None
        plain, code = raw[:-CODE], raw[-CODE:]
        if len(plain) != 1 + FORMAT.size or not hmac.compare_digest(code, self._code(principal, plain)):
            raise InvalidParams(UNKNOWN)
        log, number = FORMAT.unpack(plain[1:])
        return Position(log.hex(), number)

    def _code(self, principal: str, plain: bytes) -> bytes:
        if self._secret is None:
            self._key.mark()  # creates it
            self._secret, _ = self._key.read()
        return hmac.digest(self._secret, f"{principal}\n".encode() + plain, "sha256")[:CODE]
