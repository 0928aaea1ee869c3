"""Run calls that outlive their requests: tasks (extension io.modelcontextprotocol/tasks, SEP-2663).

A CallTask lives in the process that does its work. Its row is in the state database before a client hears of it. The
methods say what the work is, and `notify` hears of each change.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolgate.server.protocol.asyncio_tasks import DeadlineTimer
from toolgate.server.protocol.errors import InternalError
from toolgate.server.protocol.messages import encode_value, replace_surrogates
from toolgate.server.protocol.task import StoredTask
from toolgate.server.state.live_processes import ProcessRegistry
from toolgate.server.state.store import StateError, Store
from toolgate.server.state.task_rows import TaskRows
from toolgate.tools.api.errors import UnansweredError

if TYPE_CHECKING:
    from toolgate.server.principal import GrantKey

LIFETIME = 24 * 3600.0  # seconds from its creation in which a client can ask for a task: over night and then some
LONGEST = 23 * 3600.0  # seconds it may take, so that the news of its end can be had for an hour
MAX_OUTCOME = 16 * 2**20  # bytes of a result that is kept: what one message can bring
MAX_MESSAGE = 4_000  # characters of a status message: what Bash shows of its output in one
PAUSE = 1.0  # seconds between two tellings of status messages: they change faster than anybody reads
STOPPING = 1.0  # seconds for what was called off to end, and for what it came to to be written down
FULL = "the result could not be kept: too much is kept already that nobody has read; ask for the other tasks first"
WITHDRAWN = "cancelled: what allowed the call was taken back"
LOST = "the server ended while this task was under way; it was not run again, since that could do harm"

log = logging.getLogger("toolgate.deferrals")


class CallTask:
    """A task whose work this process does. `row` is what a client may see of it."""

    def __init__(self, home: "CallTasks", row: StoredTask, right: "GrantKey | None" = None) -> None:
        self.kept = self.first_row = row
        self.right = right  # that its call came by; with it the work ends
        self.work: asyncio.Task[Any] | None = None
        self._tasks = home
        self._questions: dict[str, tuple[dict[str, Any], asyncio.Future[Any]]] = {}  # what is not answered yet
        self._keys: set[str] = set()  # ever used
        self._has_asked = False  # and so is not run again
        self._notify_timer: asyncio.TimerHandle | None = None

    @property
    def outstanding(self) -> Mapping[str, dict[str, Any]]:
        """What the client is asked: key → request."""
        return {key: request for key, (request, _) in self._questions.items()}

    def attach_work(self, work: "asyncio.Task[Any]") -> None:
        self.work = work
        self._tasks.track(work)

    def progress(self, message: str | None) -> None:
        """Show a status message."""
        if not message or not self.kept.is_live:
            return
        readable = replace_surrogates(message[:MAX_MESSAGE])
        self.kept = replace(self.kept, message=readable, updated=self._tasks.now())
        if self._notify_timer is None:
            self._notify_timer = asyncio.get_running_loop().call_later(PAUSE, self._notify)

    async def ask(self, requests: Mapping[str, dict[str, Any]], timeout: float | None) -> dict[str, Any]:
        """Wait for the client's answers, which `answer` brings. Raises Unanswered after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        keys = {key: self._unused_key(key) for key in requests}
        futures = {keys[key]: loop.create_future() for key in requests}
        if not self._has_asked:  # once asked, it is not run again, and its keys are not used anew
            await self._tasks.rows.save(self.kept)
            self._has_asked = True
        self._questions |= {keys[key]: (request, futures[keys[key]]) for key, request in requests.items()}
        try:
            self._update_status()
            self._tasks.write(self.kept)
            await asyncio.wait(futures.values(), timeout=timeout)
            if not all(future.done() for future in futures.values()):
                raise UnansweredError(f"nobody answered within {timeout:g} s", {})
        finally:
            dropped = [self._questions.pop(key, None) for key in futures]
            if any(dropped):
                self._update_status()
        return {key: futures[keys[key]].result() for key in requests}

    def answer(self, answers: Mapping[str, Any]) -> None:
        """Take answers to what is asked; others are ignored."""
        taken = answers.keys() & self._questions.keys()
        for key in taken:
            _, future = self._questions.pop(key)
            future.set_result(answers[key])
        if taken:
            self._update_status()
            self._tasks.write(self.kept)

    async def end(self, status: str, message: str | None, outcome: bytes | None) -> None:
        """It is over; nothing happens when it already was. Who cancelled it knows how it ended."""
        if not self.kept.is_live:
            return
        self.kept = replace(
            self.kept,
            status=status,
            message=message,
            outcome=outcome,
            questions=None,
            updated=self._tasks.now(),
            read=status == "cancelled",
        )
        await asyncio.shield(self._tasks.write(self.kept))
        if self._notify():
            self._tasks.mark_read([self.kept])

    def _unused_key(self, key: str) -> str:
        """Return a key that no question of this task has had."""
        number, fresh = 1, key
        while fresh in self._keys:
            number += 1
            fresh = f"{key}-{number}"
        self._keys.add(fresh)
        return fresh

    def _update_status(self) -> None:
        """Show what is asked now."""
        if not self.kept.is_live:
            return
        questions = encode_value(self.outstanding) if self._questions else None
        status = "input_required" if questions else "working"
        self.kept = replace(self.kept, status=status, questions=questions, updated=self._tasks.now())
        self._notify()

    def _notify(self) -> bool:
        """Return whether a subscription was notified."""
        if self._notify_timer is not None:
            self._notify_timer.cancel()
            self._notify_timer = None
        return self._tasks.notify(self.kept)


def tool_of(id: str) -> str:
    """The tool whose call became the task `id`: who may ask for the one may ask for the other, without a look at the
    database. An id that was made up names none that is kept."""
    return id.partition(".")[2]


class CallTasks:
    """Those of one process. `serves` says whose deferrals, left by a dead process, may be taken over; `again(deferral,
    how)` does the work of one once more; `now` is in seconds since the epoch. `server` says with what the work is done
    here: what another `server` left is its own kind's to take over."""

    def __init__(
        self,
        store: Store,
        processes: ProcessRegistry,
        serves: Callable[[str], bool] = lambda principal: True,
        now: Callable[[], float] = time.time,
        server: str = "",
    ) -> None:
        self.now = now
        self.rows = TaskRows(store, processes, lambda: self.now(), server)
        self.deadlines = DeadlineTimer(LONGEST)
        self.work: set[asyncio.Task[Any]] = set()
        self.is_closing = False
        self.notify: Callable[[StoredTask], bool] = lambda kept: False  # returns whether a subscription was notified
        self.rerun: Callable[[CallTask, bytes], None] | None = None
        self.on_lost: Callable[[StoredTask], None] = lambda kept: None  # hears of what ended with its process
        self._serves = serves
        self._running: dict[str, CallTask] = {}  # what is not over, or could not be written down yet
        self._writes: set[asyncio.Task[None]] = set()

    async def begin(self, principal: str, tool: str, again: bytes | None, right: "GrantKey | None" = None) -> CallTask:
        """A new one, durable when this returns. Raises ToolError when there are too many, or it can't be kept."""
        id = f"{secrets.token_urlsafe(18)}.{tool}"
        try:
            kept = await self.rows.add(id, principal, LIFETIME, again)
        except asyncio.CancelledError:
            self._write(self.rows.remove(id))
            raise
        held = self._running[id] = CallTask(self, kept, right)
        return held

    def find_running(self, principal: str, id: str) -> CallTask | None:
        """Return the principal's task of that id if this process works on it, or None."""
        held = self._running.get(id)
        return held if held is not None and held.kept.principal == principal else None

    async def find(self, principal: str, ids: Iterable[str]) -> dict[str, StoredTask]:
        """What there is of the principal's, by id: from now on, they have been read."""
        wanted = dict.fromkeys(ids)
        here = {id: held for id in wanted if (held := self.find_running(principal, id)) is not None}
        elsewhere = [id for id in wanted if id not in here]
        found: dict[str, StoredTask] = {}
        if elsewhere and not self.rows.is_empty:
            rows, orphaned = await self.rows.find(principal, elsewhere)
            if orphaned and self._serves(principal):
                await self.resume()
                rows, _ = await self.rows.find(principal, elsewhere)
            found = {kept.id: kept for kept in rows}
            self.mark_read(rows)
        for id in wanted:
            held = self.find_running(principal, id) or here.get(id)  # it may have ended meanwhile
            if held is not None:
                if not held.kept.is_live and not held.kept.read:
                    held.kept = replace(held.kept, read=True)
                found[id] = held.kept
                if not held.kept.is_live:
                    self.write(held.kept)  # it could not be written down before
        now = self.now()
        return {id: kept for id, kept in found.items() if kept.expires > now}

    async def cancel(self, deferral: CallTask, why: str = "cancelled by the client") -> None:
        """Call the work off. What it still comes to is told to nobody."""
        if deferral.kept.is_live and deferral.work is not None:
            deferral.work.cancel()
        await deferral.end("cancelled", why, None)

    async def cancel_all(self, principal: str) -> None:
        """Call off all that this process does for a principal."""
        for deferral in [held for held in self._running.values() if held.kept.principal == principal]:
            await self.cancel(deferral)

    def rights(self) -> Iterator["GrantKey"]:
        """By which something is under way."""
        return (held.right for held in self._running.values() if held.right is not None)

    async def cancel_rights(self, rights: "Collection[GrantKey]") -> None:
        """Call off what came by these."""
        for deferral in [held for held in self._running.values() if held.right in rights]:
            await self.cancel(deferral, WITHDRAWN)

    async def forget(self, deferral: CallTask) -> None:
        """Drop a task that no client was told of."""
        deferral.kept = replace(deferral.kept, status="cancelled")
        self._running.pop(deferral.kept.id, None)
        await asyncio.shield(self._write(self.rows.remove(deferral.kept.id)))

    async def resume(self) -> None:
        """Take over what was under way when another process died: do it again, or say that it failed."""
        if self.rows.is_empty or self.is_closing:
            return
        for kept, how in await self.rows.adopt(self._serves):
            held = self._running[kept.id] = CallTask(self, kept)
            if how is None or self.rerun is None:
                await held.end("failed", LOST, encode_value({"code": InternalError.code, "message": LOST}))
                self.on_lost(held.kept)
            else:
                log.info("running task %s again: the server had ended under it", kept.id)
                self.rerun(held, how)

    async def close(self, grace: float) -> None:
        """Let what is under way finish, at most `grace` seconds, and call off the rest: the next process finds it."""
        self.is_closing = True
        if self.work:
            await asyncio.wait(list(self.work), timeout=grace)
        for work in list(self.work):
            work.cancel()
        for left in (self.work, self._writes):
            if left:
                await asyncio.wait(list(left), timeout=STOPPING)

    def track(self, work: "asyncio.Task[Any]") -> None:
        """Keep hold of the work on a task until it ends."""
        self.work.add(work)
        work.add_done_callback(self.work.discard)

    def write(self, kept: StoredTask) -> "asyncio.Task[None]":
        """Write down what has become of one; where that fails it is known here for as long as the process lives."""
        return self._write(self._save(kept))

    def mark_read(self, seen: Iterable[StoredTask]) -> None:
        """The client has been given these."""
        news = [kept.id for kept in seen if not kept.is_live and not kept.read]
        if news:
            self._write(self._save_read(news))

    async def _save(self, kept: StoredTask) -> None:
        try:
            written = await self.rows.save(kept, _full_failure(kept))
        except StateError:
            log.exception("what became of task %s could not be written down", kept.id)
            return
        if kept.is_live:
            return
        held = self._running.get(kept.id)
        if held is None:
            return
        if held.kept is kept:
            held.kept = written
        del self._running[kept.id]

    async def _save_read(self, ids: list[str]) -> None:
        try:
            await self.rows.mark_read(ids)
        except StateError:
            log.warning("that %d tasks were read could not be written down", len(ids))

    def _write(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Write in a task of its own: what is cancelled meanwhile must not lose it."""
        task = asyncio.get_running_loop().create_task(work)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return task


def _full_failure(kept: StoredTask) -> StoredTask | None:
    """What becomes of a task for whose result there is no room; None where it has gone to the client already."""
    if kept.status != "completed" or kept.read:
        return None
    error = encode_value({"code": InternalError.code, "message": FULL})
    return replace(kept, status="failed", message=FULL, outcome=error)
