"""Prepare a process to start a command: its directory, limits and program. Standard library only: the supervisor, a
program of its own, loads this."""

import errno
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from toolgate.tools.workspace.processes import landlock, own_limits, read_only
else:  # as in supervisor.py, which has put this folder on the path
    import landlock
    import read_only

SIGNALS = signal.valid_signals()
CPU_GRACE = 2  # seconds of CPU time from the signal that names the limit (SIGXCPU) to the one that ends who ignores it
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
    """The program's path: as it is written if it has a slash, else by the PATH it will have."""
    if b"/" in program:
        if can_run(program):
            return program
        raise OSError(errno.ENOENT, f"there is no program {os.fsdecode(program)}, or it can't be run here")
    searched = environment.get(b"PATH", os.fsencode(os.defpath))
    for folder in searched.split(b":"):
        path = os.path.join(folder, program)
        if can_run(path):
            return path
    raise OSError(errno.ENOENT, f"{os.fsdecode(program)} is not on the PATH {os.fsdecode(searched)!r}")


def can_run(path: bytes) -> bool:
    """Return whether there is a program at the path that this process may run."""
    return os.access(path, os.X_OK) and os.path.isfile(path)


def limit(limits: list[bytes]) -> None:
    """Take the resource limits on, for the command and all below it: the supervisor itself needs next to nothing."""
    import resource  # start-up: only in a sandbox

    numbers = [int(entry.partition(b"=")[0]) for entry in limits]
    current = {number: resource.getrlimit(number) for number in numbers}
    for number, pair in lower_limits(limits, current).items():
        resource.setrlimit(number, pair)


def lower_limits(limits: list[bytes], current: "own_limits.Limits") -> "own_limits.Limits":
    """Return the limits of the `NUMBER=VALUE` entries, none of them above the `current` hard one."""
    import resource  # start-up: as above

    lower: own_limits.Limits = {}
    for entry in limits:
        number, value = map(int, entry.split(b"="))
        _, most = lower.get(number, current[number])
        wanted = value if most == resource.RLIM_INFINITY else min(value, most)
        grace = CPU_GRACE if number == resource.RLIMIT_CPU and most == resource.RLIM_INFINITY else 0
        lower[number] = (wanted, wanted + grace)
    return lower


def dump_no_core() -> None:
    """Let no core dump fill the disk. A command may raise its own limit again."""
    import resource  # start-up: as above

    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def only_remove(root: bytes) -> None:
    """From now on neither this process nor the command makes a file, or opens one to write to it, but BESIDE `root`.
    Best effort: an older kernel, or one without Landlock, has no such calls."""
    version = landlock.find_version()
    if version < 1:
        return
    rights = landlock.MAKING | landlock.WRITE_FILE | (landlock.TRUNCATE if version >= landlock.TRUNCATES else 0)
    allowed: list[tuple[int, int]] = []
    try:
        for path in map(os.path.realpath, BESIDE):  # in a sandbox /var/tmp is /tmp
            if os.path.realpath(root).startswith(path + b"/"):
                continue
            try:
                allowed.append((os.open(path, os.O_PATH | os.O_CLOEXEC), rights))
            except OSError:
                continue
        landlock.restrict(version, rights, allowed)
    except OSError:
        return
    finally:
        for folder, _ in allowed:
            os.close(folder)


def spawn(argv: "list[bytes]", variables: "dict[bytes, bytes]", streams: list[int], confinement: "list[bytes]") -> int:
    """Start the command in the current directory and return its process id. Raises OSError: nothing runs.
    `streams`: its standard output, error and, if there is one, input. `confinement`: as `read_only.spawn` takes it."""
    program = find_program(argv[0], variables)
    if confinement:
        return read_only.spawn(program, argv, variables, streams, confinement)
    return os.posix_spawn(
        program,
        argv,
        variables,
        file_actions=[(os.POSIX_SPAWN_DUP2, *each) for each in zip(streams, (1, 2, 0), strict=False)],
        setsid=True,
        setsigmask=(),
        setsigdef=SIGNALS,
    )


def raise_oom_score(pid: int) -> None:
    """When memory runs out, the command goes and not who watches over it (proc(5), oom_score_adj)."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", "wb") as file:
            file.write(b"500")
    except OSError:
        pass  # it has ended, or may not be told so
