"""`toolgate mount import`: the servers of another client become mounts of the config file."""

import json
import tomllib
from pathlib import Path

from tests.server.features.mounts.commands.test_edit import Run, file, run, write

__all__ = ["file", "run"]
CLIENT = {
    "inputs": [{"id": "key", "description": "Your key"}],
    "servers": {
        "My Files": {
            "command": "npx",
            "args": ["files"],
            "env": {"K": "hunter2", "T": "${secret:key}"},
            "dev": {},
        },
        "web": {"url": "https://a/mcp?key=hunter2", "headers": {"K": "hunter2"}},
        "off": {"command": "x", "disabled": True},
    },
}


def write_client(file: Path, servers: object = None) -> str:
    path = file.parents[2] / "client.json"
    path.write_text(json.dumps(CLIENT if servers is None else {"mcpServers": servers}))
    return str(path)


def test_servers_are_added_and_what_is_left_is_said(file: Path, run: Run) -> None:
    write(file, "# mine\nport = 8081\n")
    shown = run("import", write_client(file))
    assert shown.splitlines() == [
        "my-files: npx files",
        "  from 'My Files'",
        "  skipped: dev",
        "  set its secret: toolgate secret set key (Your key)",
        "  toolgate mount test my-files installs its package; until then each start loads it",
        "web: https://a/mcp?…",
        "left out: off: it is disabled there",
        f"Added 2 mounts to {file}",
    ]
    assert file.read_text().startswith("# mine\nport = 8081\n")
    assert tomllib.loads(file.read_text())["mounts"] == {
        "my-files": {"command": "npx", "args": ["files"], "env": {"K": "hunter2", "T": "${secret:key}"}},
        "web": {"url": "https://a/mcp?key=hunter2", "headers": {"K": "hunter2"}},
    }
    listed = run("list")
    assert "my-files  ok" in listed and "web       ok" in listed
    before = file.read_text()
    assert run("import", write_client(file)).endswith(f"{file} has 2 mounts of these already\n")
    assert file.read_text() == before


def test_a_dry_run_shows_the_tables_without_keys_and_writes_nothing(file: Path, run: Run) -> None:
    shown = run("import", write_client(file), "--dry-run")
    assert '[mounts.my-files]\ncommand = "npx"\nargs = ["files"]\nenv = { K = "…", T = "${secret:key}" }\n' in shown
    assert shown.endswith(f"Dry run: nothing is written to {file}\n")
    assert "hunter2" not in shown and not file.exists()


def test_a_name_that_is_taken_needs_replace(file: Path, run: Run) -> None:
    text = '[mounts.web]\nurl = "https://old"\n'
    write(file, text)
    client = write_client(file, {"web": {"url": "https://new"}, "b": {"command": "b"}})
    assert "already has other mounts web: --replace replaces them" in run("import", client, code=2)
    assert file.read_text() == text
    run("import", client, "--replace")
    assert tomllib.loads(file.read_text())["mounts"] == {"web": {"url": "https://new"}, "b": {"command": "b"}}


def test_bad_input_is_refused_with_2(file: Path, run: Run) -> None:
    assert "can't read" in run("import", "/none.json", code=2)
    assert "FILE is missing" in run("import", code=2)
    client = write_client(file)
    Path(client).write_text("{")
    assert "client.json: line 1" in run("import", client, code=2)
    Path(client).write_text('{"theme": "dark"}')
    assert "has no MCP servers: they stand in mcpServers, servers, context_servers" in run("import", client, code=2)
    assert not file.exists()


def test_a_file_of_which_nothing_can_be_mounted_is_a_failure(file: Path, run: Run) -> None:
    shown = run("import", write_client(file, {"off": {"command": "x", "disabled": True}}), code=1)
    assert shown == f"left out: off: it is disabled there\nAdded 0 mounts to {file}\n" and not file.exists()
