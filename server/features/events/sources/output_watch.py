"""Look at the output of one principal's commands, for all patterns that are waited for.

Output is foreign: each line is read and cleaned once for all patterns, and all work on lines is done in slices of a few
milliseconds. Principals take turns, so that the output of one delays no other.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator

import msgspec

from toolgate.server.features.events.sources.line_pattern import MAX_LINE, match_in_steps
from toolgate.tools.workspace.output.ansi import clean_output
from toolgate.tools.workspace.output.run_record import Run
from toolgate.tools.workspace.workspace import Workspace

LOOK = 30.0  # seconds between two looks for new commands, beside their announcements
GATHER = 0.05  # seconds that output is gathered before it is looked at
CHUNK = 64 * 2**10  # bytes of output that are looked at together
SLICE = 0.002  # seconds of work on lines before other work of the event loop comes
MAX_MATCHES = 100  # events of one command for one pattern: a pattern that matches every line says nothing


class LineMatch(msgspec.Struct, frozen=True):
    """A line that matches, as a terminal shows it. `place`: the byte where it begins."""

    pattern: str
    text: str
    place: int


class OutputWatch:
    """Follow a principal's commands until `run` is cancelled.

    turn: what looks at output of any principal takes it for one slice
    emit: emits the event of a match
    """

    def __init__(
        self, workspace: Workspace, turn: asyncio.Lock, emit: Callable[[Run, LineMatch], Awaitable[None]]
    ) -> None:
        self._workspace = workspace
        self._turn = turn
        self._emit = emit
        self._own_turn = asyncio.Lock()  # so that one principal waits for `turn` once
        self._wanted: Counter[tuple[str, int | None]] = Counter()  # patterns, each of one command or of all
        self._followed: set[int] = set()
        self._matches: Counter[tuple[int, str]] = Counter()  # by command and pattern

    @property
    def is_used(self) -> bool:
        """Whether a pattern is waited for."""
        return bool(self._wanted)

    def add(self, pattern: str, run_id: int | None) -> None:
        """Look for a pattern in the output of a command, or of all, from now on."""
        self._wanted[pattern, run_id] += 1

    def remove(self, pattern: str, run_id: int | None) -> None:
        self._wanted[pattern, run_id] -= 1
        self._wanted = +self._wanted

    async def run(self) -> None:
        """Follow the commands that run, from here on, and all later ones from their beginning."""
        last: int | None = None  # id of the newest command that was seen
        async with asyncio.TaskGroup() as group:
            while True:
                arrival = group.create_task(self._workspace.arrival())
                await asyncio.sleep(0)  # it waits from now on
                runs = await self._workspace.list()
                self._followed &= {run.id for run in runs}
                for run in runs:
                    is_new = last is not None and run.id > last
                    if run.id not in self._followed and (is_new or run.status == "running"):
                        self._followed.add(run.id)
                        begin = 0 if is_new else await self._workspace.size(run.id)
                        group.create_task(self._follow(run, begin))
                last = max([last or 0, *(run.id for run in runs)])
                await asyncio.wait([arrival], timeout=LOOK)
                arrival.cancel()

    async def _follow(self, run: Run, begin: int) -> None:
        """Look at each line of a command's output from byte `begin`, until it has ended."""
        offset, rest = begin, b""
        try:
            while True:
                run = await self._workspace.run(run.id)
                patterns = self._list_patterns(run.id)
                if not patterns:  # one may be added
                    offset, rest = await self._workspace.size(run.id), b""
                data = await self._workspace.read(run.id, offset, CHUNK)
                if data:
                    *lines, rest = (rest + data).split(b"\n")
                elif run.status != "running":
                    lines, rest = [rest], b""
                else:
                    await self._workspace.wait_output(run.id, offset, LOOK, whole=True)
                    await asyncio.sleep(GATHER)
                    continue
                rest = rest[-CHUNK:]
                place = offset + len(data) - len(rest) - sum(len(line) + 1 for line in lines)
                await self.look(run, lines, place, patterns)
                offset += len(data)
                if not data:
                    return
        except KeyError:  # forgotten meanwhile
            return
        finally:
            for key in [key for key in self._matches if key[0] == run.id]:
                del self._matches[key]

    def _list_patterns(self, run_id: int) -> list[str]:
        """Return the patterns that are still looked for in the output of a command."""
        patterns = {pattern for pattern, wanted in self._wanted if wanted in (None, run_id)}
        return sorted(pattern for pattern in patterns if self._matches[run_id, pattern] < MAX_MATCHES)

    async def look(self, run: Run, lines: Collection[bytes], place: int, patterns: Collection[str]) -> None:
        """Emit what matches in the lines, the first of which begins at byte `place`."""
        steps = self._match(run.id, lines, place, patterns)
        is_over = False
        async with self._own_turn:
            while not is_over:
                async with self._turn:
                    found, is_over = _work_for_a_slice(steps)
                    await asyncio.sleep(0)
                for match in found:
                    await self._emit(run, match)

    def _match(
        self, run_id: int, lines: Collection[bytes], place: int, patterns: Collection[str]
    ) -> Iterator[LineMatch | None]:
        """Yield the matches, and None after each other step of the work."""
        for line in lines:
            text = clean_line(line)
            yield None
            for pattern in patterns if text else ():
                if self._matches[run_id, pattern] >= MAX_MATCHES:
                    continue
                if (yield from match_in_steps(pattern, text)):
                    self._matches[run_id, pattern] += 1
                    yield LineMatch(pattern, text, place)
                else:
                    yield None
            place += len(line) + 1


def _work_for_a_slice(steps: Iterator[LineMatch | None]) -> tuple[list[LineMatch], bool]:
    """Return the matches of a slice of the work, and whether all is done."""
    until = time.perf_counter() + SLICE
    found: list[LineMatch] = []
    for match in steps:
        if match is not None:
            found.append(match)
        if time.perf_counter() >= until:
            return found, False
    return found, True


def clean_line(line: bytes) -> str:
    """Return the line as a terminal shows it, as far as it is looked at."""
    if line.isascii() and (text := line[:MAX_LINE].decode()).isprintable():
        return text
    return clean_output(line[: 4 * MAX_LINE], final=True)[0].rstrip("\r\n")[:MAX_LINE]
