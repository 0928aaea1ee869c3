"""Attempts to survive a call, a cancellation, a time limit, the sandbox, the server."""

import os
import signal
from typing import TYPE_CHECKING

from tests.clients.raw_client import PATIENCE, eventually, processes_with
from tests.escape.attempt import EVERYWHERE, Attempt

if TYPE_CHECKING:
    from tests.escape.ground import Ground

TRUSTED = {"none": "commands run as the server's user there, who may end whatever watches over them"}
DEAF = "trap '' TERM INT HUP QUIT TSTP USR1;"
DAEMON = "(setsid bash -c '{deaf} (setsid sleep {mark} &) ; sleep {mark}; sleep {mark}' >/dev/null 2>&1 </dev/null &);"


def left(mark: str) -> str:
    """Return whether a process with this odd number of seconds still runs after a while."""
    return "" if eventually(lambda: not processes_with(mark), 15) else f"{mark} still runs"


def daemon(mark: str) -> str:
    return DAEMON.format(deaf=DEAF, mark=mark)


def outlives_its_time(ground: "Ground") -> str:
    ground.bash(f"{DEAF} {daemon('71.101')} sleep 71.101; sleep 71.101", timeout=1_000)
    return left("71.101")


def outlives_its_task(ground: "Ground") -> str:
    begun = ground.call("BackgroundBash", command=f"{DEAF} {daemon('71.202')} sleep 71.202; sleep 71.202")
    assert eventually(lambda: bool(processes_with("71.202")))
    ground.call("KillBgTask", task_id=begun["structuredContent"]["task_id"])
    return left("71.202")


def outlives_a_cancellation(ground: "Ground") -> str:
    with ground.hanging(f"{daemon('71.303')} sleep 71.303"):
        assert eventually(lambda: bool(processes_with("71.303")))
    return left("71.303")


def leaves_zombies(ground: "Ground") -> str:
    """Leave orphans that are not reaped."""
    ground.script(
        "for _ in range(30):\n    if os.fork() == 0:\n        os._exit(0)\nif os.fork() == 0:\n"
        "    os.setsid()\n    time.sleep(0.3)\n    os._exit(0)"
    )
    zombies = ground.zombies()
    return "" if eventually(lambda: ground.zombies() == 0, 15) else f"{zombies} zombies"


def kills_its_supervisor(ground: "Ground") -> str:
    ground.bash(f"{daemon('71.404')} sleep 0.2; kill -9 $PPID; sleep 71.404", timeout=3_000)
    return left("71.404") or served(ground)


def stops_its_supervisor(ground: "Ground") -> str:
    ground.bash(f"{daemon('71.505')} kill -STOP $PPID; sleep 71.505", timeout=1_000)
    return left("71.505") or served(ground)


def stops_its_supervisor_again_and_again(ground: "Ground") -> str:
    ground.bash(
        f"(setsid bash -c '{DEAF} while :; do kill -STOP $0 2>/dev/null; done' $PPID &); sleep 71.606", timeout=1_000
    )
    return left("71.606") or served(ground)


def kills_its_zygote(ground: "Ground") -> str:
    """Kill its zygote and supervisor."""
    script = (
        "found = above()\nfor number in (signal.SIGSTOP, signal.SIGKILL):\n    for pid in found:\n"
        "        try:\n            os.kill(pid, number)\n        except OSError as error:\n"
        "            print(error)"
    )
    ground.bash(f"{daemon('71.707')}")
    ground.script(script)
    ground.bash("kill -9 -1", timeout=5_000)
    return left("71.707") or served(ground)


def speaks_for_its_supervisor(ground: "Ground") -> str:
    """Write lines to every reachable control socket."""
    script = (
        "for pid in above():\n    for fd in range(3, 12):\n        try:\n"
        "            end = os.open(f'/proc/{pid}/fd/{fd}', os.O_RDWR)\n"
        "            os.write(end, b'exited 0 0\\ngone\\n')\n            escaped(pid, fd)\n"
        "        except OSError as error:\n            pass"
    )
    said = ground.script(script)
    return said if ground.token in said else served(ground)


def served(ground: "Ground") -> str:
    """Return whether both principals can go on; what it started while its sandbox ended may be lost."""
    ground.said("true")
    both = ["well" in ground.said("echo well", who=who) for who in ("mallory", "victim")]
    return "" if all(both) else f"not served: {both}"


def outlives_the_server(ground: "Ground") -> str:
    for who in ("mallory", "victim"):
        ground.call("BackgroundBash", who=who, command=f"{DEAF} {daemon('71.808')} sleep 71.808; sleep 71.808")
    assert eventually(lambda: len(processes_with("71.808")) >= 2)
    os.kill(ground.server.pid, signal.SIGKILL)
    ground.server.wait(PATIENCE)
    return left("71.808")


SURVIVAL = (
    Attempt("outlives its time limit", act=outlives_its_time, stopped=EVERYWHERE),
    Attempt("outlives the end of its task", act=outlives_its_task, stopped=EVERYWHERE),
    Attempt("outlives the cancellation of its call", act=outlives_a_cancellation, stopped=EVERYWHERE),
    Attempt("leaves zombies", act=leaves_zombies, stopped=EVERYWHERE, alone=True),
    Attempt("kills what watches over it", act=kills_its_supervisor, alone=True, untried=TRUSTED),
    Attempt("stops what watches over it", act=stops_its_supervisor, alone=True, untried=TRUSTED),
    Attempt(
        "stops what watches over it again and again",
        act=stops_its_supervisor_again_and_again,
        alone=True,
        untried=TRUSTED,
    ),
    Attempt("kills all that watch over it", act=kills_its_zygote, alone=True, untried=TRUSTED),
    Attempt("speaks for what watches over it", act=speaks_for_its_supervisor, alone=True, untried=TRUSTED),
)
LAST = (Attempt("outlives the server, killed", act=outlives_the_server, stopped=EVERYWHERE, alone=True),)
