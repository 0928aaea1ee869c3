"""Set the limits and times of a bus. Tests shorten them."""

import msgspec

PREFIX = "toolgate:"  # of the keys and channels of all deployments


class StreamLimits(msgspec.Struct, frozen=True):
    """What the streams of one key hold together."""

    entries: int = 1_024  # as many as one stream of server-sent events holds for its reader
    size: int = 4 * 2**20  # bytes, besides the newest entry
    seconds: float = 1_800.0  # after the last append: as long as a session may be idle


class LeaseTimes(msgspec.Struct, frozen=True):
    """When a replica counts as dead. A replica renews its lease three times before it ends."""

    lease: float = 3.0
    renewal: float = 1.0
    pause: float = 2.0  # without a renewal by any replica, Redis itself was away: no replica is judged for `mercy`
    mercy: float = 5.0  # a reconnect takes at most `command` twice and the longest backoff
    memory: float = 86_400.0  # how long a dead replica is remembered, so that it learns it when it wakes up


class BusSettings(msgspec.Struct, frozen=True):
    """The times and limits of one bus. `prefix` begins all its keys and channels in Redis. `meets_earlier`: replicas of
    an earlier release, whose prefix is PREFIX, may use the same database."""

    prefix: str = PREFIX
    meets_earlier: bool = False
    command: float = 1.0  # seconds that a command may take, connecting included
    max_unwritten: int = 32 * 2**20  # bytes of entries and messages that wait for Redis
    streams: StreamLimits = StreamLimits()
    lease: LeaseTimes = LeaseTimes()


def name_prefix(deployment: str) -> str:
    """Return the prefix of a deployment's keys and channels: several may use one Redis."""
    return f"{PREFIX}{deployment}:"
