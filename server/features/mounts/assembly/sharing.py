"""Tell the other servers on a state what a person has changed here, and take what they tell."""

from collections.abc import Callable

import msgspec

from toolgate.server.base.bus.bus import Bus


class PersonChange(msgspec.Struct, frozen=True):
    """A person has changed something of theirs, at one mount or with "" at any. `is_over`: they have ended it."""

    principal: str
    mount: str = ""
    is_over: bool = False


class ToldChange(msgspec.Struct, frozen=True):
    """A change as the other servers are told of it, and by which."""

    replica: str
    change: PersonChange


class ChangeSharing:
    """The changes of one kind at one server among several. `take(change)` gets those of others; `note_loss()` is called
    where some may have been missed: then the state says more."""

    def __init__(
        self, bus: Bus, topic: str, take: Callable[[PersonChange], None], note_loss: Callable[[], None]
    ) -> None:
        self._bus = bus
        self._topic = topic
        self._take = take
        bus.topics.subscribe(topic, self._receive, note_loss)

    def tell(self, change: PersonChange) -> None:
        """Tell the others of a change that the state has."""
        self._bus.topics.publish(self._topic, msgspec.json.encode(ToldChange(self._bus.replica.name, change)))

    def _receive(self, data: bytes) -> None:
        told = msgspec.json.decode(data, type=ToldChange)
        if told.replica != self._bus.replica.name:
            self._take(told.change)
