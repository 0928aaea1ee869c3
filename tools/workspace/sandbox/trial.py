"""Try a sandbox the way calls use it: one command in a workspace, its output, and its recorded directory.

Everything blocks. The folders of the trial are made beside the principals' ones, so a folder that keeps a user out
fails the trial too.
"""

import errno
import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from toolgate.tools.workspace.commands import cwd_tracking
from toolgate.tools.workspace.output.spool import CWD_FOLDER, Spool
from toolgate.tools.workspace.processes.process import CommandStartError, Launch
from toolgate.tools.workspace.sandbox.process import SandboxProcess

TRY_WITHIN = 10.0  # seconds for each half; it takes some hundredths
PREFIX = ".trial-"  # backups skip names in the state folder that begin with a dot
COMMAND = ": >written && echo ready"  # builtins of bash alone: PATH may hold no programs
OUTPUT = b"ready\n"
NO_ROOM = os.strerror(errno.ENOSPC)
MAX_SAID = 4096  # bytes of output, or of the error

BuildSandbox = Callable[[Path, Path, Path], SandboxProcess]  # of a workspace, a spool and its CWD_FOLDER


def run_trial(build: BuildSandbox, place: Path | None, uid: int | None, path: str) -> str | None:
    """Return what went wrong, or None.

    `place`: the parent folder of the trial's; None means a temporary one. `uid`: the user of commands, if not the
    server's. `path`: their PATH. Raises OSError if the disk is full or root lacks a right.
    """
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place) as made:
        folder = Path(made).resolve()
        folder.chmod(0o711)
        root, spool = folder / "workspace", folder / "spool"
        places = spool / CWD_FOLDER
        for part in (root, spool, places):
            part.mkdir(mode=0o700)
            if uid is not None:
                os.chown(part, -1 if part is spool else uid, uid)
        process = build(root, spool, places)
        return _run_in_sandbox(process, lambda channel: _run_command(channel, process, root, spool, places, uid, path))


def find_closed_folder(folder: Path, uid: int) -> Path | None:
    """Return the first of `folder` and its parents whose mode keeps `uid` from entering."""
    for each in reversed((folder.resolve(), *folder.resolve().parents)):
        try:
            found = each.stat()
        except OSError:
            return None
        if not found.st_mode & (stat.S_IXUSR if found.st_uid == uid else stat.S_IXOTH):
            return each
    return None


def _run_in_sandbox(process: SandboxProcess, then: Callable[[socket.socket], str | None]) -> str | None:
    """Start the sandbox, call `then` with the channel of its zygote, and end it."""
    channel, theirs = socket.socketpair()
    report, its_end = socket.socketpair()
    report.settimeout(TRY_WITHIN)
    output_text = b""
    with channel, report:
        with theirs, its_end:
            try:
                zygote = process.spawn(theirs, its_end)
            except OSError as error:
                return error.strerror or str(error)
        try:
            try:
                while not output_text.endswith(b"ready") and (piece := report.recv(MAX_SAID)):
                    output_text += piece
            except TimeoutError:
                output_text += b" it took too long"
            if output_text.endswith(b"ready"):
                return then(channel)
        finally:
            zygote.kill()
            zygote.wait()
    return _one_line(output_text) or "it can't be run"


def _run_command(
    channel: socket.socket, process: SandboxProcess, root: Path, folder: Path, places: Path, uid: int | None, path: str
) -> str | None:
    """Run a command as a workspace does: with a file that bash reads first, and a file for its directory."""
    spool = Spool(folder)
    spool.reader = uid
    spool.open()
    try:
        run = spool.claim(COMMAND, None, background=False)
        spool.create_output(run).close()
        rc, word = spool.share_file(cwd_tracking.RC_NAME, cwd_tracking.RC), places / str(run.id)
        environment = cwd_tracking.add_cwd_trap(process.variables({"PATH": path} if path else {}), rc, word)
        try:
            launch = Launch(["bash", "-c", COMMAND], root, root, environment)
            failure, output_text = _run_in_zygote(channel, launch.encode())
        except CommandStartError as error:
            return str(error)
    finally:
        spool.close()
    if failure is not None:
        return failure
    if NO_ROOM.encode() in output_text:
        return NO_ROOM
    if output_text != OUTPUT:
        return _one_line(output_text) or "a command in it ended without output"
    if not (root / "written").exists() or not word.exists():
        return "a command in it could not write to its workspace"
    return None


def _run_in_zygote(channel: socket.socket, request: bytes) -> tuple[str | None, bytes]:
    """Run a command by the zygote; return why it did not start, and its output. Raises OSError."""
    control, theirs = socket.socketpair()
    output, write_end = os.pipe()
    received = b""
    with control, os.fdopen(output, "rb", buffering=0) as reader:
        with theirs:
            socket.send_fds(channel, [b"+"], [theirs.fileno(), write_end])
        os.close(write_end)
        deadline = time.monotonic() + TRY_WITHIN
        control.settimeout(TRY_WITHIN)
        control.sendall(request)
        while not received.endswith(b"gone\n") and (left := deadline - time.monotonic()) > 0:
            control.settimeout(left)
            piece = control.recv(MAX_SAID)
            if not piece:
                break
            received += piece
        os.set_blocking(output, False)
        output_text = reader.read(MAX_SAID) or b""
    for line in received.splitlines():
        if line.startswith(b"failed "):
            return os.fsdecode(line.removeprefix(b"failed ")), b""
    return None if received.endswith(b"gone\n") else "a command in it does not end", output_text


def _one_line(output_text: bytes) -> str:
    return " ".join(output_text.decode("utf-8", "replace").split())
