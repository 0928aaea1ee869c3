"""Run transactions on the state database: an SQLite file, or PostgreSQL.

    result = await store.transact(function, alone="nodes")  # function(connection) runs whole or not at all
    result = await store.read(function)                     # it writes nothing

`app.features.open_store` opens the one that the options name.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import msgspec

from toolgate.server.state.live_processes import LiveProcesses

if TYPE_CHECKING:
    from sqlalchemy import Connection as Connection  # the rest of the server imports it from here

T = TypeVar("T")
# What a transaction may need alone: all of a subject, or one part of it, as in ("todos", principal). A subject is
# named whole everywhere, or in parts everywhere: the whole and a part do not exclude each other.
Subject = Literal[
    "accounts",  # with the sign-ins
    "approvals",
    "audit",  # its chains together; the lines of one are their process's alone
    "callbacks",
    "events",
    "everything",
    "keys",  # that sign tokens
    "mounts",  # what was approved of mounted servers, and what people have connected and switched off
    "nodes",  # with the people on them
    "oauth",  # clients, grants, consents and tokens
    "places",
    "plans",
    "secrets",
    "sessions",
    "tasks",
    "todos",
]


class DatabaseHealth(msgspec.Struct, frozen=True):
    """The state of the connections to PostgreSQL, for metrics and readiness. An SQLite file is always there."""

    is_reachable: bool = True
    seconds: float = 0.0  # since when it is reachable, or since it last answered
    latency: float = 0.0  # seconds of the newest answer
    running: int = 0  # transactions with a connection
    waiting: int = 0  # transactions that wait for a connection, or for an equal one to end


class Store(Protocol):
    """The state database. `folder` is the server's own folder, where its other files are."""

    folder: Path

    @property
    def place(self) -> str:
        """Return where the database is, for people."""
        ...

    def now(self) -> float:
        """Return the time in seconds since the epoch, by the clock that all processes on the database share."""
        ...

    async def read(self, function: "Callable[[Connection], T]") -> T:
        """Return what `function` reads at one moment. It writes nothing and sets no flag. Raises StateError."""
        ...

    async def transact(
        self, function: "Callable[[Connection], T]", *, alone: Subject | tuple[Subject, str] | None = "everything"
    ) -> T:
        """Run `function` in one transaction. Its exceptions roll back and pass through.

        What it reads of the subject `alone` stays true until it ends: no other transaction with an equal name runs
        meanwhile. Without a name none runs at all; None is for one whose result depends on nothing that it read. When
        the caller is cancelled, the transaction is done whole or not at all. Raises StateError.
        """
        ...

    def try_write(self, write: "Callable[[Connection], None]", connection: "Connection") -> Exception | None:
        """Run a part of a transaction. A part that fails is undone alone, and its error returned."""
        ...

    async def prepare(self) -> None:
        """Upgrade a database of an older version now, rather than at the first transaction.

        Creates no file. Raises StateError, and StateVersionError for one of a newer Toolgate.
        """
        ...

    def set_flag(self, kind: str, key: str, on: bool) -> None:
        """Set or remove a marker that `has_flag` sees. Call it inside a transaction only.

        A superfluous marker costs a read of the database, a missing one loses data. So it is set in the transaction
        that makes it true, before the commit, and removed in a later one that found nothing (`clear_flag_unless`).
        Raises StateError.
        """
        ...

    def has_flag(self, kind: str, key: str) -> bool:
        """Return whether the marker may be set, without reading the database."""
        ...

    async def clear_flag_unless(
        self,
        kind: str,
        key: str,
        needed: "Callable[[Connection], bool]",
        *,
        alone: Subject | tuple[Subject, str] = "everything",
    ) -> None:
        """Remove the marker, unless `needed` finds in the database what it stands for; `alone` as with its setter."""
        ...

    def is_empty(self) -> bool:
        """Return True only if nothing was ever stored, without reading the database."""
        ...

    def open_processes(self) -> LiveProcesses:
        """Return the processes that use the database, to which the caller adds this one."""
        ...

    async def aclose(self) -> None:
        """Let running transactions finish, for a third of a second at most, and close the database for good.

        The others raise StateError.
        """
        ...


def make_private_folder(folder: Path) -> None:
    """Create `folder` for its owner alone. An existing one is left unchanged: it may be any folder, even /tmp."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
