"""Wait for the command of a Bash call, and describe how it ended."""

import asyncio
import errno
import os
import re
import time
from pathlib import Path

import msgspec

from toolgate.tools.api.content import Output, Text
from toolgate.tools.api.context.context import Context
from toolgate.tools.workspace.output.ansi import clean_output
from toolgate.tools.workspace.output.text import describe_end, name_blank, with_notes
from toolgate.tools.workspace.workspace import Conclusion, Workspace, WorkspaceUnreachableError, output_path

MAX_TEXT = 30_000  # characters of output in a result: they use up a model's context
QUICK = 1.0  # seconds: a command that ends in them is started and concluded at once
THROTTLE = 0.25  # seconds between progress messages
TASK_POLL = 1.0  # seconds until a call that became a task reports progress
HEARTBEAT = 8.0  # seconds: the contract promises progress every 10
DISK_FULL = "the disk is full: little output is kept, and `cd` does not persist"
MAX_PROGRESS = 4_000  # bytes of new output in a progress message: the newest
REFUSED_WRITE = "(?i)" + "|".join(map(os.strerror, (errno.EROFS, errno.EACCES, errno.EPERM)))
READ_ONLY = "read-only while a plan is active: PlanMode exit comes first"
MOVES = r"(?:^|[\s;&|({])(?:cd|pushd|popd)(?:[\s;&|)}]|$)"  # commands that change the working directory
WAITS_UNSEEN = "Vim: Warning: Output is not to a terminal"  # other editors end by themselves
NO_EDITOR = "no editor can be shown here: change files by commands, such as sed -i"
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
        self.previous = ctx.caller_state.previous
        self.moves = False  # whether the command names one that changes the directory

    async def run(self, command: str) -> Output:
        """Run the command. Return its result when it has ended or the call is held no longer."""
        ctx, workspace = self.ctx, self.workspace
        self.moves = re.search(MOVES, command) is not None
        run_id, conclusion = await workspace.execute(
            command,
            wait=THROTTLE if ctx.wants_progress else min(QUICK, max(0.0, self._seconds_to_wait())),
            limit=MAX_TEXT,
            cwd=self.cwd,
            timeout=self.timeout / 1000,
            read_only=ctx.is_read_only,
            previous=self.previous,
        )
        if conclusion is None:
            try:
                await self._watch(run_id)
                conclusion = await workspace.conclude(run_id, limit=MAX_TEXT)
            except WorkspaceUnreachableError:
                raise  # it goes on there as a background task
            except BaseException:  # above all a cancellation
                await asyncio.shield(workspace.discard(run_id))
                raise
        return self._describe(conclusion)

    async def _watch(self, run_id: int) -> None:
        """Wait for the command to end, at most as long as the call is held; send progress if the caller wants it."""
        ctx, workspace = self.ctx, self.workspace
        offset = size = 0
        pause = 0.0  # the call has waited before the first progress
        while (left := self._seconds_to_wait()) > 0:
            if not ctx.wants_progress:
                if await workspace.wait_shell(run_id, left):
                    return
                continue
            if await workspace.wait_shell(run_id, min(pause, left)):
                return
            pause = THROTTLE
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

    def _describe(self, end: Conclusion) -> Output:
        """Return the result of a command that ended, timed out, left processes or goes on."""
        run, shown, path = end.run, end.excerpt, output_path(self.workspace, end.run)
        if end.refused is not None or not end.gone:
            self.ctx.list_changed()
        cwd, notes = self._update_cwd(end)
        if end.refused is not None:
            notes.append(f"what it left running was ended: {end.refused}")
        notes += self._describe_end(end)
        if run.timed_out and WAITS_UNSEEN in shown.text:
            notes.append(NO_EDITOR)
        if self.moves and end.cwd is None and path is not None:
            notes.append(f"the working directory stays {cwd}")
        if run.read_only and re.search(REFUSED_WRITE, shown.text):
            notes.append(READ_ONLY)
        hits = [why for why in run.hits if why != run.reason]
        notes += hits
        if path is None:
            notes.append(DISK_FULL)
        ran = BashResult(
            stdout_and_stderr=shown.text,
            exit_code=None if run.timed_out or not end.ended else run.exit_code,
            timed_out=run.timed_out,
            duration_ms=round(end.seconds * 1000),
            truncated=shown.dropped_characters > 0,
            output_file=str(path) if shown.dropped_characters and path else None,
            cwd=str(cwd),
            sandbox=self.workspace.sandbox,
            task_id=None if end.gone else run.id,
            note="\n".join(notes) or None,
        )
        failed = run.timed_out or end.refused or (hits and run.exit_code != 0) or run.status in ("killed", "lost")
        return Output([Text(name_blank(with_notes(shown.text, *notes)))], ran, is_error=bool(failed))

    async def _new_output(self, run_id: int, offset: int, size: int) -> tuple[str, int]:
        """Return output from `offset` on, the newest if it is long, and the next offset."""
        start = max(offset, size - MAX_PROGRESS)
        data = await self.workspace.read(run_id, start, size - start)
        begin = data.find(b"\n") + 1 if start > offset else 0  # skip to a line: an escape sequence may be cut
        text, used = clean_output(data[begin:], final=False)
        return f"…{text}" if start > offset else text, start + begin + used

    def _update_cwd(self, end: Conclusion) -> tuple[Path, list[str]]:
        """Return the command's working directory and the notes about it; move the caller there if the command moved. Of
        two commands at once, the one that stayed must not undo the other's `cd`."""
        notes = [note_missing_cwd(self.ctx, self.cwd)] if end.run.moved else []
        began = self.workspace.root if end.run.moved or self.cwd is None else self.cwd
        landed = end.cwd or began
        if landed != began:
            self.ctx.caller_state.cwd = landed
        if end.previous != self.previous and end.previous is not None:
            self.ctx.caller_state.previous = end.previous
        return landed, notes

    def _describe_end(self, end: Conclusion) -> list[str]:
        """Return notes about how the command ended, if there is something to say."""
        run = end.run
        notes: list[str] = []
        if run.timed_out:
            ways = [f"a larger timeout (at most {MAX_TIMEOUT} ms)"] * (self.timeout < MAX_TIMEOUT)
            ways += ["BackgroundBash, once PlanMode exit has ended the plan" if run.read_only else "BackgroundBash"]
            notes.append(f"timed out after {self.timeout} ms; for what takes longer use {', or '.join(ways)}")
        elif run.status in ("killed", "lost"):
            notes.append(f"the command {describe_end(run)}")
        elif end.ended and run.exit_code:
            notes.append(f"exit code: {run.exit_code}")
        use = f"background task {run.id}: ReadBgOutput reads on"
        use += "; it stays read-only" if run.read_only else ", KillBgTask ends it"  # which a plan refuses
        if not end.ended:
            hold = f"{self.ctx.settings.hold:g} s"
            notes.append(f"still running after {hold}; goes on, with its timeout of {self.timeout} ms, as {use}")
        elif not end.gone:
            notes.append(f"left running: {run.left} process{'es' if run.left != 1 else ''}, now {use}")
        return notes


def note_missing_cwd(ctx: Context, asked: Path | None) -> str:
    """Return a note that the directory is gone, and move the caller to the root."""
    if ctx.caller_state.cwd == asked:
        ctx.caller_state.cwd = None
    return f"the working directory {asked} is gone: ran in {ctx.workspace.root}"
