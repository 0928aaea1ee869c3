"""A raw-wire client for stdio servers: writes lines, reads lines, checks each answer. It imports no SDK."""

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

INIT = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}
PATIENCE = 30.0  # seconds for anything to come
CHUNK = 1 << 18  # bytes a read


class Message(msgspec.Struct):
    """Any message of a server."""

    id: int | str | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(Message).decode
_encode = msgspec.json.Encoder().encode


class Expected:
    """A parsed answer that others are compared with by bytes: decoding a long list each time would measure this
    client."""

    def __init__(self, line: bytes) -> None:
        self.result = bytes(_decode(line).result)
        self._before = line.index(self.result)
        self._after = len(line) - self._before - len(self.result)

    def id(self, line: bytes) -> int | str | None:
        """Return the id of an answer with this result, or None for another message. Raises RuntimeError for another
        result."""
        for begin in (self._before, len(line) - self._after - len(self.result)):  # the id may come first or last
            if begin >= 0 and line.startswith(self.result, begin):
                return _decode(line[:begin] + b"null" + line[begin + len(self.result) :]).id
        message = _decode(line)
        if message.id is not None and message.result != self.result:
            raise RuntimeError(f"a wrong answer: {line[:500]!r}")
        return message.id


def processor_time(pid: int) -> float:
    """Return the seconds that all threads of a process have used so far."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


class Cores:
    """The cores of client and server: one each, if the machine has two and allows the choice."""

    def __init__(self) -> None:
        can = hasattr(os, "sched_setaffinity")
        self._all = sorted(os.sched_getaffinity(0)) if can else []
        self.pinned = len(self._all) >= 2

    def server(self) -> None:
        """Run later processes on the server's core."""
        self._go(self._all[:1])

    def driver(self) -> None:
        self._go(self._all[1:2])

    def free(self) -> None:
        self._go(self._all)

    def _go(self, cores: list[int]) -> None:
        if self.pinned:
            os.sched_setaffinity(0, cores)


class Peer:
    """A server process and its two pipes. Every wait is bounded."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: Path, cores: Cores) -> None:
        cores.server()
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd=cwd,
        )
        cores.driver()
        assert self.process.stdin and self.process.stdout
        self._sink, self._source = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._sink, False)
        os.set_blocking(self._source, False)
        self._part: list[bytes] = []  # the beginning of a line
        self._id = 0

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def handshake(self) -> None:
        self.request("initialize", INIT)
        self._exchange(memoryview(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'))

    def request(self, method: str, params: dict[str, Any]) -> Any:
        """Return the result of one request. Raises RuntimeError for an error."""
        return msgspec.json.decode(_decode(self._one(method, params)).result)

    def pipeline(
        self, method: str, params: dict[str, Any], count: int, window: int, good: Callable[[Any], bool]
    ) -> float:
        """Return the calls per second with `window` in flight. Each id must be answered once; the first result must be
        `good`, and all others equal it byte for byte."""
        expected = Expected(self._one(method, params))
        if not good(msgspec.json.decode(expected.result)):
            raise RuntimeError(f"a wrong answer to {method}: {expected.result[:500]!r}")
        lines = [self._line(method, params) for _ in range(count)]
        waited_for = set(range(self._id - count + 1, self._id + 1))
        begun = time.perf_counter()
        sent = 0
        unwritten = memoryview(b"")
        while waited_for:
            room = window - (sent - count + len(waited_for))
            if room > 0 and sent < count and not unwritten:
                unwritten = memoryview(b"".join(lines[sent : sent + room]))
                sent = min(sent + room, count)
            unwritten, answers = self._exchange(unwritten)
            for line in answers:
                answered = expected.id(line)
                if answered is not None:
                    waited_for.remove(answered)
        return count / (time.perf_counter() - begun)

    def latencies(self, method: str, params: dict[str, Any], count: int) -> list[float]:
        """Return the seconds of each of `count` calls, one after another."""
        taken = []
        for _ in range(count):
            begun = time.perf_counter()
            self._one(method, params)
            taken.append(time.perf_counter() - begun)
        return taken

    def memory(self) -> int:
        """Return the resident memory in KiB, children included."""
        total, pids = 0, [self.process.pid]
        while pids:
            pid = pids.pop()
            status = Path(f"/proc/{pid}/status").read_text()
            total += next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
            pids += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return total

    def cpu(self) -> float:
        return processor_time(self.process.pid)

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _line(self, method: str, params: dict[str, Any]) -> bytes:
        self._id += 1
        return _encode({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}) + b"\n"

    def _one(self, method: str, params: dict[str, Any]) -> bytes:
        """Return the line that answers one request."""
        unwritten = memoryview(self._line(method, params))
        while True:
            unwritten, answers = self._exchange(unwritten)
            for line in answers:
                message = _decode(line)
                if message.id == self._id:
                    if not bytes(message.result):
                        raise RuntimeError(f"{method} was refused: {line[:500]!r}")
                    return line

    def _exchange(self, unwritten: memoryview) -> tuple[memoryview, list[bytes]]:
        """Write what the pipe takes, then read what has arrived; wait only when all is written."""
        if unwritten:
            with contextlib.suppress(BlockingIOError):
                unwritten = unwritten[os.write(self._sink, unwritten) :]
            if not unwritten:
                return unwritten, []
        return unwritten, self._read(waiting_to_write=bool(unwritten))

    def _read(self, waiting_to_write: bool) -> list[bytes]:
        sinks = [self._sink] if waiting_to_write else []
        readable, writable, _ = select.select([self._source], sinks, [], PATIENCE)
        if not readable:
            if not writable:
                raise TimeoutError("the server fell silent")
            return []
        data = os.read(self._source, CHUNK)
        if not data:
            raise RuntimeError(f"the server ended, exit code {self.process.wait(5)}")
        *lines, rest = data.split(b"\n")
        if lines and self._part:
            lines[0] = b"".join((*self._part, lines[0]))
            self._part = []
        if rest:
            self._part.append(rest)
        return lines
