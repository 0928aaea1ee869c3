"""Read the newest entries of one principal from the audit log, for that principal to see."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from toolgate.server.state import key_file
from toolgate.server.telemetry.audit import entry
from toolgate.server.telemetry.audit.reader import AuditSnapshot

SEARCH_SIZE = 4 * 2**20  # bytes searched, some 8,000 calls of all principals: a page must not search all files

EntryData = dict[str, Any]


class OwnEntries:
    """The audit log in the folder `state`."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "audit"
        self._key = state / "keys" / "audit"

    def newest(self, principal: str, most: int) -> list[EntryData]:
        """Return at most `most` valid recent entries, the newest first. Blocks for milliseconds. Raises OSError, also
        as TimeoutError."""
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
    """Return an entry; None for a note and for a damaged line."""
    try:
        link = entry.parse_line(raw, key)
    except entry.DamagedLineError:
        return None
    return json.loads(raw) if link.event is None else None
