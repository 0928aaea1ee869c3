"""Describe a node where people work: whether it answers, and how full it is."""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**60)]  # a node may say anything


class NodeLoad(msgspec.Struct, frozen=True, array_like=True):
    """How full a node is, as it measures itself. `people` have a workspace there. Free space is in bytes, of the
    fullest of its disks; None where its system does not say. `weaknesses` are what its sandbox and limits lack.
    `pages_running` and `pages_waiting` count the pages and pictures that are read there, for all servers.
    `lost_sandboxes` have ended with commands in them since its start."""

    people: Count
    foreground: Count  # commands that a call waits for
    background: Count
    disk_free: Count | None
    memory_free: Count | None
    weaknesses: list[str] = []
    pages_running: int = 0
    pages_waiting: int = 0
    lost_sandboxes: int = 0


class NodeReport(msgspec.Struct, frozen=True):
    """What a server knows of a node. `name`, `release` and `level` are "" before its first answer, `load` is None
    while it is unknown. `round_trip` is in seconds, of the newest load. `waiting` requests are under way; `failures`
    counts those that ended without an answer."""

    address: str
    name: str
    is_reachable: bool
    release: str
    level: str
    load: NodeLoad | None
    round_trip: float
    waiting: int
    failures: int
