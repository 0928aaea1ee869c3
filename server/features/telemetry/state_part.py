"""Say what the audit log and metrics keep in a state: files of lines, and the token of `/metrics`."""

import io
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from toolgate.server.app.state_damage import StateDamage, list_folder, probe_file
from toolgate.server.app.state_part import StatePart
from toolgate.server.base.errors import UsageError
from toolgate.server.features.telemetry.audit.log import HEAD_FILE
from toolgate.server.features.telemetry.audit.reader import AuditSnapshot
from toolgate.server.state.backup.state_transfer import StateSnapshot
from toolgate.server.state.keys import check as key_check
from toolgate.server.state.keys.token_file import read_token

UNWRITABLE = "the server can't write the audit log: "


class TelemetryState(StatePart):
    """The audit log, and the token."""

    def find_damage(self, state: Path) -> Iterator[StateDamage]:
        for path in list_folder(state / "audit"):
            yield from probe_file(path, UNWRITABLE + key_check.OTHERS["audit"], heals=False)
        yield from _find_token(state / "keys" / "metrics")

    def list_snapshots(self, state: Path) -> Sequence[StateSnapshot]:
        folder = state / "audit"
        return [StateSnapshot("the audit log", partial(_open_log, folder))] if folder.is_dir() else []


@contextmanager
def _open_log(folder: Path) -> Generator[Iterator[tuple[str, IO[bytes], int]]]:
    """Open the log as it is between two writes, however many follow."""
    with closing(AuditSnapshot(folder)) as audit:
        yield _list_files(audit)


def _list_files(audit: AuditSnapshot) -> Iterator[tuple[str, IO[bytes], int]]:
    for name, file, size in audit.files:
        yield f"audit/{name}", file, size
    if audit.head:
        yield f"audit/{HEAD_FILE}", io.BytesIO(audit.head), len(audit.head)


def _find_token(file: Path) -> Iterator[StateDamage]:
    if file.is_file():
        try:
            read_token(file)
        except UsageError:
            yield StateDamage(file, "holds no token", "remove it, and the server makes a new one", heals=False)
