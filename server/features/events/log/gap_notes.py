"""Keep on disk which events wait for the database, so that a server that ends meanwhile leaves a gap."""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from toolgate.tools.api.regular_file import read_regular
from toolgate.tools.api.text.json_text import JsonError, decode_json

Gap = tuple[str, str]  # a principal, and the name of a type

FOLDER = "gaps"  # in the state folder
MAX_NOTES = 2**20  # bytes of one file: thousands of principals

log = logging.getLogger("toolgate.events")


class GapNotes:
    """The notes of this process in the folder, and those of ended ones. Nothing is written while events are stored."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER
        self._path = self._folder / f"{os.getpid()}-{os.urandom(4).hex()}.json"
        self._written: set[Gap] = set()  # in this process's file
        self._earlier: list[Path] = []  # files that were read

    def write(self, gaps: Iterable[Gap]) -> None:
        """Note what would be lost if the process ended now. A failure is logged."""
        found = set(gaps)
        if found <= self._written:
            return
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            fresh = self._path.with_suffix(".new")
            fresh.write_bytes(msgspec.json.encode(sorted(found)))
            fresh.replace(self._path)
            self._written = found
        except OSError as error:
            log.warning("events that wait are not noted in %s: %s", self._folder, error.strerror)

    def read(self) -> list[Gap]:
        """Return what earlier processes noted. `clear` removes it."""
        found: list[Gap] = []
        for path in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else ():
            if path == self._path:
                continue
            self._earlier.append(path)
            try:
                found += read_notes(path)
            except (OSError, JsonError) as error:
                log.warning("%s can't be read: whose events are lost is not known: %s", path, error)
        return found

    def clear(self) -> None:
        """Remove the notes: what they tell of is in the logs."""
        for path in [*self._earlier, *([self._path] if self._written else [])]:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s can't be removed: %s", path, error.strerror)
        self._earlier, self._written = [], set()


def read_notes(path: Path) -> list[Gap]:
    """Return what a file notes. Raises OSError and JsonError."""
    return decode_json(read_regular(path, MAX_NOTES), list[Gap])
