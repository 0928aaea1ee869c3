"""Keep what a gateway tells a node about earlier requests until the node has read it."""

from collections import deque
from collections.abc import Callable

from toolgate.server.features.nodes.messages import Acknowledgement, Cancel, Ping

MAX_KEPT = 10_000  # messages: more than a gateway sends between two confirmations


class ControlMessages:
    """Messages to a node that must arrive, also if the connection breaks after they were sent. The node reads in order:
    its Pong confirms what was sent before the Ping. To read one twice changes nothing.

    `write(message)` does nothing without a connection, and returns False.
    """

    def __init__(self, write: Callable[[Acknowledgement | Cancel | Ping], bool]) -> None:
        self._write = write
        self._kept: deque[tuple[int, Acknowledgement | Cancel]] = deque(maxlen=MAX_KEPT)
        self._number = 0  # of the newest message
        self._pings: deque[int] = deque()  # for each Ping without its Pong, the newest message before it

    def send(self, message: Acknowledgement | Cancel) -> None:
        """Send a message now, or over the next connection."""
        self._number += 1
        self._kept.append((self._number, message))
        self._write(message)

    def send_again(self) -> None:
        """Send all over a new connection."""
        self._pings.clear()
        for _, message in self._kept:
            self._write(message)

    def ping(self) -> None:
        """Ask the node for a sign, which confirms what was sent."""
        if self._write(Ping()):
            self._pings.append(self._number)

    def ping_if_unconfirmed(self) -> None:
        """Ask for a confirmation unless there is nothing to confirm, or one is on its way."""
        if self._kept and not self._pings:
            self.ping()

    def take_pong(self) -> bool:
        """The node has read what was sent before its oldest Ping. Return whether there was one."""
        is_asked = bool(self._pings)
        read = self._pings.popleft() if self._pings else 0
        while self._kept and self._kept[0][0] <= read:
            self._kept.popleft()
        return is_asked

    def clear(self) -> None:
        """Forget all: the node has restarted."""
        self._kept.clear()
        self._pings.clear()
