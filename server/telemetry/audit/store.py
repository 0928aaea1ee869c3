"""Say where the audit log is: in files of the state folder, or where a feature puts it."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from toolgate.server.telemetry.audit.checker import EntryData
    from toolgate.server.telemetry.audit.recorder import EntryLog


class EntryReader(Protocol):
    """The audit log, for one principal."""

    async def read(self, principal: str, most: int) -> "list[EntryData]":
        """Return at most `most` valid entries, newest first. Raises OSError."""
        ...


class AuditStore(Protocol):
    """Where entries are written and read."""

    def open_log(self) -> "EntryLog":
        """Return what entries are added to. Raises OSError."""
        ...

    def open_reader(self) -> EntryReader:
        """Return what reads the log, where `open_log` has opened it."""
        ...

    def may_have_rows(self) -> bool:
        """Return whether the state database may have lines, too."""
        ...


class AuditFileStore:
    """The files of the state folder `state`."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def open_log(self) -> "EntryLog":
        from toolgate.server.telemetry.audit.log import AuditLog  # start-up: over stdio it is mostly off

        return AuditLog(self._state / "audit", self._state / "keys" / "audit")

    def open_reader(self) -> EntryReader:
        from toolgate.server.telemetry.audit.reader import OwnEntries  # start-up: HTTP only

        return OwnEntries(self._state)

    def may_have_rows(self) -> bool:
        from toolgate.server.telemetry.audit.chains import KEY  # start-up: for a command

        return (self._state / "keys" / KEY).exists()  # from a backup of a state with rows
