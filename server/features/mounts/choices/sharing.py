"""Tell the other servers on a state that a person has switched something off or on, and take what they tell."""

from toolgate.server.base.bus.bus import Bus
from toolgate.server.features.mounts.choices.book import ChoiceBook

TOPIC = "mount-choices"


class ChoiceSharing:
    """The choices of one server among several. What is missed is read at the next look at the state."""

    def __init__(self, bus: Bus, book: ChoiceBook) -> None:
        self._bus = bus
        self._book = book
        bus.topics.subscribe(TOPIC, self._receive, book.load_soon)

    def tell(self) -> None:
        """Have the others read the state."""
        self._bus.topics.publish(TOPIC, self._bus.replica.name.encode())

    def _receive(self, data: bytes) -> None:
        if data != self._bus.replica.name.encode():
            self._book.load_soon()
