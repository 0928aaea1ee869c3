"""What the audit log has of one principal, the newest lines: for that principal's own eyes. Changes nothing."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from toolgate.server.state import key_file
from toolgate.server.telemetry.audit import entry
from toolgate.server.telemetry.audit.reader import AuditSnapshot

SEARCH_SIZE = (
    4 * 2**20
)  # bytes looked through, some 8,000 calls of everybody: a page must cost no search of all there is

EntryData = dict[str, Any]


class OwnEntries:
    """The record in `state`."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "audit"
        self._key = state / "keys" / "audit"

    def newest(self, principal: str, most: int) -> list[EntryData]:
        """At most so many, the newest first, of those that are whole and not too long ago. Blocking: milliseconds.
        Raises OSError, TimeoutError among them."""
        if not self._folder.is_dir():
            return []
        key = entry.to_chain_key(key_file.read_key(self._key))
        mark = json.dumps(principal).encode()
        found: list[EntryData] = []
        with closing(AuditSnapshot(self._folder)) as snapshot:
            for raw in snapshot.lines_backwards(SEARCH_SIZE):
                if mark in raw and (line := _read(raw, key)) is not None and line.get("principal") == principal:
                    found.append(line)
                    if len(found) == most:
                        break
        return found


def _read(raw: bytes, key: entry.ChainKey) -> EntryData | None:
    """An entry; None for a note, and for what was tampered with."""
    try:
        link = entry.parse_line(raw, key)
    except entry.DamagedLineError:
        return None
    return json.loads(raw) if link.event is None else None
