"""Say what a feature keeps in the state. Commands ask it of each feature, whether its options are given or not."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from toolgate.server.app.state_damage import StateDamage
from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from toolgate.server.state.backup.state_transfer import StateSnapshot


class Elsewhere(msgspec.Struct, frozen=True):
    """Where a workspace is that this machine does not have.

    place: as a list of workspaces shows it
    hint: a line below such a list
    remedy: what to do in place of a command on this workspace
    """

    place: str
    hint: str
    remedy: str


class StatePart:
    """What one feature keeps in the state. Each method may be left as it is."""

    def find_damage(self, state: Path) -> Iterable[StateDamage]:
        """Return the damaged files of the feature. It opens no file that is not one, and waits for nothing."""
        return ()

    def explain_no_people(self, state: Path) -> str:
        """Return why a state folder knows no people, or ""."""
        return ""

    def list_snapshots(self, state: Path) -> "Sequence[StateSnapshot]":
        """Return the files for a backup that change together while a server runs."""
        return ()

    async def find_workspaces(self, store: Store) -> dict[str, Elsewhere]:
        """Return the workspaces that are elsewhere, by principal. Raises StateError."""
        return {}

    async def end_person(self, store: Store, principal: str) -> None:
        """Remove what the feature keeps of a person whose account is removed. Raises StateError."""

    async def list_backup_notes(self, store: Store) -> list[str]:
        """Return lines on the workspaces that a backup of this machine does not have. Raises StateError."""
        return []
