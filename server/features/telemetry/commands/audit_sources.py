"""Read the audit log for `toolgate audit`: from files of the state folder, and from the state database."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import aclosing, closing
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from toolgate.server.app.features import build_host, open_store
from toolgate.server.app.host import AppHost
from toolgate.server.base.errors import StateError
from toolgate.server.base.text import describe_os_error
from toolgate.server.config.load import Config
from toolgate.server.features.telemetry.audit import chain_verifier, reader
from toolgate.server.features.telemetry.audit.chain_checker import AuditVerdict
from toolgate.server.features.telemetry.audit.file_store import find_store
from toolgate.server.state.audit import chains
from toolgate.server.state.audit.entry import ChainKey, EntryData
from toolgate.server.state.keys import file as key_file

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection

WITHIN = 3_600.0  # seconds to read all of it
POLL = 0.5  # seconds between two looks for new lines in the database
DEBOUNCE_MS = 240  # ms that lines of files are gathered while more keep coming

T = TypeVar("T")
Matching = Callable[[Iterator[bytes]], Iterator[EntryData]]  # lines → entries of those that are wanted


class AuditSourceError(Exception):
    """The audit log can't be read; the text says why."""


class AuditSource(Protocol):
    """Lines of the audit log, between `since` and `until` where they can be found by their time."""

    key: ChainKey

    def lines(self, since: str | None, until: str | None) -> Iterator[bytes]:
        """Yield lines, the oldest first. Raises AuditSourceError."""
        ...

    def newest(self, matching: Matching, most: int, since: str | None, until: str | None) -> list[EntryData]:
        """Return the newest entries, the oldest of them first. Raises AuditSourceError."""
        ...

    def follow(self, on_lines: Callable[[Iterator[bytes]], None]) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return what calls `on_lines` with all lines from now on, until cancelled."""
        ...


class AuditFiles:
    """The files in the state folder `state`. Raises AuditSourceError."""

    def __init__(self, state: Path) -> None:
        self.folder = state / "audit"
        try:
            self.raw_key = key_file.read_key(state / "keys" / "audit")
        except OSError as error:
            raise AuditSourceError(f"the record can't be read without its key: {describe_os_error(error)}") from None
        self.key = ChainKey(self.raw_key)

    def lines(self, since: str | None, until: str | None) -> Iterator[bytes]:
        with closing(reader.AuditSnapshot(self.folder)) as snapshot:
            yield from snapshot.lines_since(since or "")

    def newest(self, matching: Matching, most: int, since: str | None, until: str | None) -> list[EntryData]:
        with closing(reader.AuditSnapshot(self.folder)) as snapshot:
            return list(islice(matching(snapshot.lines_backwards(since=since or "")), most))[::-1]

    def follow(self, on_lines: Callable[[Iterator[bytes]], None]) -> Callable[[], Coroutine[Any, Any, None]]:
        from toolgate.server.base import watch  # start-up

        tail = reader.AuditTail(self.folder)

        async def look() -> None:
            on_lines(tail.lines())

        async def work() -> None:
            with closing(tail):
                await watch.watch_folders("audit", lambda: [self.folder], look, DEBOUNCE_MS)

        return work


class AuditRows:
    """The rows in the state database of `host`. A context manager, which closes the database."""

    def __init__(self, host: AppHost) -> None:
        self._config = host.config
        self._runner = asyncio.Runner()
        self._store, self._keys = host.store(), host.keys()

    def __enter__(self) -> "AuditRows":
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: object, _at: TracebackType | None) -> None:
        self._runner.run(self._store.aclose())
        self._runner.close()

    def is_empty(self) -> bool:
        """Return whether no line was ever written."""
        if self._store.is_empty():
            return True
        return not self.read_heads() and not self._read(partial(chains.read_page, most=1))

    def has_key(self) -> bool:
        """Read the key, which all else needs; return whether there is a line that needs it. Raises AuditSourceError."""
        if self.is_empty():
            return False
        self._read_key()
        return True

    def _read_key(self) -> None:
        key = self._keys.find(chains.KEY)
        try:
            self._runner.run(self._keys.check())
            self.key = ChainKey(key.read()[0])
        except OSError as error:
            raise AuditSourceError(f"the record can't be read without its key: {describe_os_error(error)}") from None
        except StateError as error:
            raise AuditSourceError(str(error)) from None

    def lines(self, since: str | None, until: str | None) -> Iterator[bytes]:
        page = partial(chains.read_page, since=since, until=until)
        rows = self._read(page)
        while rows:
            yield from (row.line for row in rows)
            rows = self._read(partial(page, after=_place(rows[-1])))

    def newest(self, matching: Matching, most: int, since: str | None, until: str | None) -> list[EntryData]:
        def backwards() -> Iterator[bytes]:
            place = chains.LAST
            while rows := self._read(partial(chains.read_page, before=place, since=since, until=until)):
                yield from (row.line for row in rows)
                place = _place(rows[-1])

        return list(islice(matching(backwards()), most))[::-1]

    def follow(self, on_lines: Callable[[Iterator[bytes]], None]) -> Callable[[], Coroutine[Any, Any, None]]:
        seen = self.read_heads()

        async def work() -> None:
            async with aclosing(open_store(self._config, upgrades=False)) as store:
                while True:
                    with contextlib.suppress(StateError):  # the database may be restarting
                        while rows := await store.read(partial(chains.read_after, seen=seen)):
                            for row in rows:
                                seen[row.chain] = max(seen.get(row.chain, 0), row.seq)
                            on_lines(row.line for row in rows)
                    await asyncio.sleep(POLL)

        return work

    def verify(self, on_progress: Callable[[int, int], None]) -> tuple[AuditVerdict, chains.Newest]:
        """Check all chains. Return the verdict, and the newest lines that no other chain vouches for."""

        def work(connection: "Connection") -> tuple[AuditVerdict, chains.Newest]:
            verdict = chain_verifier.verify(connection, self.key, on_progress)
            return verdict, chains.find_unvouched(chains.read_chains(connection, self.key)[0])

        return self._read(work)

    def verify_newest(self) -> AuditVerdict:
        """Check the newest lines."""
        return self._read(partial(chain_verifier.verify_newest, key=self.key))

    def read_heads(self) -> dict[str, int]:
        """Return the number of the newest line of each chain."""
        return self._read(chains.read_heads)

    def _read(self, function: "Callable[[Connection], T]") -> T:
        try:
            return self._runner.run(self._store.read(function))
        except StateError as error:
            raise AuditSourceError(str(error)) from None


def open_files(state: Path, *, verifies: bool) -> AuditFiles | None:
    """Return the files, or None if there are none; to verify them, also if only their key is left. Raises
    AuditSourceError."""
    is_there = (state / "audit").is_dir() or (verifies and (state / "keys" / "audit").exists())
    return AuditFiles(state) if is_there else None


@contextlib.contextmanager
def open_rows(config: Config) -> Generator[AuditRows | None]:
    """Yield the rows in the state database, or None if there are none. Raises AuditSourceError."""
    host, _ = build_host(config, upgrades=False, within=WITHIN)
    try:
        may_have_rows = find_store(host).may_have_rows()
    except StateError as error:
        raise AuditSourceError(str(error)) from None
    if not may_have_rows:
        yield None
        return
    with AuditRows(host) as rows:
        yield rows if rows.has_key() else None


@contextlib.contextmanager
def open_shared_rows(config: Config) -> Generator[AuditRows | None]:
    """Yield the rows where the log of this server is in a database, also if there are none yet; else None. Raises
    AuditSourceError."""
    host, _ = build_host(config, upgrades=False, within=WITHIN)
    try:
        is_shared = host.audit_rows() is not None
    except StateError as error:
        raise AuditSourceError(str(error)) from None
    if not is_shared:
        yield None
        return
    with AuditRows(host) as rows:
        yield rows


def _place(row: Any) -> chains.Cursor:
    return row.time, row.chain, row.seq
