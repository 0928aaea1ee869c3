"""Describe what HTTP serves now, as metrics show it."""

from collections.abc import Callable, Mapping

import msgspec

from toolgate.server.base.limits.budget import Budget


class HttpGauges(msgspec.Struct, frozen=True):
    """What HTTP serves, by transport where there are several. Counters count since the start."""

    sessions: Mapping[str, Callable[[], int]]
    calls: Mapping[str, Callable[[], int]]  # JSON-RPC requests being answered
    streams: Mapping[str, Callable[[], int]]  # that have a reader
    waiting: Mapping[str, Callable[[], int]]  # events not sent yet on these
    replay_bytes: Mapping[str, Callable[[], int]]  # of events kept for readers, also for those that come back
    connections: Callable[[], int]
    budgets: Mapping[str, Budget]
    running: Callable[[], int]  # HTTP requests, streams included
    responses: Mapping[int, int]  # counter by status
    refused_tokens: Mapping[str, int]  # counter by reason
    issued_tokens: Callable[[], int] = lambda: 0  # counter
    # by (way, result)
    sign_ins: Mapping[tuple[str, str], int] = msgspec.field(default_factory=dict[tuple[str, str], int])
