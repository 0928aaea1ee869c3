"""Name streams so that event ids keep their meaning after a restart: a stream's name has the ids of its requests.

A client that comes back with an event id of an earlier process learns what became of its request, though nothing was
written down while that ran. A digest keyed by the session's id checks the names. A client that knows that id can make
names up; they tell it no more than it sent.
"""

import base64
import hashlib
import secrets
from dataclasses import dataclass

import msgspec

from toolgate.server.protocol.messages import Id

MAX_IDS = 128  # bytes of request ids in a name: the names go with every event
UNKNOWN = "x"  # stands for more than that: it is the base64 of no JSON
SEPARATOR = "."

RequestIds = Id | list[Id]  # a request, or the requests of a batch


@dataclass(frozen=True, slots=True)
class StreamName:
    """What is in a stream's name. `asked` is None for the stream of a GET, and where there is too much to tell; then
    `is_known` is false."""

    process: str
    request_ids: RequestIds | None
    is_known: bool


class StreamNames:
    """The names of one session's streams. `life` is this process's part, or any other word that is used once."""

    def __init__(self, session: str, process: str | None = None) -> None:
        self.process = process or secrets.token_hex(4)
        self._key = hashlib.sha256(session.encode()).digest()
        self._last = 0

    def next(self, request_ids: RequestIds | None) -> str:
        """A name that was never given before."""
        self._last += 1
        begin = f"{self.process}{SEPARATOR}{self._last:x}{SEPARATOR}{_pack_ids(request_ids)}"
        return self.sign(begin)

    def sign(self, begin: str) -> str:
        """The name that begins so."""
        return f"{begin}{SEPARATOR}{self._check(begin)}"

    def parse(self, name: str) -> StreamName | None:
        """What is in a name; None for one that this session's streams never had."""
        begin, _, check = name.rpartition(SEPARATOR)
        parts = begin.split(SEPARATOR)
        if len(parts) != 3 or not name.isascii() or not secrets.compare_digest(self._check(begin), check):
            return None
        if parts[2] == UNKNOWN:
            return StreamName(parts[0], None, False)
        try:
            return StreamName(parts[0], _unpack_ids(parts[2]), True)
        except (ValueError, RecursionError):  # the session's client has made it up
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
    """What `_packed` was given. Raises ValueError, RecursionError."""
    if not packed:
        return None
    data = base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))
    asked: RequestIds = msgspec.json.decode(data, type=RequestIds)
    return asked
