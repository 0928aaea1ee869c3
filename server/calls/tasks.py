"""Run calls that outlive their requests: tasks (extension io.modelcontextprotocol/tasks, SEP-2663).

A CallTask lives in the process that does its work. Its row is in the state database before a client learns of it. The
methods supply the work, and `notify` is called at each change.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from toolgate.server.base.asyncio_tasks import DeadlineTimer
from toolgate.server.base.errors import StateError
from toolgate.server.base.task import StoredTask
from toolgate.server.protocol.errors import InternalError
from toolgate.server.protocol.messages import encode_value, replace_surrogates
from toolgate.server.protocol.session import create_key
from toolgate.server.state.live_processes import LiveProcesses
from toolgate.server.state.rows.tasks import TaskRows
from toolgate.server.state.store import Store
from toolgate.tools.api.content import Continuation
from toolgate.tools.api.errors import ToolError, UnansweredError

if TYPE_CHECKING:
    from toolgate.server.base.principals.principal import GrantKey
    from toolgate.server.state.store import Connection

LIFETIME = 24 * 3600.0  # seconds from its creation during which a client can ask for a task: a night and some more
LONGEST = 23 * 3600.0  # seconds of work at most, so that the result can be read for an hour
MAX_OUTCOME = 16 * 2**20  # bytes of a stored result: what one message can carry
MAX_MESSAGE = 4_000  # characters of a status message: as many as Bash shows of its output
PAUSE = 1.0  # seconds between two notifications of status messages: people read no faster
RESUME_PAUSE = 2.0  # seconds until a state that could not be read is asked again
STOPPING = 1.0  # seconds for cancelled work to end, and for its outcome to be stored
KEY_END = "~"  # in no secret
FULL = "the result could not be kept: too much is kept already that is unread; ask for the other tasks first"
STOPPED = "cancelled by the client, which also ends what it waited for"
WITHDRAWN = "cancelled: the access that allowed the call was revoked"
LOST = "the server ended while this task was under way; it was not run again, since that could do harm"

log = logging.getLogger("toolgate.deferrals")


class CallTask:
    """A task whose work runs in this process. `kept` is what a client may see of it."""

    def __init__(self, home: "CallTasks", row: StoredTask, right: "GrantKey | None" = None) -> None:
        self.kept = self.first_row = row
        self.right = right  # what its access depends on; the work ends with it
        self.stop: Callable[[], Awaitable[object]] | None = None  # ends what the task only waits for
        self.work: asyncio.Task[Any] | None = None
        self._tasks = home
        self._questions: dict[str, tuple[dict[str, Any], asyncio.Future[Any]]] = {}  # unanswered
        self._keys: set[str] = set()  # all that were ever used
        self._has_asked = False  # if so, it is not run again after a crash
        self._notify_timer: asyncio.TimerHandle | None = None

    @property
    def outstanding(self) -> Mapping[str, dict[str, Any]]:
        """Return the unanswered questions: key → request."""
        return {key: request for key, (request, _) in self._questions.items()}

    def attach_work(self, work: "asyncio.Task[Any]") -> None:
        self.work = work
        self._tasks.track(work)

    def progress(self, message: str | None) -> None:
        """Set a status message."""
        if not message or not self.kept.is_live:
            return
        readable = replace_surrogates(message[:MAX_MESSAGE])
        self.kept = replace(self.kept, message=readable, updated=self._tasks.now())
        if self._notify_timer is None:
            self._notify_timer = asyncio.get_running_loop().call_later(PAUSE, self._notify)

    async def ask(self, requests: Mapping[str, dict[str, Any]], timeout: float | None) -> dict[str, Any]:
        """Return the client's answers, which `answer` takes. Raises UnansweredError after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        keys = {key: self._unused_key(key) for key in requests}
        futures = {keys[key]: loop.create_future() for key in requests}
        if not self._has_asked:  # a task that has asked is not run again, and its keys are not reused
            if await self._tasks.rows.save(self.kept) is None:
                self._tasks.give_up(self.kept.id)
            self._has_asked = True
        self._questions |= {keys[key]: (request, futures[keys[key]]) for key, request in requests.items()}
        try:
            self._update_status()
            self._tasks.write(self.kept)
            await asyncio.wait(futures.values(), timeout=timeout)
            if not all(future.done() for future in futures.values()):
                raise UnansweredError(f"no answer within {timeout:g} s", {})
        finally:
            dropped = [self._questions.pop(key, None) for key in futures]
            if any(dropped):
                self._update_status()
        return {key: futures[keys[key]].result() for key in requests}

    async def answer(self, answers: Mapping[str, Any]) -> None:
        """Take the answers to open questions, and store which remain open; others are ignored."""
        taken = answers.keys() & self._questions.keys()
        for key in taken:
            _, future = self._questions.pop(key)
            future.set_result(answers[key])
        if taken:
            self._update_status()
            await asyncio.shield(self._tasks.write(self.kept))  # the client's next request may reach another process

    async def end(self, status: str, message: str | None, outcome: bytes | None) -> None:
        """End the task; nothing happens if it has ended. A cancellation counts as read: the client caused it."""
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
        """Set the status and the open questions."""
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


def make_id(tool: str, key: str | None) -> str:
    """Return a new id: `key`, which the client may show its model, a secret, and the tool."""
    secret = f"{create_key(18)}.{tool}"
    return secret if key is None else f"{key}{KEY_END}{secret}"


def tool_of(id: str) -> str:
    """Return the tool whose call became the task `id`, without reading the database: the scope of the tool is that of
    the task. A forged id names no stored task."""
    return id.partition(".")[2]


def key_of(id: str) -> str | None:
    """Return the key that the id begins with, or None."""
    key, end, _ = id.partition(KEY_END)
    return key if end else None


class CallTasks:
    """The tasks of one process.

    - `serves(principal)`: whether this process may take over the principal's tasks from a dead one.
    - `now()`: seconds since the epoch.
    - `server`: digest of the options that the work depends on; only an equal server takes over its tasks.
    - `notify(task)`: tells of a change, and returns whether a subscription was notified.
    - `record_end`: called in the transaction that stores the end of a task.
    - `on_read`: called with a task whose end a client has read; `on_lost`: with one whose process died.
    """

    def __init__(
        self,
        store: Store,
        processes: LiveProcesses,
        serves: Callable[[str], bool] = lambda principal: True,
        now: Callable[[], float] | None = None,
        server: str = "",
        *,
        notify: Callable[[StoredTask], bool] = lambda kept: False,
        record_end: "Callable[[Connection, StoredTask], None] | None" = None,
        on_read: Callable[[StoredTask], None] = lambda kept: None,
        on_lost: Callable[[StoredTask], None] = lambda kept: None,
    ) -> None:
        self.now = now or store.now
        self.rows = TaskRows(store, processes, lambda: self.now(), server, record_end)
        self.deadlines = DeadlineTimer(LONGEST)
        self.work: set[asyncio.Task[Any]] = set()
        self.is_closing = False
        self.notify = notify
        self.rerun: Callable[[CallTask, bytes], None] | None = None
        self._on_read = on_read
        self._on_lost = on_lost
        self._serves = serves
        self._running: dict[str, CallTask] = {}  # running, or not stored yet
        self._writes: set[asyncio.Task[None]] = set()

    async def begin(
        self,
        principal: str,
        tool: str,
        again: bytes | None,
        right: "GrantKey | None" = None,
        continuation: Continuation | None = None,
    ) -> CallTask:
        """Store and return a new task; `continuation`: what it only waits for. Raises ToolError if there are too many,
        or it can't be stored."""
        id = make_id(tool, None if continuation is None else continuation.key)
        message = None if continuation is None else continuation.message[:MAX_MESSAGE]
        try:
            kept = await self.rows.add(id, principal, LIFETIME, again, message)
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
        """Return the principal's tasks by id, and mark them as read."""
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
                    self._on_read(held.kept)
                    held.kept = replace(held.kept, read=True)
                found[id] = held.kept
                if not held.kept.is_live:
                    self.write(held.kept)  # an earlier write failed
        now = self.now()
        return {id: kept for id, kept in found.items() if kept.expires > now}

    async def cancel(self, deferral: CallTask, why: str = "cancelled by the client") -> None:
        """Cancel the work; its further output is dropped. What it only waits for goes on: see `stop`."""
        if deferral.kept.is_live and deferral.work is not None:
            deferral.work.cancel()
        await deferral.end("cancelled", why, None)

    async def stop(self, deferral: CallTask) -> None:
        """Cancel the work as its client wants, and end what it only waits for."""
        if deferral.stop is None or not deferral.kept.is_live:
            await self.cancel(deferral)
            return
        await self.cancel(deferral, STOPPED)
        try:
            await deferral.stop()
        except ToolError as error:  # above all a node that can't be reached
            log.warning("task %s is cancelled, but what it waited for goes on: %s", deferral.kept.id, error.text)

    async def cancel_all(self, principal: str) -> None:
        """Cancel all of a principal's tasks in this process."""
        for deferral in [held for held in self._running.values() if held.kept.principal == principal]:
            await self.cancel(deferral)

    def rights(self) -> Iterator["GrantKey"]:
        """Yield what the access of each running task depends on."""
        return (held.right for held in self._running.values() if held.right is not None)

    async def cancel_rights(self, rights: "Collection[GrantKey]") -> None:
        """Cancel the tasks running under these."""
        for deferral in [held for held in self._running.values() if held.right in rights]:
            await self.cancel(deferral, WITHDRAWN)

    async def forget(self, deferral: CallTask) -> None:
        """Drop a task that no client has heard of."""
        deferral.kept = replace(deferral.kept, status="cancelled")
        self._running.pop(deferral.kept.id, None)
        await asyncio.shield(self._write(self.rows.remove(deferral.kept.id)))

    def give_up(self, id: str) -> None:
        """End the work on a task that was removed, or that another process has taken over: it found this one dead."""
        held = self._running.pop(id, None)
        if held is None or not held.kept.is_live:
            return
        log.warning("task %s is given up: another process has it", id)
        held.kept = replace(held.kept, status="cancelled")
        if held.work is not None:
            held.work.cancel()

    async def resume_soon(self) -> None:
        """Take over the running tasks of dead processes, as soon as the state can be read."""
        while True:
            try:
                return await self.resume()
            except StateError as error:
                log.warning("tasks of processes that ended wait: %s", error)
            await asyncio.sleep(RESUME_PAUSE)

    async def resume(self) -> None:
        """Take over the running tasks of dead processes: run each again, or record that it failed."""
        if self.rows.is_empty or self.is_closing:
            return
        for kept, how in await self.rows.adopt(self._serves):
            held = self._running[kept.id] = CallTask(self, kept)
            if how is None or self.rerun is None:
                await held.end("failed", LOST, encode_value({"code": InternalError.code, "message": LOST}))
                self._on_lost(held.kept)
            else:
                log.info("running task %s again: its server process died", kept.id)
                self.rerun(held, how)

    async def close(self, grace: float) -> None:
        """Let running tasks finish within `grace` seconds, and cancel the rest: the next process finds them."""
        self.is_closing = True
        for held in self._running.values():
            if held.stop is not None and held.work is not None:
                held.work.cancel()  # it only waits, and the next process waits on
        if self.work:
            await asyncio.wait(list(self.work), timeout=grace)
        for work in list(self.work):
            work.cancel()
        for left in (self.work, self._writes):
            if left:
                await asyncio.wait(list(left), timeout=STOPPING)

    def track(self, work: "asyncio.Task[Any]") -> None:
        """Keep a reference to the work until it ends."""
        self.work.add(work)
        work.add_done_callback(self.work.discard)

    def write(self, kept: StoredTask) -> "asyncio.Task[None]":
        """Store the task; if that fails, this process keeps it until it ends."""
        return self._write(self._save(kept))

    def mark_read(self, seen: Iterable[StoredTask]) -> None:
        """Mark tasks as read by the client."""
        news = [kept for kept in seen if not kept.is_live and not kept.read]
        for kept in news:
            self._on_read(kept)
        if news:
            self._write(self._save_read([kept.id for kept in news]))

    async def _save(self, kept: StoredTask) -> None:
        try:
            written = await self.rows.save(kept, _full_failure(kept))
        except StateError:
            log.exception("the state of task %s could not be stored", kept.id)
            return
        if written is None:
            self.give_up(kept.id)
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
            log.warning("%d tasks could not be marked as read", len(ids))

    def _write(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Store the task in an asyncio task of its own, which a cancellation does not reach."""
        task = asyncio.get_running_loop().create_task(work)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return task


def _full_failure(kept: StoredTask) -> StoredTask | None:
    """Return the failure of a task without room for its result, or None if the client has the result already."""
    if kept.status != "completed" or kept.read:
        return None
    error = encode_value({"code": InternalError.code, "message": FULL})
    return replace(kept, status="failed", message=FULL, outcome=error)
