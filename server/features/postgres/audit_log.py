"""Write the audit log to the state database: a chain of lines for this process, off the way of calls.

The lines of `GATHER` seconds are one transaction, so they are stored within 50 ms of the answer, and a killed process
loses no more. If the database can't be reached, entries wait here and are tried again. Those beyond the limit are
counted, and the count is written. Once a minute the chain vouches for what others have written since.
"""

import asyncio
import contextlib
import logging
import platform
from collections import deque
from functools import partial

from toolgate.server.base.errors import StateError
from toolgate.server.base.text import format_time
from toolgate.server.state.audit import chains
from toolgate.server.state.audit.chains import ChainPoint, FormattedLines, Newest
from toolgate.server.state.audit.entry import AuditEntry, AuditNote, ChainKey
from toolgate.server.state.keys.sealed_state import SealingKey
from toolgate.server.state.store import Store

GATHER = 0.02  # seconds that lines are gathered for one transaction: each costs the server a millisecond
BATCH = 200  # lines of one transaction: to format them takes 2 ms
MAX_WAITING = 10_000  # entries, some 10 MB: what comes while the database restarts
RETRY = 0.5  # seconds until a write that failed is tried again
VOUCH_EVERY = 60.0  # seconds between two looks at the other chains
PRUNE_EVERY = 16 * 2**20  # bytes written between two looks at the size of the log, as of a file
CLOSE_WITHIN = 3.0  # seconds to write what waits, at the end
FAILURES = (StateError, OSError)  # of the database, and of the key's file

log = logging.getLogger("toolgate.audit")


class DatabaseLog:
    """A log in `store`, whose lines are chained under `key`.

    max_size: bytes of the lines of all processes
    max_waiting: entries in memory while the database can't be reached
    vouch_every: seconds between two looks at other chains
    """

    def __init__(
        self,
        store: Store,
        key: SealingKey,
        *,
        max_size: int = chains.MAX_SIZE,
        max_waiting: int = MAX_WAITING,
        vouch_every: float = VOUCH_EVERY,
    ) -> None:
        self._store = store
        self._sealing_key = key
        self._max_size = max_size
        self._max_waiting = max_waiting
        self._vouch_every = vouch_every
        self._key: ChainKey | None = None
        self._chain = ""  # its id, "" before it has begun
        self._end = ChainPoint()
        self._waiting: deque[AuditEntry | AuditNote] = deque()
        self._lost = 0  # entries that could not even wait
        self._batch: tuple[list[AuditEntry | AuditNote], FormattedLines] | None = None  # that is being written
        self._abandoned: Newest = {}  # ends of chains of this process that others have changed
        self._newest_time = 0.0
        self._vouch_at = 0.0  # loop time
        self._prune_at = 0  # bytes of the chain
        self._is_pruning = False
        self._failing = False
        self._ending = False
        self._wake = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    def now(self) -> float:
        """Return the time of a line in seconds since the epoch: the database's, and never earlier than the last one."""
        self._newest_time = max(self._newest_time, self._store.now())
        return self._newest_time

    def add(self, entry: AuditEntry) -> None:
        """Write the entry within `GATHER` seconds."""
        if len(self._waiting) >= self._max_waiting:
            self._lost += 1
            return
        entry.time = format_time(self.now())
        self._waiting.append(entry)
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._run(), name="audit log")
        elif not self._wake.is_set():
            self._wake.set()

    async def aclose(self) -> None:
        """Write what waits, for `CLOSE_WITHIN` seconds at most."""
        self._ending = True
        self._wake.set()
        if self._work is not None:
            await asyncio.wait([self._work], timeout=CLOSE_WITHIN)
            self._work.cancel()
        unwritten = len(self._waiting) + self._lost + (len(self._batch[0]) if self._batch is not None else 0)
        if unwritten:
            log.error("%d calls could not be recorded in the audit log", unwritten)

    async def _run(self) -> None:
        while True:
            if not self._has_lines():
                if self._ending:
                    return
                if not self._is_pruning:
                    await self._wait()
            elif not self._ending and self._batch is None and len(self._waiting) < BATCH:
                await asyncio.sleep(GATHER)
            try:
                await self._write()
                await self._vouch()
                await self._prune()
                self._failing = False
            except FAILURES as error:
                self._complain(error)
                await asyncio.sleep(RETRY)
            except Exception:  # a fault here must not end the log
                log.exception("the audit log can't be written; calls go on")
                await asyncio.sleep(RETRY)

    def _has_lines(self) -> bool:
        return bool(self._waiting or self._lost or self._batch is not None)

    async def _wait(self) -> None:
        """Wait for an entry, the end, or the next look at the other chains."""
        self._wake.clear()
        if self._has_lines() or self._ending:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._vouch_every):
                await self._wake.wait()

    def _complain(self, error: Exception) -> None:
        """Log a failure once, until writing works again."""
        if not self._failing:
            log.error("the audit log can't be written; calls go on: %s", error)
        self._failing = True

    async def _write(self) -> None:
        """Write what waits. What comes meanwhile is gathered again, unless it fills a batch."""
        count = len(self._waiting)
        while count > 0 or self._lost or self._batch is not None:
            if not self._chain:
                await self._begin()
            if self._batch is None:
                self._batch = self._take_batch()
            entries, lines = self._batch
            append = partial(
                chains.append_lines, id=self._chain, before=self._end, lines=lines, key=self._require_key()
            )
            if not await self._store.transact(append, alone=None):
                self._abandon(entries)
                return
            self._end, self._batch = lines.end, None
            await self._mark_vouched(entries)
            count = min(count - len(entries), len(self._waiting))

    def _take_batch(self) -> tuple[list[AuditEntry | AuditNote], FormattedLines]:
        entries = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        if self._lost and not self._waiting:
            entries.append(AuditNote(0, format_time(self.now()), "gap", {"calls": self._lost}))
            self._lost = 0
        return entries, chains.format_lines(self._chain, entries, self._end, self._require_key())

    async def _begin(self) -> None:
        """Begin a chain, whose first lines vouch for all others."""
        if self._key is None:
            self._sealing_key.mark()  # makes the key's file
            self._key = ChainKey(self._sealing_key.read()[0])
        id = chains.create_id()
        begins_at = self._waiting[0].time if self._waiting else format_time(self.now())  # a chain is in order of time
        note = AuditNote(0, begins_at, "begins", {"chain": id, "host": platform.node()[:64]})
        begin = partial(chains.begin_chain, id=id, begins=note, lost=dict(self._abandoned), key=self._key)
        self._end = await self._store.transact(begin, alone="audit")
        self._chain, self._abandoned = id, {}
        self._vouch_at = asyncio.get_running_loop().time() + self._vouch_every
        self._prune_at = 0

    def _abandon(self, entries: list[AuditEntry | AuditNote]) -> None:
        """Go on with another chain, which names the end of this one: `toolgate audit verify` finds what was changed."""
        log.error("the chain %s of the audit log was changed in the database: see toolgate audit verify", self._chain)
        self._abandoned[self._chain] = [self._end.seq, self._end.hash]
        self._waiting.extendleft(reversed(entries))
        self._chain, self._batch = "", None

    async def _vouch(self) -> None:
        """Now and then name the newest lines of other chains."""
        time = asyncio.get_running_loop().time()
        if not self._chain or time < self._vouch_at or self._ending:
            return
        self._vouch_at = time + self._vouch_every
        found, _ = await self._store.read(partial(chains.read_chains, key=self._require_key()))
        others = chains.find_unvouched(chain for chain in found if chain.id != self._chain)
        self._waiting.extend(chains.note_vouches(others, format_time(self.now())))

    async def _prune(self) -> None:
        """Now and then remove the oldest lines, a page at a time."""
        if not self._chain or self._end.size < self._prune_at or self._ending:
            return
        prune = partial(chains.prune_lines, key=self._require_key(), now=self.now(), max_size=self._max_size)
        self._is_pruning = await self._store.transact(prune, alone="audit")
        if not self._is_pruning:
            self._prune_at = self._end.size + PRUNE_EVERY

    async def _mark_vouched(self, entries: list[AuditEntry | AuditNote]) -> None:
        """Note what the lines vouch for, so that no other chain does it again."""
        for entry in entries:
            if isinstance(entry, AuditNote) and entry.event == "vouches":
                mark = partial(chains.mark_vouched, newest=entry.about["chains"], key=self._require_key())
                await self._store.transact(mark, alone="audit")

    def _require_key(self) -> ChainKey:
        assert self._key is not None  # since the chain began
        return self._key
