"""Report the end of each background task as an event, once: its record says so only after the event is stored.

An end that is not confirmed is reported again by a later server, under the same id. So it is told if the server, the
node or the database fails at any moment between.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine

from toolgate.server.base.errors import StateError
from toolgate.server.features.events.log.log import EventLog
from toolgate.server.features.events.log.rows import FLAG
from toolgate.server.features.events.sources import types as types
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.output.ansi import clean_output
from toolgate.tools.workspace.output.run_record import Run, TaskEnd
from toolgate.tools.workspace.output.text import shorten_command
from toolgate.tools.workspace.workspace import WorkspaceUnreachableError
from toolgate.tools.workspace.workspaces import IsThere, Workspaces

MAX_COMMAND = 200  # characters of a command
TAIL = 4_096  # bytes of output of which the last lines are told
LINES = 20  # of them: a model sees how a build ended, and reads the rest with ReadBgOutput
PAUSE = 1.0  # seconds until a state or a node that can't be reached is asked again
CLOSE_WITHIN = 1.0  # seconds for the last ends

log = logging.getLogger("toolgate.events")


class CommandEnds:
    """The ends of all principals' background tasks. `serves(principal)`: this process serves it."""

    def __init__(self, events: EventLog, workspaces: Workspaces, serves: Callable[[str], bool]) -> None:
        self._log = events
        self._workspaces = workspaces
        self._serves = serves
        self._reports: set[asyncio.Task[None]] = set()
        self._searches: set[asyncio.Task[None]] = set()

    def report(self, principal: str, end: TaskEnd) -> None:
        """Report an end, and confirm it once that is stored."""
        if end.run.status == "running" or not self._log.has_interest(principal):
            end.confirm()
        else:
            _start(self._reports, self._report(principal, end))

    def search(self, is_there: IsThere) -> None:
        """Look for ends that an earlier server or node did not report, of the principals that are there."""
        _start(self._searches, self._search(is_there))

    async def _search(self, is_there: IsThere) -> None:
        """Open the workspaces of all who wait for the ends of commands: these report what is not confirmed."""
        if not self._log.store.has_flag(FLAG, ""):
            return
        for principal in await self._list_waiting():
            if self._serves(principal):
                await self._open(principal, is_there)

    async def _list_waiting(self) -> list[str]:
        kinds, rows = [types.command_ended.name], self._log.rows
        while True:
            try:
                found = await self._log.store.read(lambda connection: rows.list_interests(connection, kinds))
                return list(dict.fromkeys(wanted.principal for wanted in found))
            except StateError as error:
                log.warning("commands that ended with the server before are not told yet: %s", error)
            await asyncio.sleep(PAUSE)

    async def _open(self, principal: str, is_there: IsThere) -> None:
        """Open a workspace. A state or a node that can't be reached is asked again."""
        while True:
            try:
                if await is_there(principal):
                    await self._workspaces.get_or_open(principal).list()
            except (StateError, WorkspaceUnreachableError) as error:
                log.debug("commands of %s are looked at later: %s", principal, error)
                await asyncio.sleep(PAUSE)
                continue
            except (ToolError, OSError) as error:
                log.warning("commands of %s that ended with the server before are not told: %s", principal, error)
            return

    async def _report(self, principal: str, end: TaskEnd) -> None:
        run = end.run
        command = shorten_command(run.command, MAX_COMMAND)
        lines = await self._read_last_lines(principal, run)
        if run.misses_ends:
            self._log.writer.note_gap((principal, types.command_ended.name))
        payload = types.CommandEndPayload(run.id, command, run.status, run.exit_code, run.runtime_ms, lines)
        if await self._log.emit_durable(principal, types.command_ended, payload, f"{run.id} {run.started}"):
            end.confirm()

    async def _read_last_lines(self, principal: str, run: Run) -> str:
        workspace = self._workspaces.find(principal)
        if workspace is None:
            return ""
        try:
            size = await workspace.size(run.id)
            begin = max(0, size - TAIL)
            data = await workspace.read(run.id, begin, TAIL)
        except (KeyError, ToolError, OSError):  # forgotten meanwhile, damaged, or its node can't be reached
            return ""
        if begin:
            data = data[data.find(b"\n") + 1 :]
        text, _ = clean_output(data, final=True)
        return "\n".join(text.splitlines()[-LINES:])

    async def close(self) -> None:
        """Wait a while for the events of commands that have just ended. The rest is for the next server."""
        for task in self._searches:
            task.cancel()
        if self._reports:
            await asyncio.wait(list(self._reports), timeout=CLOSE_WITHIN)
        for task in self._reports:
            task.cancel()
        await asyncio.gather(*self._searches, *self._reports, return_exceptions=True)


def _start(tasks: set[asyncio.Task[None]], work: Coroutine[object, object, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
