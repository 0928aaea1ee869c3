"""Wait for the command of a Bash call, and describe how it ended."""

import errno
import os
import re
import time
from functools import partial
from pathlib import Path

import msgspec

from toolgate.tools.api.content import Output, Text
from toolgate.tools.api.context import Context
from toolgate.tools.workspace.ansi import clean_output
from toolgate.tools.workspace.output_text import Excerpt, describe_end, make_excerpt, name_blank, with_notes
from toolgate.tools.workspace.spool import Run
from toolgate.tools.workspace.workspace import Workspace

MAX_TEXT = 30_000  # characters of output in a result: they use up a model's context
LINGER = 0.1  # seconds for children such as `> >(tee log)` to end by themselves
SETTLE = 5.0  # seconds for a killed tree to end: SIGTERM, 2 s, SIGKILL, and some margin
THROTTLE = 0.25  # seconds between progress messages
TASK_POLL = 1.0  # seconds until a call that became a task reports progress
HEARTBEAT = 8.0  # seconds: the contract promises progress every 10
DISK_FULL = "the disk is full: little output is kept, and `cd` does not persist"
MAX_PROGRESS = 4_000  # bytes of new output in a progress message: the newest
REFUSED_WRITE = re.compile("|".join(map(os.strerror, (errno.EROFS, errno.EACCES, errno.EPERM))), re.IGNORECASE)
READ_ONLY = "read-only while a plan is active: PlanMode exit comes first"
MAX_TIMEOUT = 600_000  # milliseconds


class BashResult(msgspec.Struct, frozen=True):
    stdout_and_stderr: str
    exit_code: int | None
    timed_out: bool
    duration_ms: int
    truncated: bool
    output_file: str | None
    cwd: str
    sandbox: str
    task_id: int | None
    note: str | None  # the text's remarks besides the output


class BashCall:
    """One Bash call. `timeout` is in milliseconds."""

    def __init__(self, ctx: Context, timeout: int) -> None:
        self.ctx = ctx
        self.workspace = ctx.service(Workspace)
        self.timeout = timeout
        self.started_at = time.monotonic()
        self.cwd = ctx.caller_state.cwd  # where to run; a concurrent call may change it

    async def watch(self, run_id: int) -> None:
        """Wait for the command to end, at most as long as the call is held; send progress if the caller wants it."""
        ctx, workspace = self.ctx, self.workspace
        offset = size = 0
        while (left := self._seconds_to_wait()) > 0:
            if not ctx.wants_progress:
                if await workspace.wait_shell(run_id, left):
                    return
                continue
            if await workspace.wait_shell(run_id, min(THROTTLE, left)):
                return
            before = size
            size = await workspace.wait_output(run_id, size, HEARTBEAT if ctx.hold is None else min(HEARTBEAT, left))
            text, offset = await self._new_output(run_id, offset, size)
            if not text and (size > before or await workspace.wait_shell(run_id, 0.0)):
                continue  # an incomplete character, or the command ended
            elapsed = time.monotonic() - self.started_at
            await ctx.progress(elapsed, None, text or f"running for {elapsed:.0f} s")
        await workspace.wait_shell(run_id, 0.0)

    def _seconds_to_wait(self) -> float:
        """Return the seconds until the next check: a call may become a task meanwhile, or fail to."""
        if self.ctx.hold is None:
            return TASK_POLL
        return self.started_at + self.ctx.hold - time.monotonic()

    async def result(self, run_id: int) -> Output:
        """Return the result of a command that ended, timed out, left processes or goes on."""
        workspace = self.workspace
        run = await workspace.run(run_id)
        dying = run.reason is not None  # killed by us: its remains are no background task
        ended = await workspace.wait_shell(run_id, SETTLE if dying else 0.0)
        duration = round((time.monotonic() - self.started_at) * 1000)
        path = workspace.output_path(run_id)
        is_ending = dying or run.left == 0 or run.read_only
        gone = ended and await workspace.wait(run_id, SETTLE if is_ending else LINGER)
        is_welcome = gone or await workspace.keep(run_id)  # before any other wait: from now on its end makes a notice
        if not gone:
            self.ctx.list_changed()
            gone = not is_welcome
        cwd, notes = await self._update_cwd(run)
        if not is_welcome:
            notes.append(f"what it left running was ended: {workspace.limits.too_many_tasks}")
        shown = await self._take_excerpt(run, path, gone)
        notes += self._describe_end(run, ended, gone)
        if run.read_only and REFUSED_WRITE.search(shown.text):
            notes.append(READ_ONLY)
        hits = [why for why in workspace.limits.find_reached(run, shown.text) if why != run.reason]
        notes += hits
        if path is None:
            notes.append(DISK_FULL)
        ran = BashResult(
            stdout_and_stderr=shown.text,
            exit_code=None if run.timed_out or not ended else run.exit_code,
            timed_out=run.timed_out,
            duration_ms=duration,
            truncated=shown.dropped_characters > 0,
            output_file=str(path) if shown.dropped_characters and path else None,
            cwd=str(cwd),
            sandbox=workspace.sandbox,
            task_id=None if gone else run_id,
            note="\n".join(notes) or None,
        )
        failed = run.timed_out or not is_welcome or (hits and run.exit_code != 0) or run.status in ("killed", "lost")
        return Output([Text(name_blank(with_notes(shown.text, *notes)))], ran, is_error=bool(failed))

    async def _new_output(self, run_id: int, offset: int, size: int) -> tuple[str, int]:
        """Return output from `offset` on, the newest if it is long, and the next offset."""
        start = max(offset, size - MAX_PROGRESS)
        data = await self.workspace.read(run_id, start, size - start)
        begin = data.find(b"\n") + 1 if start > offset else 0  # skip to a line: an escape sequence may be cut
        text, used = clean_output(data[begin:], final=False)
        return f"…{text}" if start > offset else text, start + begin + used

    async def _take_excerpt(self, run: Run, path: Path | None, gone: bool) -> Excerpt:
        """Return the output to show, and remove what is not needed after that."""
        workspace = self.workspace
        size = await workspace.size(run.id)
        shown = await make_excerpt(partial(workspace.read, run.id), size, MAX_TEXT, _note_rest(run, path), final=gone)
        if not gone:
            await workspace.mark_read(run.id, shown.used_bytes)
        elif shown.dropped_characters and path:
            await workspace.keep(run.id)
        else:
            await workspace.forget(run.id)
        return shown

    async def _update_cwd(self, run: Run) -> tuple[Path, list[str]]:
        """Return the command's working directory and the notes about it; move the caller there if the command moved. Of
        two commands at once, the one that stayed must not undo the other's `cd`."""
        root = self.workspace.root
        notes = [note_missing_cwd(self.ctx, self.cwd)] if run.moved else []
        began = root if run.moved or self.cwd is None else self.cwd
        landed = await self.workspace.read_cwd(run.id) or began
        if landed != began:
            self.ctx.caller_state.cwd = landed
        return landed, notes

    def _describe_end(self, run: Run, ended: bool, gone: bool) -> list[str]:
        """Return notes about how the command ended, if there is something to say."""
        notes: list[str] = []
        if run.timed_out:
            more = f"a larger timeout (at most {MAX_TIMEOUT} ms), or " if self.timeout < MAX_TIMEOUT else ""
            notes.append(f"timed out after {self.timeout} ms; for what takes longer use {more}BackgroundBash")
        elif run.status in ("killed", "lost"):
            notes.append(f"the command {describe_end(run)}")
        elif ended and run.exit_code:
            notes.append(f"exit code: {run.exit_code}")
        use = f"background task {run.id}: ReadBgOutput reads on, KillBgTask ends it"
        if not ended:
            hold = f"{self.ctx.settings.hold:g} s"
            notes.append(f"still running after {hold}; goes on, with its timeout of {self.timeout} ms, as {use}")
        elif not gone:
            notes.append(f"left running: {run.left} process{'es' if run.left != 1 else ''}, now {use}")
        return notes


def _note_rest(run: Run, path: Path | None) -> str:
    """Say where the rest of a run's output is."""
    if path is None:
        return "they are not in a file"
    return f"all of it is in {path}" if run.kept is None else f"the first {run.kept:,} bytes of it are in {path}"


def note_missing_cwd(ctx: Context, asked: Path | None) -> str:
    """Return a note that the directory is gone, and move the caller to the root."""
    if ctx.caller_state.cwd == asked:
        ctx.caller_state.cwd = None
    return f"the working directory {asked} is gone: ran in {ctx.workspace.root}"
