"""The processes of isolated plugins are forked from one, share its memory, and nothing else."""

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.raw_client import Server, eventually, processes_with
from tests.servers.isolated_plugins import HOST, hosts, plugin_folder, status

FORK_SERVER = "toolgate.server.plugins.isolation.fork_server"
COUNT = 8
MAX_SHARE = 11 * 2**20  # bytes a plugin, with its share of the fork server; alone it takes some 20 MiB
TOOLS = """
    @tool(name="pid_{number}")
    async def pid() -> int:
        "The process."
        return os.getpid()

    @tool(name="crash_{number}")
    async def crash() -> str:
        "Crash."
        os._exit(7)

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
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a fork server")


def start_plugins(start: Start, folder: Path, count: int) -> Server:
    for number in range(count):
        plugin_folder(folder, TOOLS.format(number=number), f"it{number}")
    server = start("-p", str(folder / "plugins"), "--isolate-plugins")
    assert len({server.text(f"pid_{number}") for number in range(count)}) == count
    return server


def fork_servers(server: Server) -> set[int]:
    return {pid for pid in processes_with(FORK_SERVER) if f"\nPPid:\t{server.process.pid}\n" in status(pid)}


def share_of(pid: int) -> int:
    """Return the memory of a process in bytes, of shared pages its part."""
    found = re.search(r"\nPss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_the_processes_of_plugins_share_what_they_have_imported(start: Start, tmp_path: Path) -> None:
    server = start_plugins(start, tmp_path, COUNT)
    guards, plugins = hosts(server), {int(server.text(f"pid_{number}")) for number in range(COUNT)}
    assert (len(guards), len(fork_servers(server))) == (COUNT, 1)
    assert sum(map(share_of, guards | plugins | fork_servers(server))) < COUNT * MAX_SHARE


def test_plugins_share_no_descriptor(start: Start, tmp_path: Path) -> None:
    server = start_plugins(start, tmp_path, 3)
    sockets = [set(server.text(f"sockets_{number}").split()) for number in range(3)]
    assert all(len(each) >= 2 for each in sockets)
    assert not sockets[0] & sockets[1] and not sockets[1] & sockets[2] and not sockets[0] & sockets[2]
    (fork_server,) = fork_servers(server)
    own = {os.readlink(entry) for entry in Path(f"/proc/{fork_server}/fd").iterdir()}
    assert not own & (sockets[0] | sockets[1] | sockets[2])


def test_a_plugins_command_line_names_it(start: Start, tmp_path: Path) -> None:
    server = start_plugins(start, tmp_path, 2)
    for number in range(2):
        file = str(tmp_path / "plugins" / f"it{number}.py")
        assert int(server.text(f"pid_{number}")) in processes_with(file) & processes_with(HOST)


def test_a_fork_server_that_was_killed_is_replaced_and_costs_no_plugin(start: Start, tmp_path: Path) -> None:
    server = start_plugins(start, tmp_path, 2)
    before = server.text("pid_1")
    (old,) = fork_servers(server)
    os.kill(old, signal.SIGKILL)
    assert "crashed (exit status 7)" in server.error("crash_0")
    assert int(server.text("pid_0")) > 0
    assert server.text("pid_1") == before
    (new,) = fork_servers(server)
    assert new != old


def test_the_fork_server_ends_with_a_server_that_is_killed(start: Start, tmp_path: Path) -> None:
    server = start_plugins(start, tmp_path, 1)
    left = fork_servers(server) | hosts(server) | {int(server.text("pid_0"))}
    server.process.kill()
    assert eventually(lambda: all("\nState:\tZ" in status(pid) for pid in left))
