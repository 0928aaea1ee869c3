"""Say what a feature keeps in the state. Commands ask it of each feature, whether its options are given or not."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from toolgate.server.state.store import Store
from toolgate.tools.api.text.json_text import JsonError

HEALS = "the server makes it again"


class StateDamage(msgspec.Struct, frozen=True):
    """A damaged file: what is wrong, and what to do. `heals`: the server fixes it by itself."""

    path: Path
    problem: str
    remedy: str = HEALS
    heals: bool = True


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

    async def find_workspaces(self, store: Store) -> dict[str, Elsewhere]:
        """Return the workspaces that are elsewhere, by principal. Raises StateError."""
        return {}

    async def list_backup_notes(self, store: Store) -> list[str]:
        """Return lines on the workspaces that a backup of this machine does not have. Raises StateError."""
        return []


def read_file(
    path: Path, read: Callable[[], object], remedy: str = HEALS, *, heals: bool = True
) -> Iterator[StateDamage]:
    """Yield the damage of a file that `read` can't read. A missing file is none."""
    if not os.path.lexists(path):
        return
    try:
        read()
    except OSError as error:
        yield StateDamage(path, (error.strerror or str(error)).lower(), remedy, heals)
    except (JsonError, ValueError) as error:
        yield StateDamage(path, str(error)[:100], remedy, heals)


def list_folder(folder: Path) -> list[Path]:
    """Return what is in a folder, but for drafts. A folder that can't be read has nothing."""
    try:
        return sorted(folder / name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return []
