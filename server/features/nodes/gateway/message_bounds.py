"""Bound what a node may send a gateway: the size of a message by its kind, and how many come unasked.

A node may be compromised. Only the answer to a request under way may be large, as large as that request allows.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from toolgate.server.base.rpc import frames
from toolgate.server.features.nodes.messages import METHODS

SMALL = 64 * 2**10  # bytes of a message that answers nothing: an end of a task has 7 KiB at most
PLAIN_ANSWER = 8 * 2**20  # bytes of an answer without output, files or pages, which take 10 ms: a list of 1,000 tasks
PAGE = 24 * 2**20  # bytes of a page or a picture: messages.MAX_DATA in base64, and its envelope
ENTRY = 2_000  # bytes of an entry in a folder: 255 of its name, escaped
ESCAPED = 6  # bytes of one character as JSON writes it: more than one in base64 takes
UNASKED, UNASKED_BURST = 200, 2_000  # messages that answer nothing: so many a second, and at once
ENDS, ENDS_BURST = 1_000, 10_000  # ends of tasks: a node sends those of a time without gateways at once
TURN = 16  # messages that are read before other tasks run
ANSWER = re.compile(rb'\s*\[\s*"answer"\s*,\s*(\d{1,18})\s*[,\]]')


class FloodError(Exception):
    """The node sends too many messages that nothing asked for; the text completes "it sent …"."""


def find_largest_answer(name: str, arguments: Mapping[str, Any]) -> int:
    """Return how many bytes the answer to a request may have."""
    owner, _, _ = name.partition(".")
    limit = arguments.get("limit")
    if METHODS.returns_data(name) and isinstance(limit, int):
        each = ENTRY if name == "workspace.entries" else ESCAPED
        return min(frames.MAX_FRAME, PLAIN_ANSWER + max(0, limit) * each)
    return PAGE if owner == "pages" else PLAIN_ANSWER


def find_answered_number(head: bytes) -> int | None:
    """Return the number of the request that a message answers, by its first bytes; None for another message."""
    found = ANSWER.match(head)
    return None if found is None else int(found[1])


class MessagePace:
    """Counts messages that nothing asked for, over all connections to one node."""

    def __init__(self) -> None:
        self._left = {"messages": float(UNASKED_BURST), "ends of tasks": float(ENDS_BURST)}
        self._moment: float | None = None

    def charge(self, *, is_end: bool) -> None:
        """Count a message. Raises FloodError for one too many."""
        now = asyncio.get_running_loop().time()
        passed = 0.0 if self._moment is None else now - self._moment
        self._moment = now
        for kind, rate, burst in (("messages", UNASKED, UNASKED_BURST), ("ends of tasks", ENDS, ENDS_BURST)):
            self._left[kind] = min(burst, self._left[kind] + passed * rate)
        kind, rate = ("ends of tasks", ENDS) if is_end else ("messages", UNASKED)
        if self._left[kind] < 1:
            raise FloodError(f"over {rate} {kind} a second that nothing asked for")
        self._left[kind] -= 1


class ReadingTurns:
    """Lets other tasks run between the messages of one connection, which arrive many at once."""

    def __init__(self) -> None:
        self._count = 0

    async def take(self) -> None:
        """Return at once, but every TURN times after other tasks have run."""
        self._count += 1
        if self._count >= TURN:
            self._count = 0
            await asyncio.sleep(0)
