"""What the commands on a state folder say and do on that of a node, and on that of a server with nodes."""

import asyncio
import os
from contextlib import closing
from pathlib import Path

import pytest

from tests.server.features.nodes.nodes import NodeProcess, fake_principal, gateway, running_node
from tests.server.features.nodes.several_nodes import greet_nodes
from tests.tools.shell_commands import BOUND
from toolgate.server.app import build
from toolgate.server.cli.commands import backup, workspace
from toolgate.server.config import load
from toolgate.server.config.load import Config
from toolgate.server.features.nodes import rows as node_rows
from toolgate.server.features.nodes.gateway.remote_methods import request
from toolgate.server.features.nodes.report import NodeLoad
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store

ADDRESS = "unix:/run/toolgate-node/node.sock"


def config_of(state: Path) -> Config:
    return load.load({"state": str(state)}, {})


async def write_file(node: NodeProcess, principal: str) -> None:
    async with gateway(node) as remote, asyncio.timeout(BOUND):
        await remote.get_or_open(principal).execute("echo kept > file", wait=BOUND, limit=100)


async def count_people(node: NodeProcess) -> int:
    """Return how many people the node says that it has."""
    (it,) = greet_nodes(node)
    try:
        load: NodeLoad = await request(it, "local", "node.measure_load")
        return load.people
    finally:
        await it.close()


def test_a_nodes_workspaces_are_listed_archived_backed_up_and_restored_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy, idle = fake_principal(), fake_principal()
    with running_node(tmp_path, "--sandbox", "none", "--name", "one") as node:
        asyncio.run(write_file(node, busy))
        for name in (idle, "local"):  # `local`: of a gateway without sign-in
            (node.state / "workspaces" / name).mkdir()
            (node.state / "workspaces" / name / "file").write_text("kept\n")
        config = config_of(node.state)
        assert workspace.list_workspaces(config) == 0
        assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [
            ["?", name] for name in sorted((busy, idle, "local"))
        ]
        assert asyncio.run(count_people(node)) == 3
        assert workspace.archive(config, who=idle) == 0
        assert workspace.restore(config, who=idle) == 0
        with pytest.raises(OSError, match="a running server or node uses"):
            workspace.remove(config, who=busy)
        for change in (workspace.archive, workspace.remove):
            assert change(config, who="local") == 1
            assert "belongs to the user without sign-in" in capsys.readouterr().err
        assert workspace.remove(config, who="ada") == 1
        assert "this folder is a node's, which knows no names of people" in capsys.readouterr().err
        file = tmp_path / "node.tar.gz"
        live = str(tmp_path / "live.tar.gz")
        assert backup.backup(config, file=live, with_workspaces=False) == 0
        assert backup.backup(config, file=str(file), with_workspaces=True) == 1
        assert backup.restore(config, file=live, replace=True) == 1
        assert capsys.readouterr().err.count("a server or node uses it: stop that first") == 2
        assert not (node.state / "state.db").exists()
        node.kill()  # its lock and its socket stay
        assert {"node.lock", "node.name"} <= set(os.listdir(node.state)) and node.socket.exists()
        assert backup.backup(config, file=str(file), with_workspaces=True) == 0
        assert "3 workspaces" in capsys.readouterr().out
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / "node.lock").touch()  # a node was started here once
    assert backup.restore(config_of(fresh), file=str(file), replace=False) == 0
    assert "token revoke" not in capsys.readouterr().err
    assert (fresh / "node.name").read_text() == "one\n" and "node.sock" not in os.listdir(fresh)
    for name in (busy, idle, "local"):
        assert (fresh / "workspaces" / name / "file").read_text() == "kept\n"


def test_a_servers_state_says_at_which_node_a_workspace_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, there, here = tmp_path / "state", fake_principal(), fake_principal()
    state.mkdir()

    async def note(store: Store) -> None:
        await store.transact(lambda connection: node_rows.note_node(connection, "one", ADDRESS, 1.0))
        for principal, name in ((there, "one"), (here, "two")):
            await store.transact(
                lambda connection, who=principal, at=name: node_rows.place(
                    connection, who, [at], 1.0, has_files=True, limits={}
                )
            )

    with closing(SqliteStore(state)) as store:
        asyncio.run(note(store))
    (state / "workspaces" / here).mkdir(parents=True)  # of the time before the nodes
    config = config_of(state)
    assert workspace.list_workspaces(config) == 0
    told = capsys.readouterr()
    rows = [line.split() for line in told.out.splitlines()[1:]]
    assert [row[1] for row in rows] == [here, there] and rows[1][2:] == ["at", "the", "node", "one"]
    assert "run toolgate workspace there, with the --state of the node" in told.err
    for change in (workspace.archive, workspace.restore, workspace.remove):
        assert change(config, who=there) == 1
        said = f"the workspace of {there} is at a node (one, {ADDRESS}): run this there, with the --state of the node"
        assert said in capsys.readouterr().err
    assert workspace.archive(config, who=here) == 0
    assert backup.backup(config, file=str(tmp_path / "all.tar.gz"), with_workspaces=True) == 0
    assert f"which this backup does not have: one ({ADDRESS}), two\n" in capsys.readouterr().err
    assert backup.backup(config, file=str(tmp_path / "some.tar.gz"), with_workspaces=False) == 0
    assert "at nodes" not in capsys.readouterr().err


def test_a_server_with_nodes_makes_no_folders_for_workspaces(tmp_path: Path) -> None:
    build.state_folder(load.load({"state": str(tmp_path / "state"), "http": "true", "node": [ADDRESS]}, {}))
    assert os.listdir(tmp_path / "state") == ["keys"]
    assert workspace.list_workspaces(config_of(tmp_path / "state")) == 0
