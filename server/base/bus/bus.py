"""Define the bus: keys with an end, streams, topics, mail to one replica, and the lease by which a replica lives.

A value, an entry or a piece of mail has at most `MAX_DATA` bytes, a message to a topic `MAX_MESSAGE`, and a key or the
name of a topic, a stream or a kind of mail `MAX_NAME`; more is a ValueError. Times are in seconds.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

MAX_DATA = 17 * 2**20  # bytes: the largest message of a client (16 MiB) and its envelope
MAX_MESSAGE = 2**20  # bytes: Redis disconnects a reader for which 32 MB wait
MAX_NAME = 512  # bytes of UTF-8: two digests, an id and words
MAX_NUMBER = 2**53  # what scripts of Redis count exactly
MAX_SECONDS = 10 * 366 * 86_400.0  # ten years: more is a mistake

MailHandler = Callable[[bytes], Awaitable[bytes]]


class BusUnreachableError(Exception):
    """Redis does not answer, or refuses a command. Whether the command was carried out is unknown.

    The text is a sentence that names Redis. It contains no password.
    """


class UndeliveredError(Exception):
    """No process reads the mail of this replica: the message was not delivered. `Replica.is_alive` tells whether its
    owner has ended."""


class NoReplyError(Exception):
    """No reply came: the message may have been delivered. The text says why."""


class KeyLimit(NamedTuple):
    """At most `most` counts of `key` within `seconds` of the first."""

    key: str
    most: int
    seconds: float


class Reservation(NamedTuple):
    """What was counted of a limit, and the seconds until it no longer counts.

    Where nothing was counted: 0, and the seconds until the limit may be counted, 0 if it is not the one reached.
    """

    granted: int
    seconds: float


class StreamEntry(NamedTuple):
    """An entry as its producer numbered it."""

    number: int
    data: bytes


class BusHealth(msgspec.Struct, frozen=True):
    """The state of the connections to Redis, for metrics and readiness. In memory all figures are 0."""

    is_reachable: bool = True
    seconds: float = 0.0  # since when it is reachable, or is not
    latency: float = 0.0  # seconds of the last command
    lease_age: float = 0.0  # seconds since the lease was last renewed
    lag: float = 0.0  # seconds that the oldest unwritten entry or message has waited
    unwritten: int = 0  # bytes of entries and messages that wait for Redis
    dropped: int = 0  # entries and messages for which there was no room, since the start


class Keys(Protocol):
    """Values that end by themselves. Commands that begin in the same turn of the event loop share one round trip.

    All methods but `close` raise BusUnreachableError.
    """

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None if there is none or it has ended."""
        ...

    async def get_many(self, keys: Sequence[str], touch: Mapping[str, float] | None = None) -> list[bytes | None]:
        """Return the values of all keys in one round trip. Those in `touch` (key → seconds) live on so long."""
        ...

    async def set(self, key: str, value: bytes, seconds: float) -> None:
        """Set the value, which ends after so many seconds."""
        ...

    async def set_if_absent(self, key: str, value: bytes, seconds: float) -> bool:
        """Set the value if there is none. Return whether it was set."""
        ...

    async def replace(self, key: str, old: bytes, new: bytes, seconds: float) -> bool:
        """Set `new` if the value is `old`. Return whether it was set."""
        ...

    async def take(self, key: str) -> bytes | None:
        """Return the value and delete it. Of several callers at once, one gets it."""
        ...

    async def delete(self, *keys: str) -> int:
        """Delete the values. Return how many there were."""
        ...

    async def touch(self, key: str, seconds: float) -> bool:
        """Let the value end after so many seconds from now. Return whether there is one."""
        ...

    async def increment(self, key: str, seconds: float, by: int = 1) -> int:
        """Add to a decimal number, and return it. It ends `seconds` after it began."""
        ...

    async def count(self, limits: Sequence[KeyLimit]) -> float:
        """Count 1 for all limits, or for none if one is reached. Return 0, or the seconds until it may be counted."""
        ...

    async def reserve(self, limits: Sequence[KeyLimit], counts: Sequence[int]) -> list[Reservation]:
        """Count up to so many of each limit, as far as there is room, or nothing if one is reached."""
        ...


class Counters(Protocol):
    """The part of `Keys` that limits are counted by."""

    async def get(self, key: str) -> bytes | None: ...

    async def set(self, key: str, value: bytes, seconds: float) -> None: ...

    async def delete(self, *keys: str) -> int: ...

    async def touch(self, key: str, seconds: float) -> bool: ...

    async def increment(self, key: str, seconds: float, by: int = 1) -> int: ...

    async def count(self, limits: Sequence[KeyLimit]) -> float: ...


class Streams(Protocol):
    """Entries of several streams under one key, such as a session's. The producer of a stream numbers its entries.

    A key holds a limited number of entries and bytes: the oldest go first, the newest entry always stays. It ends some
    time after the last append. A gap in the numbers shows lost entries.
    """

    def append(self, key: str, stream: str, number: int, data: bytes) -> bool:
        """Add an entry, written soon. Return False if it was dropped: too much waits for Redis, or it is too large."""
        ...

    async def read(self, key: str, stream: str, after: int = 0) -> list[StreamEntry]:
        """Return the entries of one stream after number `after`, in order. Raises BusUnreachableError."""
        ...

    async def delete(self, key: str) -> None:
        """Delete all streams of the key, unwritten entries too. Raises BusUnreachableError."""
        ...

    async def flush(self) -> None:
        """Wait until all that was appended and published before is written. Raises BusUnreachableError."""
        ...


class Subscription(Protocol):
    """A subscriber's place at a topic."""

    async def confirm(self) -> None:
        """Wait until messages of other replicas arrive. Raises BusUnreachableError; the subscription stands anyway."""
        ...

    def close(self) -> None:
        """End the subscription: nothing is delivered any more."""
        ...


class Topics(Protocol):
    """Messages to all subscribers of a topic, at all replicas. After a reconnect a message may arrive twice."""

    def publish(self, topic: str, data: bytes) -> None:
        """Deliver a message to the subscribers here at once, and to those of other replicas soon."""
        ...

    def subscribe(self, topic: str, receive: Callable[[bytes], None], missed: Callable[[], None]) -> Subscription:
        """Call `receive` with each message, and `missed` when messages of other replicas may have been lost."""
        ...


class Mail(Protocol):
    """Messages to one replica, each of one kind, each answered by its handler there."""

    def receive(self, kind: str, handler: MailHandler) -> None:
        """Answer this replica's mail of one kind with `handler`. A second handler is a ValueError."""
        ...

    async def send(self, replica: str, kind: str, data: bytes, seconds: float = 5.0) -> bytes:
        """Deliver a message within `seconds`, and return the handler's reply.

        Raises UndeliveredError, NoReplyError, BusUnreachableError."""
        ...


class Replica(Protocol):
    """This process among the replicas. `name` is unique, and begins the ids it makes (`replica_ids`)."""

    @property
    def name(self) -> str: ...

    async def is_alive(self, name: str) -> bool:
        """Return whether that replica lives. One that was found dead never lives again. Raises BusUnreachableError."""
        ...

    async def find_ended(self, name: str) -> bool:
        """Find a replica dead before its lease ends, if no process reads its mail. Return whether it is dead.

        Call it only for one whose process seems to have ended. Raises BusUnreachableError.
        """
        ...

    async def list_names(self) -> list[str]:
        """Return the names of the replicas that hold a lease, sorted. Raises BusUnreachableError."""
        ...

    def list_earlier(self) -> frozenset[str]:
        """Return the names of living replicas of an earlier release on the same state, whose keys are others."""
        ...

    def holds_lease(self) -> bool:
        """Return whether no other replica can have found this one dead, as far as is known here."""
        ...


class Bus(Protocol):
    """The parts of a bus. `start` waits for the first try to connect. `close` writes what waits, if Redis can be
    reached, and ends the lease."""

    @property
    def keys(self) -> Keys: ...

    @property
    def streams(self) -> Streams: ...

    @property
    def topics(self) -> Topics: ...

    @property
    def mail(self) -> Mail: ...

    @property
    def replica(self) -> Replica: ...

    def health(self) -> BusHealth: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...


def check_name(name: str) -> None:
    """Refuse a name that is empty, too long or no UTF-8. Raises ValueError."""
    size = len(name) if name.isascii() else len(name.encode())
    if not 0 < size <= MAX_NAME:
        raise ValueError(f"a name on the bus has 1 to {MAX_NAME} bytes, not {size:,}")


def check_data(data: bytes, most: int = MAX_DATA) -> None:
    """Refuse data that is too large. Raises ValueError."""
    if len(data) > most:
        raise ValueError(f"{len(data):,} bytes are more than the bus carries: {most:,}")


def check_entry(stream: str, number: int, data: bytes) -> None:
    """Refuse an entry without a name, a number or data. Raises ValueError."""
    check_name(stream)
    if not 0 < number < MAX_NUMBER or not data:
        raise ValueError("an entry of a stream has a number from 1 and data")


def check_seconds(seconds: float) -> None:
    """Refuse a time that is over already, or never. Raises ValueError."""
    if not 0 < seconds < MAX_SECONDS:
        raise ValueError(f"a value on the bus can't end in {seconds} seconds")
