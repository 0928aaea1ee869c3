"""Measure stdio in rounds in which each side takes a turn, so that the machine's load affects all sides."""

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tests.bench.driver import Peer
from tests.bench.sides import OURS, Sides, environment

START, MEMORY, SEQUENTIAL, CALLS, LISTS, LARGE = "start", "memory", "sequential", "calls", "lists", "large"
CPU = "CPU"  # processor time of a call in flight with others: swings less than the rate on a busy machine
IMPORT, SHELL, BARE_SHELL = "import asyncio", "Bash true", "bash -c true"
YARDSTICKS = "yardsticks"
LARGE_TEXT = "x" * 100_000
WINDOW = 64  # calls in flight
TINY = 1e-9  # for processor time too short for the kernel to count
LARGE_WINDOW = 8  # large ones: 800 kB in flight, more than any pipe holds


@dataclass(frozen=True)
class Effort:
    """How much is measured. `warm` and `burst` are seconds of calls in flight, about."""

    rounds: int
    starts: int = 2
    idle: float = 2.5  # seconds before memory is measured
    calls: int = 1_000  # sequential ones
    warm: float = 1.5  # Node compiles what was called often enough
    burst: float = 0.05
    slices: int = 20  # of a round's sequential calls, and bursts
    commands: int = 30  # shell commands


class Figures:
    """side → metric → one value per round or slice, in the units of the report's columns."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, side: str, metric: str, value: float) -> None:
        self._values[side, metric].append(value)

    def has(self, side: str, metric: str) -> bool:
        return (side, metric) in self._values

    def median(self, side: str, metric: str) -> float:
        return statistics.median(self._values[side, metric])

    def ratio(self, side: str, metric: str, other: str, of: str) -> float:
        """Return the median ratio of two sides over pairs measured one after the other, as the machine's speed
        changes."""
        ours, theirs = self._values[side, metric], self._values[other, of]
        if len(ours) != len(theirs):
            return statistics.median(ours) / statistics.median(theirs)
        return statistics.median(a / (b or TINY) for a, b in zip(ours, theirs, strict=True))


def measure(sides: Sides, effort: Effort, tell: Callable[[str], None]) -> Figures:
    """Return all figures. Raises RuntimeError or TimeoutError when a side breaks."""
    figures = Figures()
    _starts(sides, Figures(), 1)  # unmeasured: it fills the caches
    for turn in range(1, effort.rounds + 1):
        tell(f"round {turn} of {effort.rounds}: start-up")
        _starts(sides, figures, effort.starts)
        tell(f"round {turn} of {effort.rounds}: idle memory")
        _memory(sides, figures, effort)
        tell(f"round {turn} of {effort.rounds}: calls in flight")
        _bursts(sides, figures, effort)
        tell(f"round {turn} of {effort.rounds}: sequential calls")
        _latencies(sides, figures, effort)
        tell(f"round {turn} of {effort.rounds}: shell")
        _shell(sides, figures, effort)
    sides.cores.free()
    return figures


def _starts(sides: Sides, figures: Figures, count: int) -> None:
    for _ in range(count):
        figures.add(YARDSTICKS, IMPORT, _import_asyncio(sides))
        for name in sides.commands:
            with sides.start(name) as peer:
                _open(peer, sides)
                figures.add(name, START, (time.perf_counter() - peer.started) * 1e3)


def _import_asyncio(sides: Sides) -> float:
    sides.cores.server()
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import asyncio"], env=environment(sides.folder), check=True)
    taken = time.perf_counter() - begun
    sides.cores.driver()
    return taken * 1e3


def _open(peer: Peer, sides: Sides) -> None:
    peer.handshake()
    names = [tool["name"] for tool in peer.request("tools/list", {})["tools"]]
    if names != list(sides.tools):
        raise RuntimeError(f"not the same list: {names}")


def _memory(sides: Sides, figures: Figures, effort: Effort) -> None:
    peers = {}
    try:
        for name in sides.commands:
            peers[name] = sides.start(name)
            _open(peers[name], sides)
        time.sleep(effort.idle)  # the idle state is measured
        for name, peer in peers.items():
            figures.add(name, MEMORY, peer.memory() / 1024)
    finally:
        for peer in peers.values():
            peer.close()


def _bursts(sides: Sides, figures: Figures, effort: Effort) -> None:
    """Measure calls in flight in short bursts in which the sides take turns, after a while that lets a compiler
    work."""
    small, large, tools = _echo("hello"), _echo(LARGE_TEXT), len(sides.tools)
    loads = {
        CALLS: ("tools/call", small, WINDOW, _says("hello")),
        LISTS: ("tools/list", {}, WINDOW, lambda result: len(result["tools"]) == tools),
        LARGE: ("tools/call", large, LARGE_WINDOW, _says(LARGE_TEXT)),
    }
    with ExitStack() as stack:
        peers = {name: stack.enter_context(sides.start(name)) for name in sides.commands}
        for peer in peers.values():
            _open(peer, sides)
        for metric, (method, params, window, good) in loads.items():
            counts = {name: _warm_up(peer, effort, method, params, window, good) for name, peer in peers.items()}
            for _ in range(effort.slices):
                for name, peer in peers.items():
                    before = peer.cpu()
                    figures.add(name, metric, peer.pipeline(method, params, counts[name], window, good))
                    if metric == CALLS:
                        figures.add(name, CPU, (peer.cpu() - before) / counts[name] * 1e6)


def _latencies(sides: Sides, figures: Figures, effort: Effort) -> None:
    """Measure sequential calls in short slices in which the sides take turns: the machine's speed changes within a
    second."""
    small = _echo("hello")
    with ExitStack() as stack:
        peers = {name: stack.enter_context(sides.start(name)) for name in sides.commands}
        for peer in peers.values():
            _open(peer, sides)
            peer.latencies("tools/call", small, effort.calls // 2)  # unmeasured
        for _ in range(effort.slices):
            for name, peer in peers.items():
                latencies = peer.latencies("tools/call", small, max(1, effort.calls // effort.slices))
                figures.add(name, SEQUENTIAL, statistics.median(latencies) * 1e6)


def _echo(text: str) -> dict[str, Any]:
    return {"name": "echo", "arguments": {"text": text}}


def _says(text: str) -> Callable[[Any], bool]:
    return lambda result: result["content"] == [{"type": "text", "text": text}]


def _warm_up(
    peer: Peer, effort: Effort, method: str, params: dict[str, Any], window: int, good: Callable[[Any], bool]
) -> int:
    """Call for a while, unmeasured, and return how many calls make a burst."""
    rate = peer.pipeline(method, params, 2 * window, window, good)
    rate = peer.pipeline(method, params, _count(rate, effort.warm, window), window, good)
    return _count(rate, effort.burst, window)


def _count(rate: float, seconds: float, window: int) -> int:
    return max(2 * window, min(int(rate * seconds), 100_000))


def _shell(sides: Sides, figures: Figures, effort: Effort) -> None:
    """Measure what the Bash tool adds to starting bash: its p50 in ms, beside a bare spawn on the same core."""
    call = {"name": "Bash", "arguments": {"command": "true"}}
    with sides.start(OURS) as peer:
        _open(peer, sides)
        if peer.request("tools/call", call).get("isError"):
            raise RuntimeError("Bash refused to run 'true'")
        latencies = peer.latencies("tools/call", call, effort.commands)
    figures.add(YARDSTICKS, SHELL, statistics.median(latencies) * 1e3)
    sides.cores.server()
    bare = statistics.median(_spawn() for _ in range(effort.commands))
    figures.add(YARDSTICKS, BARE_SHELL, bare * 1e3)
    sides.cores.driver()


def _spawn() -> float:
    """Return the seconds to start `bash -c true`, read its output and collect it."""
    bash = shutil.which("bash") or "/bin/bash"
    begun = time.perf_counter()
    source, sink = os.pipe()
    redirect = [(os.POSIX_SPAWN_DUP2, sink, 1), (os.POSIX_SPAWN_DUP2, sink, 2)]
    pid = os.posix_spawn(bash, ["bash", "-c", "true"], os.environ, file_actions=redirect)
    os.close(sink)
    while os.read(source, 4096):
        pass
    os.close(source)
    os.waitpid(pid, 0)
    return time.perf_counter() - begun
