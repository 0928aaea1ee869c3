"""Start a command that can read but change nothing: Landlock, a system call filter, no capability but reading. Or one
that is kept APART from all other processes of its user: Landlock alone.

Standard library only: the supervisor, a program of its own, loads this. The supervisor itself stays unconfined, so the
command can't signal it where Landlock scopes signals. Source: landlock(7), seccomp(2), capabilities(7).
"""

import ctypes
import os
import signal
import struct
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING or __package__:
    from toolgate.tools.workspace.processes import landlock
else:  # as in supervisor.py, which has put this folder on the path
    import landlock

FILTER, WRITABLE, LANDLOCK = b"filter=", b"writable=", b"landlock="  # words of a request (ReadOnly.words)
APART = b"apart"  # the same, alone (Launch.is_apart)
DEVICES = (b"/dev/null", b"/dev/zero", b"/dev/full")  # writing there changes nothing
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 22, 24, 38  # linux/prctl.h
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x2008_0522  # linux/capability.h
CAP_DAC_READ_SEARCH = 2
CAPABILITIES = 64
NO_CORE = 1  # a byte: with 0 a handler of core dumps would still run (core(5))
MAX_FAILURE = 1_000  # bytes


class SeccompProgram(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def split(limits: "list[bytes]") -> "tuple[list[bytes], list[bytes]]":
    """Return the resource limits of a request, and its words for here: none for a command that may write."""
    own = [word for word in limits if word == APART or word.startswith((FILTER, WRITABLE, LANDLOCK))]
    return [word for word in limits if word not in own], own


def spawn(
    program: bytes,
    argv: "list[bytes]",
    variables: "dict[bytes, bytes]",
    streams: "list[int]",
    confinement: "list[bytes]",
) -> int:
    """Start the command and return its process id. Raises OSError: nothing runs."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run(program, argv, variables, streams, confinement, writer)
    os.close(writer)
    failure = os.read(reader, MAX_FAILURE)  # ends at the exec
    os.close(reader)
    if failure:
        os.waitpid(pid, 0)
        raise OSError(0, os.fsdecode(failure))
    return pid


def _run(
    program: bytes,
    argv: "list[bytes]",
    variables: "dict[bytes, bytes]",
    streams: "list[int]",
    confinement: "list[bytes]",
    failure: int,
) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        for each, standard in zip(streams, (1, 2, 0), strict=False):
            os.dup2(each, standard)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if confinement == [APART]:
            landlock.separate()
        else:
            _confine(confinement)
        os.execve(program, argv, variables)  # noqa: S606  # the arguments are a list
    except BaseException as error:  # noqa: BLE001  # the supervisor reports it
        text = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        os.write(failure, f"can't be confined: {text}".encode()[:MAX_FAILURE])
    os._exit(127)


def _confine(words: "list[bytes]") -> None:
    """Give up every way to change something. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    _limit_core()
    _keep_reading_alone(libc)
    _check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    (version,) = (int(word[len(LANDLOCK) :]) for word in words if word.startswith(LANDLOCK))
    if version != 0:  # without it, mounts are read-only
        _restrict(version, [_unhex(word, WRITABLE) for word in words if word.startswith(WRITABLE)])
    program = b"".join(_unhex(word, FILTER) for word in words if word.startswith(FILTER))
    loaded = SeccompProgram(len(program) // 8, program)
    _check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(loaded), 0, 0), "the system call filter")


def _restrict(version: int, writable: "list[bytes]") -> None:
    rights = landlock.writing_rights(version)
    allowed: list[tuple[int, int]] = []
    try:
        for path in (*DEVICES, *writable):
            try:
                descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:  # a machine without that device
                continue
            allowed.append((descriptor, rights if os.path.isdir(path) else landlock.OF_FILES))
        landlock.restrict(version, rights, allowed, landlock.SCOPES)
    finally:
        for descriptor, _ in allowed:
            os.close(descriptor)


def _limit_core() -> None:
    import resource  # start-up: only here

    try:
        resource.setrlimit(resource.RLIMIT_CORE, (NO_CORE, NO_CORE))
    except ValueError:  # a sandbox has set 0 for good
        return


def _keep_reading_alone(libc: ctypes.CDLL) -> None:
    """Drop the capabilities that root has, except to read and search all folders."""
    for capability in range(CAPABILITIES):
        if capability != CAP_DAC_READ_SEARCH:
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails without privileges, which then nothing can give
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    held = ctypes.create_string_buffer(24)
    _check(libc.capget(header, held), "capabilities")
    kept = struct.unpack("6I", held.raw)[1] & 1 << CAP_DAC_READ_SEARCH
    _check(libc.capset(header, struct.pack("6I", kept, kept, 0, 0, 0, 0)), "capabilities")


def _unhex(word: bytes, prefix: bytes) -> bytes:
    return bytes.fromhex(word[len(prefix) :].decode())


def _check(answer: int, what: str) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
