"""`toolgate config`: what each client reads, for a server that it starts and for one at a URL."""

import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.clients.raw_client import COMMAND
from tests.server.cli.test_cli import run
from toolgate.server.cli import main


@pytest.mark.brief("claude-desktop", "vscode", "opencode")
@pytest.mark.parametrize(
    "client",
    ["claude-desktop", "cursor", "vscode", "windsurf", "zed", "gemini-cli", "qwen-code", "copilot", "opencode"],
)
def test_config_prints_json_whose_command_is_absolute_and_works(tmp_path: Path, client: str) -> None:
    told = run(tmp_path, "config", client, "--name", "mine")
    assert told.returncode == 0
    body = json.loads(told.stdout.rpartition("}")[0] + "}")
    (servers,) = body.values()
    entry = servers["toolgate"]
    command = entry["command"] if client == "opencode" else [entry["command"], *entry["args"]]
    assert Path(command[0]).is_absolute() and command[1:] == ["--name", "mine"]
    hello = '{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    answer = subprocess.run(
        [*command, "--state", str(tmp_path / "state")],
        input=hello,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=30,
        check=True,
    )
    assert json.loads(answer.stdout)["result"] == {}


@pytest.mark.parametrize(
    ("client", "entry"),
    [
        ("cursor", '{"mcpServers": {"toolgate": {"url": "https://tools.example.com/mcp"}}}'),
        ("vscode", '{"servers": {"toolgate": {"type": "http", "url": "https://tools.example.com/mcp"}}}'),
        ("claude-code", "claude mcp add --transport http toolgate https://tools.example.com/mcp"),
        ("windsurf", '{"mcpServers": {"toolgate": {"serverUrl": "https://tools.example.com/mcp"}}}'),
        ("zed", '{"context_servers": {"toolgate": {"url": "https://tools.example.com/mcp"}}}'),
        ("codex", '[mcp_servers.toolgate]\nurl = "https://tools.example.com/mcp"'),
        ("gemini-cli", '{"mcpServers": {"toolgate": {"type": "http", "url": "https://tools.example.com/mcp"}}}'),
        ("qwen-code", '{"mcpServers": {"toolgate": {"httpUrl": "https://tools.example.com/mcp"}}}'),
        (
            "copilot",
            '{"mcpServers": {"toolgate": {"type": "http", "tools": ["*"], "url": "https://tools.example.com/mcp"}}}',
        ),
        (
            "opencode",
            '{"mcp": {"toolgate": {"type": "remote", "enabled": true, "url": "https://tools.example.com/mcp"}}}',
        ),
        ("claude-desktop", "https://tools.example.com/mcp"),
    ],
)
def test_config_with_a_public_url_prints_how_a_client_reaches_it(
    capsys: pytest.CaptureFixture[str], client: str, entry: str
) -> None:
    assert main.run(["config", client, "--public-url", "https://tools.example.com"]) == 0
    told = capsys.readouterr().out
    assert (json.loads(told) == json.loads(entry)) if entry.startswith("{") else (told == entry + "\n")


@pytest.mark.parametrize("client", ["claude-code", "codex"])
def test_config_prints_a_command_for_clients_without_json(tmp_path: Path, client: str) -> None:
    told = run(tmp_path, "config", client)
    assert told.returncode == 0 and COMMAND in told.stdout


def test_the_local_entries_of_copilot_opencode_and_codex_have_what_each_needs(tmp_path: Path) -> None:
    copilot = json.loads(run(tmp_path, "config", "copilot").stdout)["mcpServers"]["toolgate"]
    assert copilot == {"type": "local", "tools": ["*"], "command": COMMAND, "args": []}
    opencode = json.loads(run(tmp_path, "config", "opencode").stdout)["mcp"]["toolgate"]
    assert opencode == {"type": "local", "command": [COMMAND], "enabled": True}
    codex = run(tmp_path, "config", "codex").stdout
    assert tomllib.loads(codex)["mcp_servers"]["toolgate"] == {"command": COMMAND, "args": [], "required": True}
    assert "takes over a second to start" in codex
    assert "required" not in run(tmp_path, "config", "codex", "--public-url", "https://tools.example.com").stdout


@pytest.mark.parametrize("client", ["chatgpt", "claude-ai"])
def test_config_of_a_hosted_client_is_the_url_to_paste(tmp_path: Path, client: str) -> None:
    told = run(tmp_path, "config", client, "--public-url", "https://tools.example/")
    assert (told.returncode, told.stdout) == (0, "https://tools.example/mcp\n")
    refused = run(tmp_path, "config", client)
    assert (refused.returncode, refused.stdout) == (2, "") and "--public-url" in refused.stderr


def test_a_client_gets_the_name_and_not_the_place(tmp_path: Path) -> None:
    told = run(tmp_path, "config", "cursor", TOOLGATE_PLUGINS=f"builtin:weather:{tmp_path}/mine:builtin:blog_search")
    args = json.loads(told.stdout)["mcpServers"]["toolgate"]["args"]
    assert args == ["--plugins", "builtin:weather", "--plugins", f"{tmp_path}/mine", "--plugins", "builtin:blog_search"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nonesuch", "config: unknown client 'nonesuch'; clients are claude-desktop, "),
        ("cursr", "config: unknown client 'cursr' (did you mean cursor?); clients are claude-desktop, "),
        ("chatgpt", "config: chatgpt can't start a server on this machine: add --public-url"),
    ],
)
def test_an_unfit_client_is_refused_with_2_and_a_remedy(tmp_path: Path, words: str, said: str) -> None:
    told = run(tmp_path, "config", words)
    assert (told.returncode, told.stdout) == (2, "") and said in told.stderr


def test_a_config_file_for_serving_over_http_keeps_no_client_from_a_server_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "toolgate" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('http = true\nauth = "none"\nport = 1\nallowed-hosts = ["a"]\nname = "mine"\n')
    told = run(tmp_path, "config", "cursor")
    entry = json.loads(told.stdout)["mcpServers"]["toolgate"]
    assert entry["args"] == ["--name", "mine", "--stdio"]
    assert '"result":{}' in run(tmp_path, *entry["args"], stdin='{"jsonrpc":"2.0","id":1,"method":"ping"}\n').stdout
