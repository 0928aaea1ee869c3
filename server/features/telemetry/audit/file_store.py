"""Keep the audit log in files of the state folder, where no other feature has a place for it."""

from pathlib import Path

from toolgate.server.app.host import AppHost
from toolgate.server.state.audit.store import AuditStore, EntryLog, EntryReader


def find_store(host: AppHost) -> AuditStore:
    """Return where the audit log of a server is. Raises StateError."""
    return host.audit_rows() or AuditFileStore(host.config.state)


class AuditFileStore:
    """The files of the state folder `state`."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def open_log(self) -> EntryLog:
        from toolgate.server.features.telemetry.audit.log import AuditLog  # start-up: over stdio it is mostly off

        return AuditLog(self._state / "audit", self._state / "keys" / "audit")

    def open_reader(self) -> EntryReader:
        from toolgate.server.features.telemetry.audit.reader import OwnEntries  # start-up: HTTP only

        return OwnEntries(self._state)

    def may_have_rows(self) -> bool:
        from toolgate.server.state.audit.chains import KEY  # start-up: for a command

        return (self._state / "keys" / KEY).exists()  # from a backup of a state with rows
