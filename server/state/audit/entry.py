"""Format and check one line of the audit log, chained to the line before.

A line is a JSON object. Its last member is `hash`: HMAC-SHA-256, in hex, over the bytes of the object without it.
`prev` is the hash of the line before; `seq` counts from 1.
"""

import hmac
import json
from collections.abc import Sequence
from typing import Any

import msgspec

EntryData = dict[str, Any]

FIRST_PREV = "0" * 64  # `prev` of the first line
HASH_LENGTH = 64  # characters
HEAD_LENGTH = 16 + 1 + HASH_LENGTH + 1 + HASH_LENGTH + 1  # bytes of every head, so one write replaces another

_JOIN = b',"hash":"'
_OF_HEAD = b"head "  # prefix of what the head's HMAC covers: a line begins with "{" instead
_TAIL = len(_JOIN) + HASH_LENGTH + len('"}')


class ChainKey:
    """Computes HMAC-SHA-256 under one key."""

    __slots__ = ("_keyed",)

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")

    def sign(self, body: bytes) -> str:
        """Return the HMAC of `body`, in hex."""
        code = self._keyed.copy()
        code.update(body)
        return code.hexdigest()


class AuditEntry(msgspec.Struct):
    """A call. The log sets `time` when the entry is added, `seq` and `prev` when it is written."""

    seq: int
    time: str  # ISO 8601, UTC, of its end
    principal: str
    client: str
    session: str  # a digest: the key itself opens the session
    tool: str
    task: str | None  # the id of the task that the call became
    digest: str  # SHA-256 of the arguments as JSON with sorted keys
    arguments: Any  # redacted; None where only the digest is kept
    decision: str
    sandbox: str | None
    outcome: str
    exit: int | None
    duration_ms: float
    bytes: int  # of the result's text and data
    mount: str | msgspec.UnsetType = msgspec.UNSET  # which the tool is of
    original: str | msgspec.UnsetType = msgspec.UNSET  # the tool's name there
    prev: str = FIRST_PREV


class AuditNote(msgspec.Struct):
    """An event of the log itself.

    `begins`: a new file; `kept` are the names of those before it. `torn`: the line before broke off when its writer
    died; `bytes` and `digest` (SHA-256) describe what is left of it. `gap`: `calls` could not be recorded. `headless`:
    the head was missing or damaged.

    In a database, `begins` is a chain's first line, which names the `chain` and the `host` of its process. `vouches`:
    the seq and hash of the newest lines of other `chains`.
    """

    seq: int
    time: str
    event: str
    about: dict[str, Any]
    prev: str = FIRST_PREV


class AuditLink(msgspec.Struct, frozen=True):
    """The members of a line that the chain is made of."""

    seq: int
    prev: str
    time: str
    hash: str = FIRST_PREV
    event: str | None = None
    about: dict[str, Any] = {}


class DamagedLineError(Exception):
    """A line or head that was not written under this key."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AuditLink).decode


def format_line(entry: AuditEntry | AuditNote, key: ChainKey) -> tuple[bytes, str]:
    """Return the line, with its line break, and its hash."""
    body = _encode(entry)
    hash = key.sign(body)
    return b'%b%b%b"}\n' % (body[:-1], _JOIN, hash.encode()), hash


def parse_line(line: bytes, key: ChainKey) -> AuditLink:
    """Check a line without its line break, and return its link. Raises DamagedLineError."""
    body, hash = line[:-_TAIL] + b"}", line[-HASH_LENGTH - 2 : -2]
    if not line.endswith(b'"}') or line[-_TAIL : -_TAIL + len(_JOIN)] != _JOIN:
        raise DamagedLineError
    if not hmac.compare_digest(key.sign(body).encode(), hash):
        raise DamagedLineError
    try:
        return _decode(line)
    except (msgspec.DecodeError, ValueError):  # the latter: it is not UTF-8
        raise DamagedLineError from None


def parse_entry(line: bytes, key: ChainKey) -> EntryData | None:
    """Return an entry; None for a note and for a damaged line."""
    try:
        link = parse_line(line, key)
    except DamagedLineError:
        return None
    return json.loads(line) if link.event is None else None


def format_statement(kind: str, chain: str, words: Sequence[object], key: ChainKey) -> str:
    """Return words about a chain in a database, with their HMAC."""
    body = " ".join(map(str, words))
    return f"{body} {key.sign(f'{kind} {chain} {body}'.encode())}"


def parse_statement(kind: str, chain: str, text: str, count: int, key: ChainKey) -> list[str]:
    """Return the `count` words of a statement. Raises DamagedLineError."""
    body, _, seal = text.rpartition(" ")
    words = body.split(" ")
    expected = key.sign(f"{kind} {chain} {body}".encode("utf-8", "surrogatepass"))
    if len(words) != count or not hmac.compare_digest(expected.encode(), seal.encode("utf-8", "surrogatepass")):
        raise DamagedLineError
    return words


def format_head(seq: int, hash: str, key: ChainKey) -> bytes:
    """Return the head, which names the newest line, with its HMAC."""
    body = f"{seq:016d} {hash}"
    return f"{body} {key.sign(_OF_HEAD + body.encode())}\n".encode()


def parse_head(data: bytes, key: ChainKey) -> tuple[int, str]:
    """Return the seq and hash of the newest line. Raises DamagedLineError."""
    words = data.decode("ascii", "replace").split(" ")
    if len(data) != HEAD_LENGTH or len(words) != 3 or not words[0].isdigit():
        raise DamagedLineError
    seal = key.sign(_OF_HEAD + f"{words[0]} {words[1]}".encode())
    if not hmac.compare_digest(seal.encode(), words[2].strip().encode()):
        raise DamagedLineError
    return int(words[0]), words[1]
