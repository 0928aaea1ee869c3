"""`toolgate doctor` about nodes, from the side of a server and on a node's machine."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.server.cli.test_cli import run
from tests.server.features.nodes.nodes import NodeProcess, running_node
from tests.server.features.nodes.tls.certificates import (
    NEARLY_OVER,
    write_gateway_certificate,
    write_node_certificate,
)
from tests.servers.faulty_proxy import verdicts
from tests.servers.reserved_port import kept_port
from toolgate.server.base.version import VERSION
from toolgate.server.cli.doctor import main
from toolgate.server.cli.doctor.report import CheckError, CheckNote
from toolgate.server.config import load
from toolgate.server.features.nodes import checks as nodes
from toolgate.server.features.nodes import rows as node_rows
from toolgate.server.features.nodes.address import NodeAddress, name_socket
from toolgate.server.features.nodes.messages import Welcome
from toolgate.server.features.nodes.report import NodeLoad
from toolgate.server.features.nodes.tls.certificate_file import GATEWAY, CertificateFile
from toolgate.server.state.sqlite.store import SqliteStore

QUIET = ("doctor", "--registration", "dynamic", "-t", "--auth", "none", "--port", "0")
GIB = 2**30


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(tmp_path_factory.mktemp("node"), "--sandbox", "none", "--name", "one") as node:
        yield node


def check(capsys: pytest.CaptureFixture[str], *addresses: Path) -> str:
    """Return what the checks of these nodes print."""
    config = load.load({"http": "true", "node": [f"unix:{path}" for path in addresses]}, {})
    asyncio.run(main.run_checks(nodes.node_checks(config)))
    return capsys.readouterr().out


def test_a_server_is_told_of_each_node_and_not_of_its_own_sandbox(node: NodeProcess, tmp_path: Path) -> None:
    words = ("--node", f"unix:{node.socket}", "--node", f"unix:{tmp_path}/no.sock")
    told = run(tmp_path, *QUIET, *words, "--accept-unsandboxed", "--sandbox", "none")
    found = verdicts(told.stdout)
    assert (found["node 1"], found["node 2"], found["options"]) == ("ok", "FAIL", "FAIL"), told.stdout
    assert [found[name] for name in nodes.AT_NODE] == ["skip"] * 4
    assert f"one at unix:{node.socket}: Toolgate {VERSION}, no sandbox" in told.stdout
    assert "0 with a workspace, 0 commands running" in told.stdout
    assert "--sandbox is the node's" in told.stdout
    assert f"there is no socket {tmp_path}/no.sock" in told.stdout
    assert told.stdout.splitlines()[-1].startswith("Fix this first: options")


def test_what_is_at_the_address_is_named(node: NodeProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert "is not a socket" in check(capsys, tmp_path / "file")
    with socket.socket(socket.AF_UNIX) as deserted:
        deserted.bind(str(tmp_path / "deserted"))
    told = check(capsys, tmp_path / "deserted")
    assert "connection refused" in told and "start it with toolgate node" in told
    assert "all permissions of the node's user" in check(capsys, node.socket)  # its level is none


def test_a_node_that_says_the_name_of_another_is_refused(
    node: NodeProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = f"unix:{tmp_path}/absent"
    bind = partial(node_rows.bind_address, name="one", address=absent, rivals=[], now=1.0)
    with closing(SqliteStore(tmp_path)) as store:
        asyncio.run(store.transact(bind))
    config = load.load({"http": "true", "state": str(tmp_path), "node": [f"unix:{node.socket}", absent]}, {})
    asyncio.run(main.run_checks(nodes.node_checks(config)[:1]))
    assert f"is refused: it says that it is one, which is at {absent}" in capsys.readouterr().out


def welcome(level: str = "bwrap", release: str = VERSION) -> Welcome:
    return Welcome(1, release, "epoch", level, f"{level}: as described", "/state", None, "one", 10)


@pytest.mark.parametrize(
    ("measured", "how", "kind", "said"),
    [
        (NodeLoad(3, 1, 1, 9 * GIB, 4 * GIB), {}, str, "3 of 10 with a workspace, 2 commands running, 9.0 GiB of disk"),
        (NodeLoad(3, 0, 0, None, None), {}, str, "3 of 10 with a workspace, 0 commands running; answers in"),
        (NodeLoad(3, 0, 0, GIB // 2, 4 * GIB), {}, CheckNote, "its disk is nearly full"),
        (NodeLoad(3, 0, 0, 9 * GIB, GIB // 4), {}, CheckNote, "its memory is nearly full"),
        (NodeLoad(3, 0, 0, 9 * GIB, 4 * GIB, ["no cgroups"]), {}, CheckNote, "no cgroups"),
        (NodeLoad(3, 0, 0, 9 * GIB, 4 * GIB), {"release": "0.0.1"}, CheckNote, f"this is Toolgate {VERSION}"),
        (None, {}, CheckNote, "does not say how full"),
        (NodeLoad(3, 0, 0, 2**20, 4 * GIB), {}, CheckError, "its disk is full"),
        (NodeLoad(3, 0, 0, 9 * GIB, 2**20), {}, CheckError, "its memory is used up"),
        (NodeLoad(3, 0, 0, 9 * GIB, 4 * GIB), {"level": "none"}, CheckError, "none: as described"),
    ],
)
def test_how_full_a_node_is_decides(measured: NodeLoad | None, how: dict[str, Any], kind: type, said: str) -> None:
    config, address = load.load({}, {}), name_socket(Path("/node.sock"))
    try:
        found = nodes.judge_node(config, address, welcome(**how), measured, 0.001)
    except CheckError as error:
        found = error  # type: ignore[assignment]
    text = found.finding if isinstance(found, CheckNote) else str(found)
    assert (type(found), said in text) == (kind, True), text


def test_a_nodes_machine_is_checked_with_the_nodes_options(
    node: NodeProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = run(tmp_path, "node", "doctor", "--state", "state", "--browser", "none")
    found = verdicts(told.stdout)
    assert (told.returncode, found["address"], found["state folder"]) == (0, "ok", "ok"), told.stdout
    assert "port" not in found and not (tmp_path / "state").exists()

    def address(state: Path, listen: Path) -> str:
        config = load.load({"state": str(state)}, {})
        asyncio.run(main.run_checks([("address", lambda: nodes.listening(config, [name_socket(listen)]), ())]))
        return capsys.readouterr().out

    assert "runs" in address(node.state, node.socket)
    assert "another process listens" in address(tmp_path, node.socket) and node.answers()
    assert "there is no folder" in address(tmp_path, tmp_path / "nowhere" / "node.sock")
    (tmp_path / "file").touch()
    assert "is not a socket" in address(tmp_path, tmp_path / "file")
    assert "is free" in address(tmp_path, tmp_path / "node.sock") and not (tmp_path / "node.sock").exists()


def test_a_certificate_that_ends_soon_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_node_certificate(tmp_path, "localhost", now=NEARLY_OVER)
    config = load.load({"state": str(tmp_path / "state"), "node_certificate": str(file)}, {})
    addresses = (NodeAddress(host="127.0.0.1", port=kept_port("127.0.0.1")),)
    asyncio.run(main.run_checks([("address", lambda: nodes.listening(config, addresses), ())]))
    told = capsys.readouterr().out
    assert (verdicts(told)["address"], f"is free; {file} ends in" in told) == ("note", True), told
    write_gateway_certificate(tmp_path)
    good = CertificateFile(tmp_path / "gateway.pem", GATEWAY)
    assert nodes.note_end("fine", good) == nodes.note_end("fine", None) == "fine"
