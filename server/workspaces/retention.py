"""Archive or delete the folders of principals that are gone or long idle, as the options say."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import msgspec

from toolgate.server.base.errors import StateError
from toolgate.server.workspaces.folders import PrincipalFolders, WorkspaceArchive, WorkspaceInUseError
from toolgate.server.workspaces.last_used import LastUsed
from toolgate.tools.api.concurrency.threads import Threads

EVERY = 3_600.0  # seconds between two runs
AGAIN = 60.0  # seconds after a run that the machine cut short: no descriptor was free, say
KEEP, ARCHIVE, DELETE = "keep", "archive", "delete"

log = logging.getLogger("toolgate.cleaning")


class RetentionPolicy(msgspec.Struct, frozen=True):
    """What happens to a workspace, after how many seconds."""

    action: str = KEEP
    after: float = 0.0

    def is_due(self, since: float, now: float) -> bool:
        return self.action != KEEP and now - since >= self.after


class WorkspaceCleaner:
    """Cleans the workspaces of one state.

    list_gone: the principals that can't sign in any more; None where that is unknown
    end: ends what a principal has running, and closes its folders
    """

    def __init__(
        self,
        state: Path,
        *,
        idle: RetentionPolicy,
        gone: RetentionPolicy,
        list_gone: Callable[[], Awaitable[Collection[str] | None]],
        end: Callable[[str], Awaitable[None]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.folders = PrincipalFolders(state)
        self.uses = LastUsed(state / "uses", now)
        self._idle = idle
        self._gone = gone
        self._who_is_gone = list_gone
        self._end = end
        self._now = now
        self._thread = Threads(1)  # an archive takes minutes, and must not delay the end of the server

    def note_call(self, name: str) -> str | None:
        """Note a call of `name` now. Return a message for it, once."""
        try:
            return self.uses.note_call(name)
        except OSError as error:
            log.warning("the call of %s can't be noted: %s", name, error.strerror)
            return None

    async def run(self) -> None:
        """Clean every hour, until cancelled."""
        while True:
            pause = EVERY
            try:
                await self.clean()
            except WorkspaceInUseError as busy:
                log.info("%s", busy)
            except (OSError, StateError) as error:
                pause = AGAIN
                log.warning("workspaces can't be cleaned: %s; the next try is in %d s", error, pause)
            except Exception:
                log.exception("workspaces can't be cleaned; the next try is in %d s", EVERY)
            await asyncio.sleep(pause)

    async def clean(self) -> None:
        """Clean what is due, and what earlier runs left. Raises WorkspaceInUseError."""
        gone = await self._who_is_gone()
        with self.folders.hold_lock():
            for aside in self.folders.list_leaving():
                try:
                    await self._finish(aside)  # its removal was interrupted
                except OSError as error:
                    log.warning("%s can't be archived or removed: %s; next try in %d s", aside.name, error, EVERY)
            for name in self.folders.list_removable():
                if self._due(name, gone) is not None:
                    await self._put_away(name, gone)

    def _due(self, name: str, gone: Collection[str] | None) -> tuple[str, str] | None:
        """Return the action that is due now and the reason, or None."""
        now = self._now()
        last = self.uses.last_call(name)
        if gone is not None and name in gone:
            if self._gone.is_due(self.uses.gone_since(name), now):
                return self._gone.action, "when you could not sign in any more"
        elif gone is not None:
            self.uses.mark_present(name)
        if self._idle.is_due(last, now):
            return self._idle.action, f"after {int(now - last) // 86_400} days without a call"
        return None

    async def _put_away(self, name: str, gone: Collection[str] | None) -> None:
        try:
            await self._end(name)
            due = self._due(name, gone)  # the principal may have called meanwhile
            if due is not None:
                self._leave_message(name, *due, await self._remove_workspace(name, due[0]))
        except OSError as error:
            log.warning("the workspace of %s can't be archived or removed: %s; next try in %d s", name, error, EVERY)

    async def _remove_workspace(self, name: str, what: str) -> WorkspaceArchive | None:
        """Return the archive, if there is one. Raises OSError."""
        aside = self.folders.set_aside(name)
        if what == DELETE:
            self.folders.mark_for_removal(aside)
        return await self._finish(aside)

    async def _finish(self, aside: Path) -> WorkspaceArchive | None:
        """Archive the workspace if it is still there, and remove the rest. Return the archive. Raises OSError."""
        archive = None
        if (aside / "workspace").exists():
            archive = await self._thread.run(lambda: self.folders.archive_workspace(aside))
        try:
            await self._thread.run(lambda: self.folders.remove(aside))
        except OSError as error:
            log.warning("%s can't be removed: %s; the next try is in %d s", aside, error, EVERY)
        return archive

    def _leave_message(self, name: str, what: str, why: str, archive: WorkspaceArchive | None) -> None:
        if archive is not None:
            text = f"your workspace was archived {why}, and you have a new one: {archive}"
        else:
            lost = ", which was empty, was" if what == ARCHIVE else " and all its files were"
            text = f"your workspace{lost} removed {why}"
        self.uses.leave_message(name, text)
        log.info("the workspace of %s was cleaned (%s): %s", name, what, archive or "nothing kept")
