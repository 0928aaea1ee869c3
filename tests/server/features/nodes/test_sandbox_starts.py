"""A burst of new people at a node: their sandboxes start in turns, and a cancelled call gives its place up."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.features.nodes.nodes import NodeProcess, fake_principal, gateway, running_node
from tests.servers.reserved_users import kept_users
from tests.tools.shell_commands import BOUND
from toolgate.tools.workspace.processes.start_queue import PER_PROCESSOR

USERS = kept_users(20)

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the users of the sandboxes are root's to give"),
    pytest.mark.programs("bwrap"),
]


class Gate:
    """Stands before the real bwrap: while `closed` exists, each start says so and waits for a line in `go`."""

    def __init__(self, folder: Path) -> None:
        real = shutil.which("bwrap")
        assert real, "bwrap is missing: apt-get install bubblewrap"
        self._begun, self._go, self._closed, self._log = (folder / name for name in ("begun", "go", "closed", "log"))
        os.mkfifo(self._begun)
        os.mkfifo(self._go)
        self._starts = os.open(self._begun, os.O_RDWR)
        self._answers = os.open(self._go, os.O_RDWR)
        (folder / "bwrap").write_text(
            f"#!/bin/sh\necho >>{self._log}\n"
            f"if [ -e {self._closed} ]; then echo >{self._begun}; read -r _ <{self._go}; fi\n"
            f'exec {real} "$@"\n'
        )
        (folder / "bwrap").chmod(0o755)
        self.path = f"{folder}:{os.environ['PATH']}"

    def close(self) -> None:
        self._closed.touch()

    def count_starts(self) -> int:
        return self._log.stat().st_size

    async def wait_begun(self) -> None:
        async with asyncio.timeout(BOUND):
            await asyncio.to_thread(os.read, self._starts, 1)

    def remove(self) -> None:
        os.close(self._starts)
        os.close(self._answers)

    def open(self, times: int) -> None:
        self._closed.unlink()
        os.write(self._answers, b"\n" * times)


@pytest.fixture
def ground() -> Iterator[Path]:
    """Return a folder that other users can enter: pytest's own folders are closed to them."""
    made = Path(tempfile.mkdtemp(prefix="toolgate-starts-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@contextlib.contextmanager
def gated_node(ground: Path) -> Iterator[tuple[NodeProcess, Gate]]:
    """A node on one processor."""
    gate = Gate(ground)
    words = ("--sandbox", "bwrap", "--sandbox-uids", f"{USERS[0]}-{USERS[-1]}")
    enter = ("taskset", "-c", str(min(os.sched_getaffinity(0))))
    try:
        with running_node(ground / "node", *words, enter=enter, env={"PATH": gate.path}) as node:
            yield node, gate
    finally:
        gate.remove()


def test_a_cancelled_call_gives_up_its_place_and_no_sandbox_starts_for_it(ground: Path) -> None:
    async def body(node: NodeProcess, gate: Gate) -> None:
        async with gateway(node) as remote:
            people = [remote.get_or_open(fake_principal()) for _ in range(PER_PROCESSOR + 2)]
            for each in people:
                assert await each.list() == []
            gate.close()
            before = gate.count_starts()
            first = [
                asyncio.ensure_future(each.execute("echo in", wait=BOUND, limit=99)) for each in people[:PER_PROCESSOR]
            ]
            for _ in first:
                await gate.wait_begun()
            waiting = [asyncio.ensure_future(each.start("true")) for each in people[PER_PROCESSOR:]]
            assert await people[-1].list() == []  # the node has read the two before
            waiting[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting[0]
            gate.open(PER_PROCESSOR)
            for each in first:
                assert (await each)[1].excerpt.text == "in\n"
            assert await people[-1].wait(await waiting[1], BOUND)
            assert gate.count_starts() - before == PER_PROCESSOR + 1

    with gated_node(ground) as (node, gate):
        asyncio.run(body(node, gate))
