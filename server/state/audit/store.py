"""Say what a place of the audit log can do. The feature that records calls has files, and PostgreSQL has rows."""

from typing import Protocol

from toolgate.server.state.audit.entry import AuditEntry, EntryData


class EntryLog(Protocol):
    """What entries are added to: files, or the state database."""

    def now(self) -> float:
        """Return the time of a line in seconds since the epoch."""
        ...

    def add(self, entry: AuditEntry) -> None:
        """Write the entry soon, with the time of now. Never blocks, and never fails."""
        ...

    async def aclose(self) -> None:
        """Write what waits."""
        ...


class EntryReader(Protocol):
    """The audit log, for one principal."""

    async def read(self, principal: str, most: int) -> list[EntryData]:
        """Return at most `most` valid entries, newest first. Raises OSError."""
        ...


class AuditStore(Protocol):
    """Where entries are written and read."""

    def open_log(self) -> EntryLog:
        """Return what entries are added to. Raises OSError."""
        ...

    def open_reader(self) -> EntryReader:
        """Return what reads the log, where `open_log` has opened it."""
        ...

    def may_have_rows(self) -> bool:
        """Return whether the state database may have lines, too."""
        ...
