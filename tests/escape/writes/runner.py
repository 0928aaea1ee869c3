"""Run scripts one after another in a tree of files, and tell which of them changed something. Standard library only.

A program: `runner.py free|plan SCRIPTS`. `free` makes the tree anew before each script."""

import contextlib
import ctypes
import ctypes.util  # noqa: F401  # for the scripts
import errno  # noqa: F401  # for the scripts
import fcntl  # noqa: F401  # for the scripts
import glob  # noqa: F401  # for the scripts
import json
import mmap  # noqa: F401  # for the scripts
import os
import platform  # noqa: F401  # for the scripts
import resource  # noqa: F401  # for the scripts
import shutil
import signal
import socket  # noqa: F401  # for the scripts
import sqlite3  # noqa: F401  # for the scripts
import stat  # noqa: F401  # for the scripts
import struct  # noqa: F401  # for the scripts
import subprocess
import sys
import tempfile  # noqa: F401  # for the scripts
import threading  # noqa: F401  # for the scripts
import time
import traceback
import zlib

MODULES = {name: value for name, value in globals().items() if not name.startswith("_")}  # for the scripts
LIMIT = 8.0  # seconds for one script
HOME = os.path.dirname(os.path.abspath(__file__))
TREE, OUT = os.path.join(HOME, "tree"), os.environ.get("OUT", "/nonexistent")
SEEN = (TREE, OUT, os.path.join(HOME, "heard"))
MAKE = """
set -e; umask 022
mkdir -p dir/deep empty repo; echo alpha > a; echo beta > b; echo inner > dir/inner; echo x > dir/deep/x
ln a hard; ln -s a link; ln -s "$OUT/target" outlink; mkfifo fifo; seq 5000 > big; echo no > locked; chmod 444 locked
printf '#!/bin/sh\\necho hi\\n' > script.sh; chmod 755 script.sh
cd repo; git init -q --template= .; git config user.email t@example.com; git config user.name T
echo one > one; git add one; git commit -q -m one; echo two >> one; git stash -q; echo three > three
"""
PRELUDE = """
libc = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == 'aarch64'
OUT, TREE, HOME = os.environ['OUT'], os.environ['TREE'], os.environ['WS']
CANARY, SERVER = int(os.environ['CANARY']), int(os.environ['SERVER'])
def call(number, *arguments):
    found = libc.syscall(number, *arguments)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
"""


def snapshot():
    """Return what stat, content, attributes and links say of every file, by path; not when it was read."""
    found = {}
    for top in SEEN:
        for folder, folders, files in os.walk(top):
            for path in [folder, *(os.path.join(folder, name) for name in (*folders, *files))]:
                found[path] = describe(path)
        if os.path.isfile(top):
            found[top] = describe(top)
    return found


def describe(path):
    try:
        seen = os.lstat(path)
    except OSError as error:
        return [error.errno]
    words = [seen.st_mode, seen.st_uid, seen.st_gid, seen.st_ino, seen.st_nlink, seen.st_size, seen.st_mtime_ns]
    words.append(seen.st_ctime_ns)
    try:
        words.append(
            [
                [name, os.getxattr(path, name, follow_symlinks=False).hex()]
                for name in os.listxattr(path, follow_symlinks=False)
            ]
        )
        if os.path.islink(path):
            words.append(os.readlink(path))
        elif os.path.isfile(path):
            with open(path, "rb") as file:
                words.append(zlib.crc32(file.read()))
    except OSError as error:
        words.append(error.errno)
    return words


def make(folder, out):
    subprocess.run(["bash", "-c", MAKE], cwd=folder, check=True, env={**os.environ, "OUT": out, "HOME": folder})


def make_outside():
    """Make the files outside, which every user may change."""
    for name, text in (("target", "target\n"), ("other", "other\n")):
        with open(os.path.join(OUT, name), "w") as file:
            file.write(text)
        os.chmod(os.path.join(OUT, name), 0o666)
    os.makedirs(os.path.join(OUT, "box"), exist_ok=True)
    os.chmod(os.path.join(OUT, "box"), 0o777)


def run(script, python):
    """Return the script's output."""
    environment = {**os.environ, "TREE": TREE, "WS": HOME, "HOME": TREE, "GIT_PAGER": "cat", "EDITOR": "true"}
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.chdir(TREE)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.environ.update(environment)
        if not python:
            os.execvpe("bash", ["bash", "-c", script], environment)
        try:
            exec(compile(PRELUDE + script, "script", "exec"), {**MODULES})
        except SystemExit:
            pass
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(0)
    os.close(writer)
    os.set_blocking(reader, False)
    output, until = b"", time.monotonic() + LIMIT
    while time.monotonic() < until:
        ended, _ = os.waitpid(pid, os.WNOHANG)
        with contextlib.suppress(BlockingIOError):
            output += os.read(reader, 65536)
        if ended:
            break
        time.sleep(0.002)
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        output += b"\nLATE"
    os.close(reader)
    return output.decode(errors="replace")[-400:]


def main():
    mode, path = sys.argv[1:]
    with open(path) as file:
        scripts = json.load(file)
    template = os.path.join(HOME, "template")
    if mode == "make":
        os.makedirs(TREE)
        make(TREE, OUT)
        return
    if mode == "free":
        os.makedirs(template)
        make(template, OUT)
    verdicts, after = {}, snapshot()
    for name, script, python, needs in scripts:
        if not all(shutil.which(program) for program in needs.split()):
            verdicts[name] = ["absent", ""]
            continue
        if mode == "free":
            subprocess.run(["chattr", "-R", "-f", "-i", "-a", TREE, OUT], check=False, capture_output=True)
            for folder in (TREE, OUT):
                shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(OUT)
            make_outside()
            subprocess.run(["cp", "-a", template, TREE], check=True)
        before, began = snapshot() if mode == "free" else after, time.monotonic()
        output = run(script, python)
        after = snapshot()
        changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
        came_off = bool(changed) or "CHANGED" in output
        verdicts[name] = ["changed", f"{changed[:2]} {output}"[:200]] if came_off else ["", ""]
        if time.monotonic() - began > 0.3:
            sys.stderr.write(f"SLOW {name} {time.monotonic() - began:.2f}\n")
        if mode == "free" and not came_off:
            verdicts[name][1] = output
    print("VERDICTS" + json.dumps(verdicts))


if __name__ == "__main__":
    main()
