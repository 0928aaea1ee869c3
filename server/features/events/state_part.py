"""Say what events keep in a state: notes of events that a server could not store before it ended."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from toolgate.server.app.state_damage import StateDamage, check_file, list_folder
from toolgate.server.app.state_part import StatePart
from toolgate.server.features.events.log.gap_notes import FOLDER, read_notes

GONE_GAP = "the next start removes it: events are lost, and it is not known whose"


class EventsState(StatePart):
    """The notes of gaps."""

    def find_damage(self, state: Path) -> Iterator[StateDamage]:
        for path in list_folder(state / FOLDER):
            yield from check_file(path, partial(read_notes, path), GONE_GAP)
