"""The process of an isolated plugin is one program, which shares nothing with others and names its plugin."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.raw_client import Server, processes_with
from tests.servers.isolated_plugins import HOST, hosts, plugin_folder

COUNT = 3
MAX_SHARE = 32 * 2**20  # bytes a plugin with its guard; some 23 MiB on Python 3.11
TOOLS = """
    @tool(name="pid_{number}")
    async def pid() -> int:
        "The process."
        return os.getpid()

    @tool(name="sockets_{number}")
    async def sockets() -> str:
        "The sockets of this process and its guard."
        found = []
        for process in ("self", str(os.getppid())):
            for entry in os.listdir(f"/proc/{{process}}/fd"):
                try:
                    found.append(os.readlink(f"/proc/{{process}}/fd/{{entry}}"))
                except OSError:
                    pass
        return " ".join(each for each in found if each.startswith("socket:"))
"""

Start = Callable[..., Server]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def start_plugins(start: Start, folder: Path) -> Server:
    for number in range(COUNT):
        plugin_folder(folder, TOOLS.format(number=number), f"it{number}")
    server = start("-p", str(folder / "plugins"), "--isolate-plugins")
    assert len({server.text(f"pid_{number}") for number in range(COUNT)}) == COUNT
    return server


def share_of(pid: int) -> int:
    """Return the memory of a process in bytes, of shared pages its part."""
    found = re.search(r"\nPss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_a_plugin_takes_one_process_and_a_guard_and_their_memory_is_small(start: Start, tmp_path: Path) -> None:
    server = start_plugins(start, tmp_path)
    guards, plugins = hosts(server), {int(server.text(f"pid_{number}")) for number in range(COUNT)}
    assert len(guards) == COUNT and not guards & plugins
    assert sum(map(share_of, guards | plugins)) < COUNT * MAX_SHARE


def test_plugins_share_no_descriptor(start: Start, tmp_path: Path) -> None:
    server = start_plugins(start, tmp_path)
    sockets = [set(server.text(f"sockets_{number}").split()) for number in range(COUNT)]
    assert all(len(each) >= 2 for each in sockets)
    assert not sockets[0] & sockets[1] and not sockets[1] & sockets[2] and not sockets[0] & sockets[2]


def test_a_plugins_command_line_names_it(start: Start, tmp_path: Path) -> None:
    server = start_plugins(start, tmp_path)
    for number in range(COUNT):
        file = str(tmp_path / "plugins" / f"it{number}.py")
        assert int(server.text(f"pid_{number}")) in processes_with(file) & processes_with(HOST)
