"""Name a gateway's database, and remember at a node which databases its gateways have.

Gateways of one database agree on who is gone. Those of two do not, and one that is away can't object.
"""

import hashlib
import logging
import os
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from toolgate.server.state.keys import file as key_file
from toolgate.tools.api.concurrency.threads import Threads, ThreadsBusyError
from toolgate.tools.api.regular_file import read_regular

DATABASE_ID = re.compile("[0-9a-f]{32}")
MAX_DATABASES = 16  # that a node remembers: two already change what it does, so further ones tell it nothing
MAX_FILE = 4_096  # bytes: of 16 there are 528
DATABASES_FILE = Path("uses/databases")  # in the node's state, and in its backups

log = logging.getLogger("toolgate.node")


def make_database_id(state: Path) -> str:
    """Return the id of the database in a gateway's `state`, made once and part of its backups. Raises OSError."""
    return _to_id(key_file.load_or_create_key(_name_key(state)))


def derive_database_id(secret: bytes) -> str:
    """Return the id of the database whose servers have the secret of --secret."""
    return _to_id(secret + b"database")


def find_database_id(state: Path) -> str:
    """Return the id of the database in a gateway's `state`, or "" where no gateway has made it. Raises OSError."""
    try:
        return _to_id(key_file.read_key(_name_key(state)))
    except FileNotFoundError:
        return ""


def _name_key(state: Path) -> Path:
    return state / "keys" / "database"


def _to_id(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:32]


class KnownDatabases:
    """The `ids` of the databases of all gateways that a node has served, kept in `file`; without one in memory.

    Raises OSError and ValueError for a file that can't be read.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self.ids: set[str] = set()
        if file is not None and os.path.lexists(file):
            self.ids.update(_read_ids(file))
            self._warn_of_several()
        self._kept = set(self.ids)
        self._threads = Threads(1)

    def note(self, id: str) -> None:
        """Remember a database. `keep` writes it."""
        if id not in self.ids and len(self.ids) < MAX_DATABASES:
            self.ids.add(id)
            self._warn_of_several()

    async def keep(self) -> None:
        """Write what the file lacks. Never raises: the next connection tries again."""
        if self._file is None:
            return
        try:
            while self._kept != self.ids:
                ids = set(self.ids)
                await self._threads.run(partial(_write_ids, self._file, ids))  # nobody waits for a slow disk
                self._kept = ids
        except OSError as error:
            log.warning("%s can't be written: %s", self._file, error.strerror)
        except ThreadsBusyError:
            pass  # who writes them sees what has come meanwhile

    def _warn_of_several(self) -> None:
        if len(self.ids) > 1:
            log.warning(
                "servers with %d different databases have used this node, so nobody counts as gone here; if only one "
                "is in use, stop the node, remove %s and start it again",
                *(len(self.ids), self._file),
            )


def _write_ids(file: Path, ids: Iterable[str]) -> None:
    key_file.replace_file(file, "".join(f"{each}\n" for each in sorted(ids)).encode())


def _read_ids(file: Path) -> list[str]:
    words = read_regular(file, MAX_FILE).decode("ascii", "replace").split()
    if not all(map(DATABASE_ID.fullmatch, words)):
        raise ValueError(f"{file} is damaged: remove it if servers with only one database use this node")
    return words
