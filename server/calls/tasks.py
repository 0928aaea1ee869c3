"""Calls that outlive their requests: tasks, as the extension io.modelcontextprotocol/tasks (SEP-2663) calls them.

A deferral is one such call, in the process that does its work; what it is, is also in the state database before
anybody hears of it. Knows nothing of tools or JSON-RPC: the methods say what the work is, `tell` hears of each change.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolgate.server.protocol.deadlines import Hold
from toolgate.server.protocol.errors import InternalError
from toolgate.server.protocol.messages import spelled
from toolgate.server.state.live_processes import Processes
from toolgate.server.state.store import StateError, Store
from toolgate.server.state.task_rows import Kept, Ledger
from toolgate.tools.api.errors import Unanswered

if TYPE_CHECKING:
    from toolgate.server.principal import Right

__all__ = ["Deferral", "Deferrals", "Kept"]

LIFETIME = 24 * 3600.0  # seconds from its creation in which a deferral can be asked for: over night and then some
LONGEST = 23 * 3600.0  # seconds it may take, so that the news of its end can be had for an hour
MAX_OUTCOME = 16 * 2**20  # bytes of a result that is kept: what one message can bring
MAX_MESSAGE = 4_000  # characters of a status message: what Bash shows of its output in one
PAUSE = 1.0  # seconds between two tellings of status messages: they change faster than anybody reads
STOPPING = 1.0  # seconds for what was called off to end, and for what it came to to be written down
FULL = "the result could not be kept: too much is kept already that nobody has read; ask for the other tasks first"
WITHDRAWN = "cancelled: what allowed the call was taken back"
LOST = "the server ended while this task was under way; it was not run again, since that could do harm"

log = logging.getLogger("toolgate.deferrals")


def everyone(_principal: str) -> bool:
    return True


class Deferral:
    """One deferred call under way here. `kept` is what a client may see of it."""

    def __init__(self, home: "Deferrals", kept: Kept, right: "Right | None" = None) -> None:
        self.kept = self.created = kept
        self.right = right  # that its call came by; with it the work ends
        self.work: asyncio.Task[Any] | None = None
        self._home = home
        self._asked: dict[str, tuple[dict[str, Any], asyncio.Future[Any]]] = {}  # what is not answered yet
        self._keys: set[str] = set()  # ever used
        self._has_asked = False  # and so is not run again
        self._telling: asyncio.TimerHandle | None = None

    @property
    def outstanding(self) -> Mapping[str, dict[str, Any]]:
        """What the client is asked: key → request."""
        return {key: request for key, (request, _) in self._asked.items()}

    def begun(self, work: "asyncio.Task[Any]") -> None:
        self.work = work
        self._home.watch(work)

    def progress(self, message: str | None) -> None:
        """Show how it goes."""
        if not message or not self.kept.live:
            return
        readable = message[:MAX_MESSAGE].encode("utf-8", "replace").decode()
        self.kept = replace(self.kept, message=readable, updated=self._home.now())
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(PAUSE, self._tell)

    async def ask(self, requests: Mapping[str, dict[str, Any]], timeout: float | None) -> dict[str, Any]:
        """Wait for the client's answers, which `answer` brings. Raises Unanswered after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        keys = {key: self._fresh(key) for key in requests}
        futures = {keys[key]: loop.create_future() for key in requests}
        if not self._has_asked:  # once asked, it is not run again, and its keys are not used anew
            await self._home.ledger.save(self.kept)
            self._has_asked = True
        self._asked |= {keys[key]: (request, futures[keys[key]]) for key, request in requests.items()}
        try:
            self._asking()
            self._home.write(self.kept)
            await asyncio.wait(futures.values(), timeout=timeout)
            if not all(future.done() for future in futures.values()):
                raise Unanswered(f"nobody answered within {timeout:g} s", {})
        finally:
            dropped = [self._asked.pop(key, None) for key in futures]
            if any(dropped):
                self._asking()
        return {key: futures[keys[key]].result() for key in requests}

    def answer(self, answers: Mapping[str, Any]) -> None:
        """Take answers to what is asked; others are ignored."""
        taken = answers.keys() & self._asked.keys()
        for key in taken:
            _, future = self._asked.pop(key)
            future.set_result(answers[key])
        if taken:
            self._asking()
            self._home.write(self.kept)

    async def end(self, status: str, message: str | None, outcome: bytes | None) -> None:
        """It is over; nothing happens when it already was. Who cancelled it knows how it ended."""
        if not self.kept.live:
            return
        self.kept = replace(
            self.kept,
            status=status,
            message=message,
            outcome=outcome,
            questions=None,
            updated=self._home.now(),
            read=status == "cancelled",
        )
        await asyncio.shield(self._home.write(self.kept))
        if self._tell():
            self._home.was_read([self.kept])

    def _fresh(self, key: str) -> str:
        """A key is used for one question in a deferral's life."""
        number, fresh = 1, key
        while fresh in self._keys:
            number += 1
            fresh = f"{key}-{number}"
        self._keys.add(fresh)
        return fresh

    def _asking(self) -> None:
        """Show what is asked now."""
        if not self.kept.live:
            return
        questions = spelled(self.outstanding) if self._asked else None
        status = "input_required" if questions else "working"
        self.kept = replace(self.kept, status=status, questions=questions, updated=self._home.now())
        self._tell()

    def _tell(self) -> bool:
        """Whether somebody heard."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        return self._home.tell(self.kept)


def tool_of(id: str) -> str:
    """The tool whose call became the task `id`: who may ask for the one may ask for the other, without a look at the
    database. An id that was made up names none that is kept."""
    return id.partition(".")[2]


class Deferrals:
    """Those of one process. `serves` says whose deferrals, left by a dead process, may be taken over; `again(deferral,
    how)` does the work of one once more; `now` is in seconds since the epoch. `server` says with what the work is done
    here: what another `server` left is its own kind's to take over."""

    def __init__(
        self,
        store: Store,
        processes: Processes,
        serves: Callable[[str], bool] = everyone,
        now: Callable[[], float] = time.time,
        server: str = "",
    ) -> None:
        self.now = now
        self.ledger = Ledger(store, processes, lambda: self.now(), server)
        self.longest = Hold(LONGEST)
        self.running: set[asyncio.Task[Any]] = set()
        self.ending = False
        self.tell: Callable[[Kept], bool] = lambda kept: False  # whether somebody heard
        self.again: Callable[[Deferral, bytes], None] | None = None
        self.lost: Callable[[Kept], None] = lambda kept: None  # hears of what ended with the process that worked on it
        self._serves = serves
        self._held: dict[str, Deferral] = {}  # what is not over, or could not be written down yet
        self._writing: set[asyncio.Task[None]] = set()

    async def begin(self, principal: str, tool: str, again: bytes | None, right: "Right | None" = None) -> Deferral:
        """A new one, durable when this returns. Raises ToolError when there are too many, or it can't be kept."""
        id = f"{secrets.token_urlsafe(18)}.{tool}"
        try:
            kept = await self.ledger.put(id, principal, LIFETIME, again)
        except asyncio.CancelledError:
            self._write(self.ledger.drop(id))
            raise
        held = self._held[id] = Deferral(self, kept, right)
        return held

    def here(self, principal: str, id: str) -> Deferral | None:
        """The principal's deferral of that id, if this process works on it."""
        held = self._held.get(id)
        return held if held is not None and held.kept.principal == principal else None

    async def find(self, principal: str, ids: Iterable[str]) -> dict[str, Kept]:
        """What there is of the principal's, by id: from now on, they have been read."""
        wanted = dict.fromkeys(ids)
        here = {id: held for id in wanted if (held := self.here(principal, id)) is not None}
        elsewhere = [id for id in wanted if id not in here]
        found: dict[str, Kept] = {}
        if elsewhere and not self.ledger.empty:
            rows, orphaned = await self.ledger.find(principal, elsewhere)
            if orphaned and self._serves(principal):
                await self.resume()
                rows, _ = await self.ledger.find(principal, elsewhere)
            found = {kept.id: kept for kept in rows}
            self.was_read(rows)
        for id in wanted:
            held = self.here(principal, id) or here.get(id)  # it may have ended meanwhile
            if held is not None:
                if not held.kept.live and not held.kept.read:
                    held.kept = replace(held.kept, read=True)
                found[id] = held.kept
                if not held.kept.live:
                    self.write(held.kept)  # it could not be written down before
        now = self.now()
        return {id: kept for id, kept in found.items() if kept.expires > now}

    async def cancel(self, deferral: Deferral, why: str = "cancelled by the client") -> None:
        """Call the work off. What it still comes to is told to nobody."""
        if deferral.kept.live and deferral.work is not None:
            deferral.work.cancel()
        await deferral.end("cancelled", why, None)

    async def cancel_all(self, principal: str) -> None:
        """Call off all that this process does for a principal."""
        for deferral in [held for held in self._held.values() if held.kept.principal == principal]:
            await self.cancel(deferral)

    def rights(self) -> Iterator["Right"]:
        """By which something is under way."""
        return (held.right for held in self._held.values() if held.right is not None)

    async def end_of(self, rights: "Collection[Right]") -> None:
        """Call off what came by these."""
        for deferral in [held for held in self._held.values() if held.right in rights]:
            await self.cancel(deferral, WITHDRAWN)

    async def forget(self, deferral: Deferral) -> None:
        """Nobody was told of it, and nobody will be."""
        deferral.kept = replace(deferral.kept, status="cancelled")
        self._held.pop(deferral.kept.id, None)
        await asyncio.shield(self._write(self.ledger.drop(deferral.kept.id)))

    async def resume(self) -> None:
        """Take over what was under way when another process died: do it again, or say that it failed."""
        if self.ledger.empty or self.ending:
            return
        for kept, how in await self.ledger.adopt(self._serves):
            held = self._held[kept.id] = Deferral(self, kept)
            if how is None or self.again is None:
                await held.end("failed", LOST, spelled({"code": InternalError.code, "message": LOST}))
                self.lost(held.kept)
            else:
                log.info("running task %s again: the server had ended under it", kept.id)
                self.again(held, how)

    async def close(self, grace: float) -> None:
        """Let what is under way finish, at most `grace` seconds, and call off the rest: the next process finds it."""
        self.ending = True
        if self.running:
            await asyncio.wait(list(self.running), timeout=grace)
        for work in list(self.running):
            work.cancel()
        for left in (self.running, self._writing):
            if left:
                await asyncio.wait(list(left), timeout=STOPPING)

    def watch(self, work: "asyncio.Task[Any]") -> None:
        """This is work on a deferral."""
        self.running.add(work)
        work.add_done_callback(self.running.discard)

    def write(self, kept: Kept) -> "asyncio.Task[None]":
        """Write down what has become of one; where that fails it is known here for as long as the process lives."""
        return self._write(self._save(kept))

    def was_read(self, seen: Iterable[Kept]) -> None:
        """The client has been given these."""
        news = [kept.id for kept in seen if not kept.live and not kept.read]
        if news:
            self._write(self._read(news))

    async def _save(self, kept: Kept) -> None:
        try:
            written = await self.ledger.save(kept, _unkept(kept))
        except StateError:
            log.exception("what became of task %s could not be written down", kept.id)
            return
        if kept.live:
            return
        held = self._held.get(kept.id)
        if held is None:
            return
        if held.kept is kept:
            held.kept = written
        del self._held[kept.id]

    async def _read(self, ids: list[str]) -> None:
        try:
            await self.ledger.read(ids)
        except StateError:
            log.warning("that %d tasks were read could not be written down", len(ids))

    def _write(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Write in a task of its own: what is cancelled meanwhile must not lose it."""
        task = asyncio.get_running_loop().create_task(work)
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return task


def _unkept(kept: Kept) -> Kept | None:
    """What becomes of a task for whose result there is no room; None where it has gone to the client already."""
    if kept.status != "completed" or kept.read:
        return None
    error = spelled({"code": InternalError.code, "message": FULL})
    return replace(kept, status="failed", message=FULL, outcome=error)
