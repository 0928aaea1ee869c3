"""Measure one principal's latency while another misbehaves: p99 of `ping` and of Bash `echo`, quiet and attacked in
turns.

Server, attacks and this client share the machine's cores, unpinned, so the client's wait for a core counts too."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.driver import Cores
from tests.bench.people import Person, town

ATTACKS = {
    "fork bomb": "f() { f | f & }; while :; do f; sleep 0.01; done",
    "busy loops": "for i in {1..8}; do while :; do :; done & done; wait",
    "disk fill": "while :; do dd if=/dev/zero of=x bs=1M count=1024 conv=fsync 2>/dev/null; rm x; done",
    "many files": "while :; do mkdir -p d; for i in {1..3000}; do : > d/$i; done; rm -r d; done",
    "memory": "while :; do python3 -c 'x = []\nwhile True: x.append(bytearray(b\"x\") * (1 << 24))'; done",
    "output flood": "while :; do yes; done",
    "many lines": "while :; do echo x; done",
}
TARGET = 3.0  # times the quiet p99
PACE = 0.004  # seconds between pings
SETTLED = 1.0  # seconds from the start of an attack


@dataclass
class Felt:
    """Seconds that calls took."""

    pings: list[float] = field(default_factory=list)
    echoes: list[float] = field(default_factory=list)


@dataclass
class Attack:
    quiet: Felt = field(default_factory=Felt)
    hostile: Felt = field(default_factory=Felt)


def measure(folder: Path, rounds: int, echoes: int, tell: Callable[[str], None]) -> dict[str, Attack]:
    cores = Cores()
    cores.pinned = False
    figures = {name: Attack() for name in ATTACKS}
    with town(folder, cores) as place:
        ada, pinging, eve = place.person("ada"), place.person("ada"), place.person("eve")
        eve.call("Bash", command="true")
        _feel(ada, pinging, echoes, Felt())
        for turn in range(rounds):
            for name, command in ATTACKS.items():
                tell(f"neighbours, round {turn + 1} of {rounds}: {name}")
                _feel(ada, pinging, echoes, figures[name].quiet)
                with _attacked(eve, command):
                    _feel(ada, pinging, echoes, figures[name].hostile)
    return figures


@contextmanager
def _attacked(eve: Person, command: str) -> Generator[None, None, None]:
    _, begun = eve.call("BackgroundBash", command=command)
    threading.Event().wait(SETTLED)
    yield
    eve.call("KillBgTask", task_id=begun["structuredContent"]["task_id"])
    eve.call("Bash", command="rm -rf x d")


def _feel(ada: Person, pinging: Person, echoes: int, felt: Felt) -> None:
    """Run pings beside the commands: they show delays of the server's loop."""
    over = threading.Event()

    def ping() -> None:
        while not over.wait(PACE):
            felt.pings.append(pinging.request("ping", {})[0])

    beside = threading.Thread(target=ping)
    beside.start()
    try:
        for _ in range(echoes):
            taken, said = ada.call("Bash", command="echo hello")
            if said["content"][0]["text"] != "hello\n":
                raise RuntimeError(f"a wrong answer: {said}")
            felt.echoes.append(taken)
    finally:
        over.set()
        beside.join()


def report(figures: dict[str, Attack]) -> str:
    lines = ["p99 in ms, quiet → attacked", "", f"{'':14}{'ping':>22}{'ratio':>7}{'Bash echo':>22}{'ratio':>7}"]
    for name, attack in figures.items():
        told = [_told(attack.quiet.pings, attack.hostile.pings), _told(attack.quiet.echoes, attack.hostile.echoes)]
        met = "met" if all(ratio <= TARGET for _, ratio in told) else "MISSED"
        lines.append(f"{name:14}" + "".join(f"{words:>22}{ratio:7.2f}" for words, ratio in told) + f"  {met}")
    return "\n".join([*lines, "", f"target: at most {TARGET:g} times the quiet p99"])


def _told(quiet: list[float], hostile: list[float]) -> tuple[str, float]:
    before, after = _p99(quiet), _p99(hostile)
    return f"{before * 1e3:.2f} → {after * 1e3:.2f}", after / before


def _p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]
