"""Attempts on other processes: the server, supervisors, the machine's."""

from pathlib import Path
from typing import TYPE_CHECKING

from tests.escape.attempt import EVERYWHERE, Attempt
from tests.escape.attempts.survival import served

if TYPE_CHECKING:
    from tests.escape.ground import Ground

NONE = frozenset({"none"})
ALL_OF_IT = {"none": "commands run as the server's user there: it would end the server, and more"}


def ends_all(ground: "Ground") -> str:
    ground.bash("kill -9 -1")
    others = {"the server": ground.server.pid, "another's": int(ground.around["VICTIM_PID"])}
    gone = [name for name, pid in others.items() if not Path(f"/proc/{pid}").exists()]
    return " ".join(gone) or served(ground)


SERVER = (
    Attempt(
        "reads the server's environment",
        "b'AWS_SECRET' in open(f\"/proc/{E['SERVER']}/environ\", 'rb').read() and escaped()",
    ),
    Attempt("reads the server's memory", "os.close(os.open(f\"/proc/{E['SERVER']}/mem\", os.O_RDONLY))\nescaped()"),
    Attempt("reads where the server's memory is", "open(f\"/proc/{E['SERVER']}/maps\").read(1) and escaped()"),
    Attempt("lists the server's descriptors", "os.listdir(f\"/proc/{E['SERVER']}/fd\") and escaped()"),
    Attempt("goes where the server is", "os.chdir(f\"/proc/{E['SERVER']}/cwd\")\nescaped()"),
    Attempt("signals the server", "os.kill(int(E['SERVER']), signal.SIGCONT)\nescaped()"),
    Attempt("signals a process of the machine's", "os.kill(int(E['CANARY']), signal.SIGCONT)\nescaped()"),
    Attempt(
        "changes how the server is scheduled",
        "os.setpriority(os.PRIO_PROCESS, int(E['SERVER']), os.getpriority(os.PRIO_PROCESS, int(E['SERVER'])))\n"
        "escaped()",
    ),
    Attempt("has the server killed first when memory is short", "writable(f\"/proc/{E['SERVER']}/oom_score_adj\")"),
    Attempt(
        "traces the server",
        # PTRACE_SEIZE: PTRACE_ATTACH leaves it stopped, if its tracer ends before it has stopped
        "system_call('ptrace', 0x4206, int(E['SERVER']), 0, 0)\nescaped()",
    ),
    Attempt(
        "takes a descriptor from the server",
        "system_call('pidfd_getfd', system_call('pidfd_open', int(E['SERVER']), 0), 1, 0)\nescaped()",
    ),
    Attempt(
        "finds the server's secrets in its own environment",
        "any('planted' in value for value in os.environ.values()) and escaped()",
        stopped=EVERYWHERE,
    ),
    Attempt(
        "inherits a descriptor",
        "lines = open(E['ME'] + '/descriptors').read().splitlines()\n"
        "fine = r'(/dev/null|pipe:\\[\\d+\\]|.*/descriptors|)$'\n"
        "held = [line for line in lines if not re.match(fine, line)]\nheld and escaped(held)\nprint(lines)",
        stopped=EVERYWHERE,
    ),
    Attempt("ends all it may signal", act=ends_all, untried=ALL_OF_IT, alone=True),
)

WATCHERS = (
    Attempt(
        "reads the memory of those that watch over it",
        "for pid in above():\n    try:\n        os.close(os.open(f'/proc/{pid}/mem', os.O_RDONLY))\n"
        "        escaped(pid)\n"
        "    except OSError as error:\n        print(error)",
    ),
    Attempt(
        "reads the descriptors of those that watch over it",
        "for pid in above():\n    try:\n        os.listdir(f'/proc/{pid}/fd') and escaped(pid)\n"
        "    except OSError as error:\n        print(error)",
    ),
    Attempt(
        "reads their environment and folder",
        "for pid in above():\n    for name in ('cwd', 'root', 'exe'):\n        try:\n"
        "            os.readlink(f'/proc/{pid}/{name}') and escaped(pid)\n"
        "        except OSError as error:\n            print(error)",
    ),
    Attempt(
        "takes their control socket",
        "for pid in above():\n    try:\n"
        "        system_call('pidfd_getfd', system_call('pidfd_open', pid, 0), 3, 0)\n"
        "        escaped(pid)\n"
        "    except OSError as error:\n        print(error)",
        unsure=NONE,
    ),
    Attempt(
        "traces those that watch over it", "[taken('ptrace', 16, pid, 0, 0) for pid in above()[:1]]", untried=ALL_OF_IT
    ),
    Attempt(
        "reads from another process's memory",
        "here = ctypes.create_string_buffer(b'x' * 8)\n"
        "vector = struct.pack('QQ', ctypes.addressof(here), 8)\n"
        "[taken('process_vm_readv', pid, vector, 1, vector, 1, 0) for pid in (*above()[:1], os.getppid())]",
    ),
    Attempt(
        "writes to another process's memory",
        "taken('process_vm_writev', os.getppid(), 0, 0, 0, 0, 0)",
    ),
    Attempt(
        "has the first process call past the filter",
        "os.close(os.open('/proc/1/mem', os.O_RDWR))\n'Seccomp:\\t2' in open('/proc/1/status').read() or escaped()",
        unsure=NONE,
    ),
    Attempt("compares what processes share", "taken('kcmp', os.getpid(), os.getppid(), 0, 0, 0)", unsure=NONE),
)
