"""10 GB of output at readers that take nothing: both processes stay small, and the next person waits no longer."""

import contextlib
import socket
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.driver import Cores
from tests.bench.people import Person, town
from tests.clients.raw_client import eventually
from tests.server.features.nodes.nodes import NodeProcess, running_node
from tests.server.features.nodes.test_faults import frame
from toolgate.server.features.nodes import messages
from toolgate.tools.workspace.files.open_file import PIECE

OUTPUT = 10 * 2**30  # bytes
GATEWAYS = 2  # that ask for so much, and take nothing
ECHOES = 300
MORE = 3.0  # times the quiet p99
GROWTH = {"node": 160, "gateway": 16}  # MiB: a node holds 48 for each gateway that takes nothing
UIDS = "64900-64909"  # no server's default: it would end their processes


@pytest.mark.soak
@pytest.mark.programs("bwrap")
def test_output_at_a_reader_that_takes_nothing_costs_no_memory_and_nobody_elses_time(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)  # other users have to pass
    cores = Cores()
    cores.pinned = False
    with (
        running_node(tmp_path / "node", "--sandbox", "bwrap", "--sandbox-uids", UIDS) as node,
        town(tmp_path / "gateway", cores, "--node", str(node.address)) as place,
    ):
        ada, eve = place.person("ada"), place.person("eve")
        processes = {"node": node.process.pid, "gateway": place.site.process.pid}
        _, begun = eve.call("BackgroundBash", command=f"yes | head -c {OUTPUT}")
        task = begun["structuredContent"]["task_id"]
        (principal,) = (each.name for each in (node.state / "workspaces").glob("u-*"))
        output = node.state / "spool" / principal / str(task) / "output"
        assert eventually(lambda: output.stat().st_size > PIECE)
        eve.call("KillBgTask", task_id=task)
        measure_echoes(ada)
        quiet, before = measure_echoes(ada), read_memory(processes)
        eve.call("BackgroundBash", command=f"yes | head -c {OUTPUT}")
        start_stalled_call(place.person("eve"))
        with contextlib.ExitStack() as stack:
            for _ in range(GATEWAYS):
                stack.enter_context(stalled_gateway(node, principal, task))
            busy, after = measure_echoes(ada), read_memory(processes)
        _, read = eve.call("ReadBgOutput", task_id=task)
        assert "y\ny\n" in read["content"][0]["text"]
    grown = {name: after[name] - before[name] for name in processes}
    assert all(grown[name] <= GROWTH[name] for name in processes), grown
    assert p99(busy) <= MORE * p99(quiet), f"{p99(quiet) * 1e3:.1f} → {p99(busy) * 1e3:.1f} ms"


def measure_echoes(person: Person) -> list[float]:
    return [person.call("Bash", command="echo hello")[0] for _ in range(ECHOES)]


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[-1]


def read_memory(processes: dict[str, int]) -> dict[str, int]:
    """Return the most that each process has had in memory, in MiB."""
    return {
        name: int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024
        for name, pid in processes.items()
    }


def start_stalled_call(person: Person) -> None:
    """Start a call that streams its progress, and read nothing of it."""
    call = {"name": "Bash", "arguments": {"command": f"yes | head -c {OUTPUT}"}, "_meta": {"progressToken": "p"}}
    before, after = person._client.request("tools/call", call)
    person._client.socket.sendall(b"%b1%b" % (before, after))


@contextlib.contextmanager
def stalled_gateway(node: NodeProcess, principal: str, task: int) -> Iterator[None]:
    """Have a gateway ask for its share of the output, as far as the node lets it, and take nothing."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(2.0)
        line.connect(str(node.socket))
        line.sendall(frame(["hello", messages.VERSION, "0", f"stalled-{id(line)}"]))
        piece = {"run_id": task, "offset": 0, "limit": PIECE}
        requests = (
            ["request", number, principal, "workspace.read", piece] for number in range(OUTPUT // PIECE // GATEWAYS)
        )
        with contextlib.suppress(TimeoutError):  # the node reads no more while its answers are not taken
            line.sendall(b"".join(map(frame, requests)))
        yield
