"""How fast the output of one principal's commands is read, of all together. Knows bytes and seconds; reads nothing.

A command can write far faster than anybody reads, and the server serves others too: what is read in a burst is free,
what comes after it is read at a steady rate, and slower what is kept no more. The pipe fills, and the command waits.
"""

BURST = 16 * 2**20  # bytes: nearly all that commands ever write, at full speed
STEADY = 64 * 2**20  # bytes a second, which take a server a tenth of its time
READ = 16 * 2**10  # bytes that a read counts for at least: what it costs beside them; who waits reads more at once
DULL = 2  # bytes that one counts for which is not kept: 32 MiB a second of a log that nobody will read


class OutputRate:
    """Times are the loop's, in seconds."""

    def __init__(self) -> None:
        self._owed = 0.0  # bytes
        self._since = 0.0

    def took(self, size: int, now: float, *, kept: bool) -> float:
        """`size` bytes were read: how many seconds to read nothing more from where they came."""
        self._owed = max(0.0, self._owed - (now - self._since) * STEADY)
        self._since = now
        cost = max(size, READ)
        self._owed += cost if kept else cost * DULL
        return max(0.0, self._owed - BURST) / STEADY
