"""Two networks with one wire between them: a gateway's, which a thread of the test is in, and a node's."""

import contextlib
import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterator

from tests.tools.shell_commands import BOUND

GATEWAY, NODE = "198.18.0.1", "198.18.0.2"  # of a network for tests (RFC 2544)
WIRE, FAR_WIRE = "wire0", "wire1"  # the two ends
NOWHERE = "02:00:00:00:00:99"  # a hardware address that nobody has: what goes there is dropped without a word
CLONE_NEWNET = 0x40000000


class Wire:
    """The wire from the calling thread's network to that of the process `far`."""

    def __init__(self, far: int) -> None:
        self.far = far
        self.enter = ("nsenter", f"--net=/proc/{far}/ns/net")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "name", WIRE, "type", "veth", "peer", "name", FAR_WIRE, "netns", str(far))
        self._plug(GATEWAY, WIRE)
        _run(*self.enter, "ip", "link", "set", "lo", "up")
        self._plug(NODE, FAR_WIRE, *self.enter)

    def _plug(self, address: str, name: str, *enter: str) -> None:
        _run(*enter, "ip", "address", "add", f"{address}/24", "dev", name)
        _run(*enter, "ip", "link", "set", name, "up")

    def drop(self, *, to_node: bool = False, to_gateway: bool = False) -> None:
        """Have packets in these directions vanish."""
        for is_dropped, enter, to, name in ((to_node, (), NODE, WIRE), (to_gateway, self.enter, GATEWAY, FAR_WIRE)):
            if is_dropped:
                words = ("ip", "neighbour", "replace", to, "lladdr", NOWHERE, "nud", "permanent", "dev", name)
                _run(*enter, *words)

    def unplug(self) -> None:
        _run("ip", "link", "set", WIRE, "down")

    def heal(self) -> None:
        """Undo `drop` and `unplug`."""
        _run("ip", "link", "set", WIRE, "up")
        for enter, to, name in (((), NODE, WIRE), (self.enter, GATEWAY, FAR_WIRE)):
            subprocess.run(
                [*enter, "ip", "neighbour", "delete", to, "dev", name], stderr=subprocess.DEVNULL, check=False
            )


@contextlib.contextmanager
def wire() -> Iterator[Wire]:
    """Give the calling thread a network of its own, for good, with a wire to another."""
    _call("unshare", CLONE_NEWNET)
    with subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 1000"], stdout=subprocess.PIPE) as far:
        try:
            assert far.stdout is not None and far.stdout.readline() == b"\n"
            yield Wire(far.pid)
        finally:
            far.kill()


def join_network(pid: int) -> None:
    """Move the calling thread into the network of a process."""
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        _call("setns", descriptor, CLONE_NEWNET)
    finally:
        os.close(descriptor)


def in_thread(body: Callable[[], None]) -> None:
    """Run a function in a thread, which may change its network, and raise what it raises."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            body()
        except BaseException as error:  # raised below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10 * BOUND)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def _run(*words: str) -> None:
    subprocess.run(words, check=True, timeout=BOUND)


def _call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
