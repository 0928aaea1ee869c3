"""Write the state to one file, and restore it (`toolgate backup`, `toolgate restore`).

A server may run during a backup, but not during a restore.
"""

import asyncio
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import IO

from toolgate.server.app.features import build_host, list_state_parts, open_store
from toolgate.server.base.errors import UsageError
from toolgate.server.base.progress import TerminalProgress, terminal_progress
from toolgate.server.base.text import describe_os_error, escape_unprintable
from toolgate.server.cli.commands.store_command import refuse_other_owner
from toolgate.server.cli.terminal.output import format_count
from toolgate.server.config.load import Config
from toolgate.server.state import lock
from toolgate.server.state.backup import read, write
from toolgate.server.state.backup.manifest import DATABASE, BackupError, Manifest
from toolgate.server.state.backup.restore import (
    OF_PEOPLE,
    defer_signals,
    list_people,
    staging_folder,
    sync_folder,
    undo_unfinished,
)
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.output.run_output import FULL

DONE, FAULT = 0, 1
STREAM = "-"  # standard input or output
TEMP_PREFIX = ".toolgate-backup-"
SHOWN = 5  # names of people's folders in a message
STALE = 86_400.0  # seconds: no backup takes a day


def backup(config: Config, *, file: str, with_workspaces: bool) -> int:
    """Write the state to a file. Raises UsageError."""
    refuse_other_owner(config)
    if not config.state.is_dir():
        raise UsageError(f"--state: there is no folder {config.state}")
    to_stream = file == STREAM
    if to_stream and sys.stdout.isatty():
        raise UsageError("backup: a terminal can't take a backup: name a file, or use a pipe")
    write_to = _to_stream if to_stream else _to_file
    return _run(config, lambda progress: write_to(config, file, with_workspaces, progress))


def restore(config: Config, *, file: str | None, replace: bool, undo: bool = False) -> int:
    """Restore the state from a file, or undo a restore that was interrupted. Raises UsageError."""
    refuse_other_owner(config)
    if undo:
        if file is not None or replace:
            raise UsageError("restore: --undo takes neither FILE nor --replace: it only puts back what was there")
        return _run(config, lambda _: _undo_restore(config.state))
    if file is None:
        raise UsageError("restore: FILE is missing: a backup, or - for standard input")
    if file == STREAM and sys.stdin.isatty():
        raise UsageError("restore: a terminal can't give a backup: name a file, or use a pipe")
    if config.state.exists() and not config.state.is_dir():
        raise UsageError(f"--state: {config.state} is not a folder")
    return _run(config, lambda progress: _restore_from(config, file, replace, progress))


def _to_file(config: Config, file: str, workspaces: bool, progress: TerminalProgress) -> None:
    path = Path(file)
    if path.exists() or path.is_symlink():
        raise BackupError(f"{path} already exists: name another file")
    if not path.parent.is_dir():
        raise BackupError(f"there is no folder {path.parent}: create it first")
    with _temp_folder(path.parent) as temp:
        draft = temp / "backup"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as raw:
            manifest = _write(config, raw, temp, workspaces, progress)
            raw.flush()
            os.fsync(raw.fileno())
        _publish(draft, path)
    print(f"{path}: {path.stat().st_size:,} bytes, {_summarize(manifest)}")
    _note_others(config, manifest)
    print("this file holds the server's keys: keep it as private as the state folder", file=sys.stderr)
    _check_whole(manifest)


def _to_stream(config: Config, _file: str, workspaces: bool, progress: TerminalProgress) -> None:
    output = os.fstat(sys.stdout.fileno())
    if stat.S_ISREG(output.st_mode) and output.st_mode & (stat.S_IRGRP | stat.S_IROTH):
        print("other users can read the output file: chmod 600 it, and set umask 077 next time", file=sys.stderr)
    try:
        with _temp_folder(config.state) as temp:
            manifest = _write(config, sys.stdout.buffer, temp, workspaces, progress)
            sys.stdout.buffer.flush()
    except BrokenPipeError:  # unlike a shortened list, half a backup is worthless
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise BackupError("the reader closed the pipe: the backup is incomplete") from None
    print(f"backup: {_summarize(manifest)}", file=sys.stderr)
    _note_others(config, manifest)
    _check_whole(manifest)


def _note_others(config: Config, manifest: Manifest) -> None:
    """Print where the other workspaces are, if some are elsewhere and the backup is to have workspaces."""
    if manifest.schema is None or not manifest.workspaces:
        return

    async def read() -> list[str]:
        async with aclosing(open_store(config, upgrades=False)) as store:
            return [note for part in list_state_parts() for note in await part.list_backup_notes(store)]

    try:
        notes = asyncio.run(read())
    except ToolError:  # a database of an older version
        return
    for note in notes:
        print(note, file=sys.stderr)


def _check_whole(manifest: Manifest) -> None:
    """Raise BackupError if something is missing; the backup is valid for the rest."""
    for name, what in manifest.omitted.items():
        print(f"{name} is in it {what}", file=sys.stderr)
    if manifest.missing:
        missing = "; ".join(f"{name} ({why})" for name, why in manifest.missing.items())
        raise BackupError(f"the backup is complete except for {missing}")


@contextmanager
def _temp_folder(folder: Path) -> Generator[Path]:
    """Make a folder for the unfinished backup, and remove those of killed backups: they hold keys."""
    for left in folder.glob(f"{TEMP_PREFIX}*"):
        if time.time() - left.lstat().st_mtime > STALE:
            shutil.rmtree(left, ignore_errors=True)
    temp = tempfile.mkdtemp(prefix=TEMP_PREFIX, dir=folder)
    try:
        yield Path(temp)
    finally:
        shutil.rmtree(temp, ignore_errors=True)


def _write(config: Config, raw: IO[bytes], temp: Path, workspaces: bool, progress: TerminalProgress) -> Manifest:
    hold = lock.hold_exclusive if workspaces else lock.hold_shared
    with hold(config.state):  # or a restore could replace the state halfway
        transfer = build_host(config)[0].transfer()
        snapshots = [each for part in list_state_parts() for each in part.list_snapshots(config.state)]
        return write.write_backup(
            config.state, transfer, snapshots, raw, temp, workspaces=workspaces, progress=progress
        )


def _publish(draft: Path, path: Path) -> None:
    """Give the finished file its name. Raises BackupError if that exists."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise BackupError(f"{path} exists since a moment ago: name another file") from None
    except OSError:  # a file system without links
        draft.rename(path)
    sync_folder(path.parent)


def _restore_from(config: Config, file: str, replace: bool, progress: TerminalProgress) -> None:
    state: Path = config.state
    with (
        open(0, "rb", closefd=False) if file == STREAM else open(file, "rb") as raw,
        staging_folder(state, replace=replace) as staging,
    ):
        manifest = read.extract_backup(raw, staging / "come", progress)
        with defer_signals():
            aside = build_host(config)[0].transfer().replace(staging, replace=replace)
            _report_restore(state, manifest, aside)


def _undo_restore(state: Path) -> None:
    if not state.is_dir():
        raise BackupError(f"--state: there is no folder {state}")
    if undo_unfinished(state):
        print(f"the interrupted restore was undone: {state} has what it had before")
    else:
        print(f"no restore of {state} was interrupted: nothing was changed")


def _report_restore(state: Path, manifest: Manifest, aside: Path | None) -> None:
    print(f"restored to {state}: {_summarize(manifest)}")
    if aside is not None:
        print(_describe_replaced(aside), file=sys.stderr)
    if manifest.missing:
        names = ascii(", ".join(manifest.missing))[1:-1]
        print(f"missing, since it could not be packed: {names}", file=sys.stderr)
    if manifest.schema is not None:
        warning = "access that was revoked since that backup is valid again: toolgate token revoke all ends all access"
        print(warning, file=sys.stderr)


def _describe_replaced(aside: Path) -> str:
    """Return what lies in the folder of what was replaced, and what to do with it."""
    people, rest = list_people(aside), sorted(set(os.listdir(aside)) - set(OF_PEOPLE))
    lines: list[str] = []
    if rest:
        secret = "; it holds keys or passwords, so keep it private" if {"keys", DATABASE} & set(rest) else ""
        lines.append(f"what the backup replaced is in {aside}: {', '.join(rest)}{secret}")
    if people:
        named = ", ".join(people[:SHOWN]) + (", …" if len(people) > SHOWN else "")
        lines.append(f"people's files that the backup replaced are in {aside}: {escape_unprintable(named)}")
        lines.append("that is the only copy of them: toolgate doctor shows how to move them back")
    else:
        lines.append("no file of a person was moved")
    return "\n".join(lines)


def _summarize(manifest: Manifest) -> str:
    people = sum(name.startswith("workspaces/") for name in manifest.files)
    held = format_count(people, "workspace") if manifest.workspaces else "without workspaces"
    schema = "no database" if manifest.schema is None else f"database version {manifest.schema}"
    return f"{format_count(len(manifest.files), 'file')}, {schema}, {held}, of {ascii(manifest.made)[1:-1][:40]}"


def _run(config: Config, work: Callable[[TerminalProgress], None]) -> int:
    """Run the work, print errors and return the exit code. SIGTERM cleans up as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        work(terminal_progress(config.environment))
        return DONE
    except (BackupError, ToolError, TimeoutError) as error:
        reason = str(error)
    except OSError as error:
        reason = describe_os_error(error)
        if error.errno in FULL:
            reason = f"the disk is full, and nothing was left behind: {error.filename or os.strerror(error.errno)}"
    finally:
        signal.signal(signal.SIGTERM, before)
    print(f"toolgate: {reason}", file=sys.stderr)
    return FAULT
