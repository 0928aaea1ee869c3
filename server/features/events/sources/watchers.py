"""Watch files and the output of commands for principals who wait for events about them.

A watcher runs for each filter, while somebody has interest in it. The others' cost nothing.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.base import asyncio_tasks
from toolgate.server.base.errors import StateError
from toolgate.server.features.events.log.errors import EventError
from toolgate.server.features.events.log.log import EventLog
from toolgate.server.features.events.log.rows import FLAG, EventFilter
from toolgate.server.features.events.sources import types as types
from toolgate.server.features.events.sources.output_watch import LineMatch, OutputWatch
from toolgate.server.protocol.errors import InvalidParams
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.output.run_record import Run
from toolgate.tools.workspace.output.text import shorten_command
from toolgate.tools.workspace.workspace import Workspace

MAX_WATCHERS = 1_000  # of all principals
MAX_OWN_WATCHERS = 64  # of one
REFRESH = 30.0  # seconds between two looks at who still has interest
SETTLE = 1.0  # seconds in which changes of files become one event
MAX_ENTRIES = 1_000  # of a folder
MAX_NAMES = 50  # in one event
MAX_COMMAND = 200  # characters of a command

log = logging.getLogger("toolgate.events")

Snapshot = dict[str, tuple[int, float]]  # name → size and time of the last change


class EventWatchers:
    """The watchers of one server.

    open_workspace: returns the workspace of a principal
    watch_path: yields at each change of a principal's file or folder from a time on
    serves: whether this process serves a principal
    prepare: what comes before a workspace is opened, where workspaces are at nodes
    """

    def __init__(
        self,
        events: EventLog,
        open_workspace: Callable[[str], Workspace],
        watch_path: Callable[[str, Path, float], AsyncIterator[object]],
        serves: Callable[[str], bool],
        prepare: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._prepare = prepare
        self._log = events
        self._open_workspace = open_workspace
        self._watch_path = watch_path
        self._serves = serves
        self._turn = asyncio.Lock()  # to look at output
        self._outputs: dict[str, tuple[OutputWatch, asyncio.Task[None]]] = {}  # by principal
        self._tasks: dict[EventFilter, asyncio.Task[None]] = {}
        self._begun: dict[EventFilter, float] = {}  # when each began: its interest is stored soon after
        self._kinds = {types.output_matched.name: self._watch_output, types.files_changed.name: self._watch_files}

    async def require(self, wanted: EventFilter) -> None:
        """Watch for these events, if that takes a watcher. Raises EventError without room, and InvalidParams for a path
        outside the workspace."""
        if wanted.type not in self._kinds or wanted in self._tasks:
            return
        own = Counter(each.principal for each in self._tasks)[wanted.principal]
        if own >= MAX_OWN_WATCHERS or len(self._tasks) >= MAX_WATCHERS:
            message = f"more than {MAX_OWN_WATCHERS} files and patterns are watched"
            raise EventError("ResourceExhausted", message, limit="watchers", max=MAX_OWN_WATCHERS)
        if self._prepare is not None:
            await self._prepare(wanted.principal)
        if wanted.type == types.files_changed.name:
            await self._check_path(wanted)
        await self._start(wanted)

    def forget(self, principal: str) -> None:
        """Watch for nothing more for a principal."""
        for wanted, task in self._tasks.items():
            if wanted.principal == principal:
                task.cancel()

    async def run_refreshes(self) -> None:
        """Watch for what is waited for in the state, and for nothing else, until cancelled."""
        while True:
            if self._tasks or self._log.store.has_flag(FLAG, ""):
                try:
                    await self._refresh()
                except StateError as error:
                    log.warning("what is waited for can't be read: %s", error)
            await asyncio.sleep(REFRESH)

    async def close(self) -> None:
        """End all watchers."""
        tasks = [*self._tasks.values(), *(task for _, task in self._outputs.values())]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    async def _refresh(self) -> None:
        rows, kinds = self._log.rows, list(self._kinds)
        oldest = asyncio.get_running_loop().time() - REFRESH
        before = {wanted for wanted, begun in self._begun.items() if begun < oldest}
        found = set(await self._log.store.read(lambda connection: rows.list_interests(connection, kinds)))
        for gone in before - found:
            self._tasks[gone].cancel()
        for wanted in found - self._tasks.keys():
            if self._serves(wanted.principal) and len(self._tasks) < MAX_WATCHERS:
                await self._start(wanted)

    async def _start(self, wanted: EventFilter) -> None:
        """Start a watcher. What happened while none ran, as before a restart, is a gap."""
        if self._log.has_interest(wanted.principal):
            rows = self._log.rows
            await self._log.store.transact(lambda connection: rows.note_gap(connection, wanted), alone="events")
        if wanted in self._tasks:  # another request has started it meanwhile
            return
        task = asyncio.get_running_loop().create_task(self._watch(wanted))
        self._tasks[wanted], self._begun[wanted] = task, asyncio.get_running_loop().time()
        task.add_done_callback(lambda _: self._forget(wanted))

    def _forget(self, wanted: EventFilter) -> None:
        del self._tasks[wanted], self._begun[wanted]

    async def _watch(self, wanted: EventFilter) -> None:
        """Run a watcher. One that fails is started again by a refresh, if somebody still waits for it."""
        try:
            await self._kinds[wanted.type](wanted, msgspec.json.decode(wanted.arguments))
        except Exception:  # above all a node that can't be reached
            log.warning("a watcher of %s for %s has ended", wanted.type, wanted.principal, exc_info=True)

    # -- files

    async def _check_path(self, wanted: EventFilter) -> None:
        arguments = msgspec.json.decode(wanted.arguments)
        try:
            workspace = self._open_workspace(wanted.principal)
            await workspace.resolve(_absolute(workspace, arguments["path"]))
        except ToolError as error:
            raise InvalidParams(f"'arguments' of {wanted.type}: {error.text}") from None

    async def _watch_files(self, wanted: EventFilter, arguments: dict[str, Any]) -> None:
        workspace = self._open_workspace(wanted.principal)
        path = _absolute(workspace, arguments["path"])
        since = time.time()
        before, _ = await _take_snapshot(workspace, path)
        async for _ in self._watch_path(wanted.principal, Path(path), since):
            after, is_cut = await _take_snapshot(workspace, path)
            changed = sorted(name for name, stamp in after.items() if before.get(name) != stamp)
            removed = sorted(before.keys() - after.keys())
            before = after
            if changed or removed:
                is_cut = is_cut or len(changed) > MAX_NAMES or len(removed) > MAX_NAMES
                payload = types.FileChangePayload(arguments["path"], changed[:MAX_NAMES], removed[:MAX_NAMES], is_cut)
                await self._log.emit(wanted.principal, types.files_changed, payload)
                await asyncio.sleep(SETTLE)

    # -- output

    async def _watch_output(self, wanted: EventFilter, arguments: dict[str, Any]) -> None:
        pattern, id = arguments["pattern"], arguments.get("id")
        watch, task = self._open_output(wanted.principal)
        watch.add(pattern, id)
        try:
            await asyncio.shield(task)  # ends only if it fails
        finally:
            watch.remove(pattern, id)
            if not watch.is_used:
                task.cancel()
                if self._outputs.get(wanted.principal) == (watch, task):
                    del self._outputs[wanted.principal]

    def _open_output(self, principal: str) -> "tuple[OutputWatch, asyncio.Task[None]]":
        """Return what looks at the output of a principal's commands, and its task."""
        found = self._outputs.get(principal)
        if found is None or found[1].done():
            watch = OutputWatch(self._open_workspace(principal), self._turn, partial(self._emit_match, principal))
            task = asyncio_tasks.start(asyncio.get_running_loop(), watch.run())
            found = self._outputs[principal] = watch, task
        return found

    async def _emit_match(self, principal: str, run: Run, match: LineMatch) -> None:
        command = shorten_command(run.command, MAX_COMMAND)
        payload = types.OutputMatchPayload(run.id, command, match.pattern, match.text)
        key = f"{run.id} {run.started} {match.place} {match.pattern}"
        await self._log.emit(principal, types.output_matched, payload, key)


def _absolute(workspace: Workspace, path: str) -> str:
    return str(workspace.root / path)


async def _take_snapshot(workspace: Workspace, path: str) -> tuple[Snapshot, bool]:
    """Return what can be seen of a file, or of a folder's entries, and whether that is not all."""
    try:
        found = await workspace.stat_path(path)
        if not found.is_folder:
            return {found.name: (found.size, found.modified)}, False
        entries, is_cut = await workspace.entries(path, MAX_ENTRIES)
    except ToolError:  # gone, or moved outside
        return {}, False
    return {entry.name: (entry.size, entry.modified) for entry in entries}, is_cut
