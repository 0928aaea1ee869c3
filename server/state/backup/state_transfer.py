"""Copy the database of a state into a backup, and replace it by that of a backup: a feature may keep it elsewhere."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Protocol

import msgspec

from toolgate.server.state.backup.manifest import DATABASE, BackupError, list_names
from toolgate.server.state.backup.restore import replace_state
from toolgate.server.state.rows import sessions
from toolgate.server.state.sqlite import snapshot
from toolgate.server.state.sqlite.database import check_database


class ExportedState(msgspec.Struct, frozen=True):
    """What belongs to a copy of the database: the version of its tables, the names of flags, and sealing keys by
    name, where the database has those."""

    schema: int
    flags: list[str]
    keys: dict[str, bytes] = {}


class StateSnapshot(msgspec.Struct, frozen=True):
    """Files that change together while a server runs.

    title: what they are, for the progress
    open: opens them as they are between two changes: for each its name in the backup, the file, and its bytes
    """

    title: str
    open: Callable[[], AbstractContextManager[Iterable[tuple[str, IO[bytes], int]]]]


class StateTransfer(Protocol):
    """The way of the database into a backup and back."""

    def export_database(self, folder: Path) -> ExportedState | None:
        """Write the database of one moment to `folder`. Return None if there is none.

        Raises BackupError, StateError and OSError.
        """
        ...

    def replace(self, staging: Path, *, replace: bool) -> Path | None:
        """Replace the state by the backup in STAGING/come. Return the folder with what it replaced, if anything.

        Without `replace` there is nothing. A failure changes nothing. Raises BackupError, StateError and OSError.
        """
        ...


class FileTransfer:
    """The database in a file of the folder `state`."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def export_database(self, folder: Path) -> ExportedState | None:
        path, copy = self._state / DATABASE, folder / DATABASE
        if not path.exists():
            return None
        schema, flags = snapshot.copy_with(path, copy, lambda: list_names(self._state / "flags"))
        check_database(copy)  # a restore refuses a damaged one, and a good backup may make room for this one
        if schema < 1:
            raise BackupError("the state database was not made by Toolgate, or is damaged")
        sessions.remove_sessions(copy)
        return ExportedState(schema, flags)

    def replace(self, staging: Path, *, replace: bool) -> Path | None:
        return replace_state(staging / "come", self._state)
