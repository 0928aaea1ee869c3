"""Name streams by their request ids, so that event ids keep their meaning after a restart.

A client that returns with an earlier process's event id learns the fate of its request, though that process wrote
nothing down. A digest keyed by the session's id authenticates names. A client that knows the session id can forge
names, which tell it only what it sent.
"""

import base64
import hashlib
import secrets

import msgspec

from toolgate.server.protocol.interruption import RequestIds
from toolgate.server.protocol.message_ids import is_id

MAX_IDS = 128  # bytes of request ids in a name, which every event repeats
UNKNOWN = "x"  # stands for longer ids; no JSON has this base64
SEPARATOR = "."


class StreamName(msgspec.Struct, frozen=True):
    """A stream's name. `request_ids` is None for a GET's, and if too long; then `is_known` is false."""

    process: str
    request_ids: RequestIds | None
    is_known: bool


class StreamNames:
    """Makes and parses the names of one session's streams. `process` is this process's unique part, such as the name of
    its replica."""

    def __init__(self, session: str, process: str = "") -> None:
        self.process = process or secrets.token_hex(4)
        self._key = hashlib.sha256(session.encode()).digest()
        self._last = secrets.randbelow(2**32) if process else 0  # a replica may open the same session again

    def next(self, request_ids: RequestIds | None) -> str:
        """Return a new unique name."""
        self._last += 1
        begin = f"{self.process}{SEPARATOR}{self._last:x}{SEPARATOR}{_pack_ids(request_ids)}"
        return self.sign(begin)

    def sign(self, begin: str) -> str:
        """Return the name with this beginning."""
        return f"{begin}{SEPARATOR}{self._check(begin)}"

    def parse(self, name: str) -> StreamName | None:
        """Return the parts of a name, or None if this session's streams never had it."""
        begin, _, check = name.rpartition(SEPARATOR)
        parts = begin.split(SEPARATOR)
        if len(parts) != 3 or not name.isascii() or not secrets.compare_digest(self._check(begin), check):
            return None
        if parts[2] == UNKNOWN:
            return StreamName(parts[0], None, False)
        try:
            return StreamName(parts[0], _unpack_ids(parts[2]), True)
        except (ValueError, RecursionError):  # forged by the session's client
            return None

    def _check(self, begin: str) -> str:
        return hashlib.blake2s(begin.encode(), key=self._key, digest_size=5).hexdigest()


def _pack_ids(asked: RequestIds | None) -> str:
    if asked is None:
        return ""
    try:
        data = msgspec.json.encode(asked)
    except UnicodeEncodeError:  # a lone surrogate in an id
        return UNKNOWN
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode() if len(data) <= MAX_IDS else UNKNOWN


def _unpack_ids(packed: str) -> RequestIds | None:
    """Return the ids that `_pack_ids` packed. Raises ValueError, RecursionError."""
    if not packed:
        return None
    data = base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))
    asked: RequestIds = msgspec.json.decode(data, type=RequestIds)
    if not all(map(is_id, asked if isinstance(asked, list) else [asked])):
        raise ValueError("an id is not a string or an integer")
    return asked
