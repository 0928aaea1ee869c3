"""Prepare a process to start a command: its directory, limits and program. Standard library only: the supervisor, a
program of its own, loads this."""

import ctypes
import errno
import os
import struct

CPU_GRACE = 2  # seconds of CPU time from the signal that names the limit (SIGXCPU) to the one that ends who ignores it
# Of Landlock (linux/landlock.h): its calls have these numbers everywhere, since Linux 5.13.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
RULESET_VERSION, PATH_BENEATH = 1, 1
WRITE_FILE, TRUNCATE = 1 << 1, 1 << 14
MAKING = 0b111_1111 << 6  # devices, folders, files, sockets, pipes, links
TRUNCATES = 3  # the version that knows TRUNCATE
BESIDE = (b"/dev", b"/proc", b"/tmp", b"/var/tmp")  # of no workspace: what is written there counts elsewhere


def enter(directories: list[bytes]) -> bool:
    """Change to the first directory that will have us; true when that is not the first."""
    failure = OSError()
    for directory in directories:
        try:
            os.chdir(directory)
            return directory != directories[0]
        except OSError as error:
            failure = error
    names = " or ".join(dict.fromkeys(map(os.fsdecode, directories)))
    raise OSError(failure.errno, f"can't enter the folder {names}: {failure.strerror}")


def find_program(program: bytes, environment: dict[bytes, bytes]) -> bytes:
    """The program's path, by the PATH it will have."""
    searched = environment.get(b"PATH", os.fsencode(os.defpath))
    for folder in searched.split(b":"):
        path = os.path.join(folder, program)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise OSError(errno.ENOENT, f"{os.fsdecode(program)} is not on the PATH {os.fsdecode(searched)!r}")


def limit(limits: list[bytes]) -> None:
    """Take the resource limits on, for the command and all below it: the supervisor itself needs next to nothing."""
    if not limits:
        return
    import resource  # start-up: only in a sandbox

    for entry in limits:
        number, _, value = entry.partition(b"=")
        _, most = resource.getrlimit(int(number))
        wanted = int(value) if most == resource.RLIM_INFINITY else min(int(value), most)
        grace = CPU_GRACE if int(number) == resource.RLIMIT_CPU and most == resource.RLIM_INFINITY else 0
        resource.setrlimit(int(number), (wanted, wanted + grace))


def only_remove(root: bytes) -> None:
    """From now on neither this process nor the command makes a file, or opens one to write to it, but BESIDE `root`.
    Best effort: an older kernel, or one without Landlock, has no such calls."""
    call = ctypes.CDLL(None).syscall
    version = call(CREATE_RULESET, None, ctypes.c_size_t(0), RULESET_VERSION)
    if version < 1:
        return
    rights = MAKING | WRITE_FILE | (TRUNCATE if version >= TRUNCATES else 0)
    ruleset = call(CREATE_RULESET, struct.pack("Q", rights), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return
    for path in map(os.path.realpath, BESIDE):  # in a sandbox /var/tmp is /tmp
        if os.path.realpath(root).startswith(path + b"/"):
            continue
        try:
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        call(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", rights, folder), 0)
        os.close(folder)
    call(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def raise_oom_score(pid: int) -> None:
    """When memory runs out, the command goes and not who watches over it (proc(5), oom_score_adj)."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", "wb") as file:
            file.write(b"500")
    except OSError:
        pass  # it has ended, or may not be told so
