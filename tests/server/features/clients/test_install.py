"""`toolgate install` and `uninstall`: the client's own file gets the entry, and everything else stays."""

import contextlib
import json
import os
import pty
import select
import stat
import subprocess
import tomllib
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import COMMAND, PATIENCE
from tests.servers import forked_command
from toolgate.server.cli import main
from toolgate.server.config.files.config_file import MAX_SIZE, ConfigFileError, read_config_file
from toolgate.server.features.clients.clients import CLIENTS
from toolgate.server.features.clients.commands import start_check
from toolgate.server.features.clients.locations import PLACES, Platform, find_file

LINUX = {
    "claude-desktop": ".config/Claude/claude_desktop_config.json",
    "claude-code": ".claude.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".config/Code/User/mcp.json",
    "windsurf": ".codeium/windsurf/mcp_config.json",
    "zed": ".config/zed/settings.json",
    "codex": ".codex/config.toml",
    "gemini-cli": ".gemini/settings.json",
    "opencode": ".config/opencode/opencode.json",
    "qwen-code": ".qwen/settings.json",
    "copilot": ".copilot/mcp-config.json",
}
MAC = {
    "claude-desktop": "Library/Application Support/Claude/claude_desktop_config.json",
    "vscode": "Library/Application Support/Code/User/mcp.json",
}
OTHERS = {  # a file with another server and comments, by notation
    "json": '{\n\t// mine\n\t"theme": "dark", /* so */\n\t"%s": {\n\t\t"other": {"command": "x"} // kept\n\t}\n}\n',
    "toml": 'model = "x" # mine\n\n[%s.other]\ncommand = "x"\n',
}


def run_forked(program: Sequence[str], *, input: bytes, env: dict[str, str], **_: Any) -> Any:
    """Check the start of a server in a fork, as tests of other commands run them."""
    flags = program[program.index("toolgate.server") + 1 :]
    ran = forked_command.run([COMMAND, *flags], input.decode(), cwd=Path.cwd(), env=env)
    return subprocess.CompletedProcess(program, ran.returncode, ran.stdout.encode(), ran.stderr.encode())


class Home:
    """A person's home, in which the command runs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys, self.environment = folder, capsys, monkeypatch
        for name in [name for name in os.environ if name.startswith(("XDG_", "TOOLGATE_", "WSL_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        monkeypatch.chdir(folder)
        forked = types.SimpleNamespace(run=run_forked, TimeoutExpired=subprocess.TimeoutExpired)
        monkeypatch.setattr(start_check, "subprocess", forked)

    def run(self, *words: str, code: int = 0) -> str:
        """Return what the command prints, errors too."""
        self._capsys.readouterr()
        assert main.run(words) == code, self._capsys.readouterr()
        told = self._capsys.readouterr()
        return told.out + told.err

    def write(self, client: str, text: str | None = None) -> Path:
        path = self.folder / LINUX[client]
        path.parent.mkdir(parents=True, exist_ok=True)
        spec = CLIENTS[client]
        notation = "toml" if spec.notation == "toml" else "json"
        path.write_bytes((OTHERS[notation] % spec.container if text is None else text).encode())
        return path

    def entry(self, client: str, path: Path | None = None) -> Any:
        """Return the entry in a file without comments."""
        text = (path or self.folder / LINUX[client]).read_text()
        data = tomllib.loads(text) if text.startswith(("[", "model")) else json.loads(text)
        return data[CLIENTS[client].container]["toolgate"]


KINDS = pytest.mark.brief("claude-code", "vscode", "zed", "codex", "opencode")  # one of each notation and form


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Home:
    return Home(tmp_path, monkeypatch, capsys)


def backup(path: Path) -> Path:
    return path.with_name(path.name + ".toolgate-backup")


def test_every_client_that_starts_servers_has_a_place() -> None:
    assert PLACES.keys() == {name for name, spec in CLIENTS.items() if spec.from_command} == LINUX.keys()


@KINDS
@pytest.mark.parametrize("client", LINUX)
def test_without_a_file_one_is_made_and_removed_again(home: Home, client: str) -> None:
    told = home.run("install", client, "--name", "mine", "--sandbox", "none")
    path = home.folder / LINUX[client]
    assert str(path) in told and f"program of {CLIENTS[client].title} was on this machine" in told
    entry = home.entry(client)
    words = entry["command"] if client == "opencode" else [entry["command"], *entry["args"]]
    assert words == [COMMAND, "--name", "mine", "--sandbox", "none"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and not backup(path).exists()
    assert "already has" in home.run("install", client, "--name", "mine", "--sandbox", "none")
    home.run("uninstall", client)
    assert not path.exists()
    assert "has no Toolgate" in home.run("uninstall", client)
    assert "none is on this machine" in home.run("install", code=2)


@KINDS
@pytest.mark.parametrize("client", LINUX)
def test_other_servers_and_comments_stay_and_the_file_comes_back_byte_for_byte(home: Home, client: str) -> None:
    path = home.write(client)
    path.chmod(0o640)
    before = path.read_bytes()
    assert str(backup(path)) in home.run("install", client)
    after = path.read_text()
    kept = iter(after)
    assert all(letter in kept for letter in before.decode()) and COMMAND in after
    assert backup(path).read_bytes() == before
    assert {stat.S_IMODE(each.stat().st_mode) for each in (path, backup(path))} == {0o640}
    assert {each.name for each in path.parent.iterdir() if each.is_file()} == {path.name, backup(path).name}
    assert "already has" in home.run("install", client)
    home.run("install", client, "--name", "changed")
    assert path.read_text() != after and backup(path).read_bytes() == before
    home.run("uninstall", client)
    assert path.read_bytes() == before and not backup(path).exists()


@pytest.mark.brief("zed", "codex")
@pytest.mark.parametrize("client", LINUX)
def test_a_byte_order_mark_is_removed_and_comes_back(home: Home, client: str) -> None:
    path = home.write(client)
    before = b"\xef\xbb\xbf" + path.read_bytes()
    path.write_bytes(before)
    assert "began with a byte order mark" in home.run("install", client)
    assert COMMAND in path.read_text() and not path.read_text().startswith("\ufeff")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert "began with a byte order mark" in home.run("install", client)  # only the mark is left to change
    home.run("uninstall", client)
    assert path.read_bytes() == before


@KINDS
@pytest.mark.parametrize("client", sorted(PLACES.keys() - {"claude-desktop"}))
def test_a_url_is_added_and_takes_the_place_of_a_command(home: Home, client: str) -> None:
    assert CLIENTS[client].sign_in in home.run("install", client, "--url", "https://tools.example.com/mcp")
    url = home.entry(client)
    home.run("install", client)
    home.run("install", client, "--public-url", "https://tools.example.com")
    assert home.entry(client) == url and "https://tools.example.com/mcp" in url.values()
    assert not {"command", "args", "required"} & url.keys()


def test_what_the_person_changed_stays(home: Home) -> None:
    path = home.write("cursor", '{"mcpServers": {}}\n')
    home.run("install", "cursor")
    data = json.loads(path.read_text())
    data["mcpServers"]["toolgate"]["env"] = {"A": "b"}
    data["mcpServers"]["other"] = {"command": "x"}
    path.write_text(json.dumps(data))
    home.run("install", "cursor", "--name", "mine")
    assert home.entry("cursor") == {"command": COMMAND, "args": ["--name", "mine"], "env": {"A": "b"}}
    home.run("uninstall", "cursor")
    assert json.loads(path.read_text()) == {"mcpServers": {"other": {"command": "x"}}}
    assert "toolgate" in json.loads(backup(path).read_text())["mcpServers"]


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("cursor", '{"mcpServers": {"toolgate": {"url": "https://a.example/mcp", "headers": {"Authorization": "A"}}}}'),
        ("qwen-code", '{"mcpServers": {"toolgate": {"httpUrl": "https://a.example/mcp", "headers": {"X-Key": "A"}}}}'),
        ("opencode", '{"mcp": {"toolgate": {"url": "https://a.example/mcp", "oauth": {"clientSecret": "A"}}}}'),
        ("codex", '[mcp_servers.toolgate]\nurl = "https://a.example/mcp"\nbearer_token_env_var = "A"\n'),
        (
            "codex",
            '[mcp_servers.toolgate]\nurl = "https://a.example/mcp"\n'
            '\n[mcp_servers.toolgate.http_headers]\nX-Key = "A"\n',
        ),
    ],
)
def test_the_secret_of_one_server_is_not_left_for_another(home: Home, client: str, text: str) -> None:
    path = home.write(client, text)
    home.run("install", client, "--url", "https://a.example")
    assert '"A"' in path.read_text()
    home.run("install", client, "--url", "https://b.example")
    after = path.read_text()
    assert "https://b.example/mcp" in after and '"A"' not in after


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("cursor", '{"mcpServers": {"a": {"command": "x", "env": {"KEY": "s3cret"}}}}'),
        (
            "cursor",
            '{"mcpServers": {"toolgate": {"url": "https://a.example/mcp?k=s3cret", "headers": {"A": "s3cret"}}}}',
        ),
        (
            "cursor",
            '{"mcpServers": {"toolgate": {"command": "/opt/toolgate", "args": ["s3cret"], "env": {"A": "s3cret"}}}}',
        ),
        ("opencode", '{"mcp": {"toolgate": {"command": ["/opt/toolgate", "s3cret"], "environment": {"A": "s3cret"}}}}'),
        ("codex", '[mcp_servers.toolgate]\ncommand = "/opt/toolgate"\nargs = ["s3cret"]\nenv = {A = "s3cret"}\n'),
        ("cursor", '{"mcpServers": {"toolgate": {"command": "/opt/toolgate", "env": null}}}'),
    ],
)
def test_a_dry_run_shows_this_entry_alone_and_hides_what_others_put_there(home: Home, client: str, text: str) -> None:
    path = home.write(client, text)
    told = home.run("install", client, "--dry-run")
    assert "s3cret" not in told and f"+{'' if client == 'codex' else '    '}" in told and COMMAND in told
    assert '"a"' not in told and path.read_text() == text
    if '"a"' not in text:
        assert "…" in told and "s3cret" not in home.run("uninstall", client, "--dry-run")


def test_the_program_of_another_server_is_named_without_its_arguments(home: Home) -> None:
    home.write("cursor", '{"mcpServers": {"toolgate": {"command": "/opt/other --key s3cret", "args": ["s3cret"]}}}')
    told = home.run("install", "cursor", code=1)
    assert "starts another program (/opt/other): remove or rename it first" in told and "s3cret" not in told


def test_a_path_that_is_not_utf8_is_refused_and_named(home: Home) -> None:
    odd = os.fsdecode(os.fsencode(home.folder) + b"/od\xffd")
    os.mkdir(odd)
    told = home.run("install", "cursor", "--workspace", odd, code=2)
    assert f"--workspace: {home.folder}/od\\xffd is not UTF-8: rename the file or folder" in told
    assert not (home.folder / LINUX["cursor"]).exists()
    home.environment.chdir(odd)
    assert "od\\xffd is not UTF-8" in home.run(code=2)  # the workspace of a server over stdio


def test_a_dry_run_shows_the_change_and_no_secret_and_writes_nothing(home: Home) -> None:
    secret = '{\n  "mcpServers": {\n    "a": {\n      "env": {"KEY": "s3cret\\u001b[2J"}\n    }\n  }\n}\n'
    path = home.write("cursor", secret)
    told = home.run("install", "cursor", "--dry-run")
    assert "nothing is written" in told and f'+      "command": "{COMMAND}",' in told and "s3cret" not in told
    assert path.read_text() == secret and not backup(path).exists()
    home.run("install", "cursor")
    after = path.read_text()
    assert '-    "toolgate": {' in home.run("uninstall", "cursor", "--dry-run")
    assert path.read_text() == after


@pytest.mark.parametrize(
    ("client", "text", "reason"),
    [
        ("cursor", '{\n  "mcpServers": {,}\n}', "line 2, column 18: a name in quotes or } is missing"),
        ("codex", "model = \n", "Invalid value (at line 1, column 9)"),
        ("cursor", '{"mcpServers": []}', "mcpServers is not an object"),
        ("codex", "mcp_servers = 1\n", "mcp_servers is not a table"),
        ("cursor", '{"mcpServers": {"toolgate": {"command": "/opt/ot\\u001bher"}}}', "starts another program"),
        ("opencode", '{"mcp": {"toolgate": {"command": []}}}', "mcp.toolgate starts another program ()"),
    ],
)
def test_a_file_that_can_not_be_edited_stays_and_what_to_paste_is_printed(
    home: Home, client: str, text: str, reason: str
) -> None:
    path = home.write(client, text)
    told = home.run("install", client, code=1)
    assert reason in told and str(path) in told and "put this into the file" in told and COMMAND in told
    assert "\x1b" not in told
    assert path.read_text() == text and [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_link_is_followed_and_stays_a_link(home: Home) -> None:
    real = home.folder / "dotfiles" / "mcp.json"
    real.parent.mkdir()
    real.write_text("{}\n")
    link = home.folder / ".cursor" / "mcp.json"
    link.parent.mkdir()
    link.symlink_to("../dotfiles/mcp.json")
    assert f"(a link to {real})" in home.run("install", "cursor")
    assert link.is_symlink() and "toolgate" in real.read_text() and backup(real).exists()
    home.run("uninstall", "cursor")
    assert link.is_symlink() and real.read_text() == "{}\n"
    real.unlink()
    assert "is a link to a missing file" in home.run("install", "cursor", code=1)
    assert link.is_symlink() and not real.exists()


def test_what_is_no_writable_text_file_of_this_user_is_refused(home: Home) -> None:
    path = home.write("cursor", "{}")
    path.chmod(0o444)
    assert "is read-only: chmod u+w it first" in home.run("install", "cursor", code=1)
    path.chmod(0o644)
    path.write_bytes(b"{\xff}")
    assert "is not UTF-8 text (byte 1)" in home.run("install", "cursor", code=1)
    os.truncate(path, MAX_SIZE + 1)
    assert f"has more than {MAX_SIZE} bytes" in home.run("install", "cursor", code=1)
    path.unlink()
    os.mkfifo(path)
    assert "is not a regular file" in home.run("install", "cursor", code=1)
    path.unlink()
    path.mkdir()
    assert "is not a regular file" in home.run("install", "cursor", code=1)
    path.rmdir()
    if os.geteuid() == 0:
        path.write_text("{}")
        os.chown(path, 12345, 12345)
        assert "belongs to another user (12345)" in home.run("install", "cursor", code=1)
        assert path.read_text() == "{}"


def test_a_file_that_changed_since_it_was_read_is_not_replaced(home: Home) -> None:
    for text in (None, "{}"):
        path = home.write("cursor", text) if text else home.folder / LINUX["cursor"]
        file = read_config_file(path)
        home.write("cursor", '{"theirs": 1}')
        with pytest.raises(ConfigFileError, match="has changed meanwhile: run the command again"):
            file.replace("{}")
        assert path.read_text() == '{"theirs": 1}' and list(path.parent.iterdir()) == [path]
        path.unlink()


def test_the_file_of_a_project_is_used_and_no_link_leads_out_of_it(home: Home) -> None:
    project = home.folder / "project"
    project.mkdir()
    home.environment.chdir(project)
    clients = [client for client in PLACES if PLACES[client].project]
    assert sorted(set(PLACES) - set(clients)) == ["claude-desktop", "windsurf"]
    for client in clients:
        told = home.run("install", client, "--project")
        assert ("trust its folder" in told) == (client in ("zed", "codex", "copilot"))
        path = project / PLACES[client].project
        assert str(path) in told and COMMAND in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o644
        home.run("uninstall", client, "--project")
        assert not path.exists()
    (home.folder / "secrets.json").write_text("{}")
    (project / ".mcp.json").symlink_to("../secrets.json")
    assert "leads out of the project" in home.run("install", "claude-code", "--project", code=1)
    assert (home.folder / "secrets.json").read_text() == "{}"
    told = home.run("install", "windsurf", "--project", code=2)
    assert "Windsurf reads no file of a project: omit --project; those that do are claude-code, cursor" in told


def test_a_client_without_such_a_file_is_refused_with_what_to_do(home: Home) -> None:
    assert "chatgpt" not in home.run("install", "--help") and "claude-ai" not in home.run("uninstall", code=2)
    assert "toolgate config chatgpt" in home.run("install", "chatgpt", code=2)
    told = home.run("install", "claude-desktop", "--url", "https://tools.example.com", code=2)
    assert "toolgate config claude-desktop --public-url https://tools.example.com" in told
    assert "in your account" in home.run("uninstall", "claude-ai", code=2)
    assert "did you mean cursor?" in home.run("install", "curser", code=2)
    for url in ("http://tools.example.com", "tools.example.com", "https://tools.example.com/sse", "https://a/?b"):
        assert "--url: " in home.run("install", "cursor", "--url", url, code=2)


def test_options_that_a_server_refuses_are_refused_before_the_file_is_written(home: Home) -> None:
    (home.folder / "notes.txt").touch()
    for words, reason in (
        (("-p", "./nope"), f"--plugins: there is no folder {home.folder}/nope"),
        (("-p", "notes.txt"), "is neither a folder nor a Python file"),
        (("--workspace", "nope"), f"--workspace: there is no folder {home.folder}/nope"),
        (("--state", "notes.txt"), f"--state: {home.folder}/notes.txt is not a folder"),
        (("--deny", "Bsh"), "--deny Bsh: there is no tool Bsh (did you mean Bash?)"),
    ):
        told = home.run("install", "cursor", *words, code=2)
        assert "toolgate: install: a server with these options does not start: " in told and reason in told
    assert not (home.folder / ".cursor").exists()


def test_what_the_config_file_has_for_the_clients_server_is_checked_too(home: Home) -> None:
    file = home.folder / ".config" / "toolgate" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('database = "postgresql://127.0.0.1:1/none"\n')
    told = home.run("install", "cursor", code=2)
    assert "a server with these options does not start: " in told and not (home.folder / ".cursor").exists()
    file.write_text('http = true\ndatabase = "postgresql://127.0.0.1:1/none"\n')  # the client's server gets none of it
    home.run("install", "cursor")


def test_a_dry_run_leaves_no_state_behind(home: Home) -> None:
    home.run("install", "cursor", "--dry-run", "--state", "new")
    assert not (home.folder / "new").exists()


def test_install_says_what_readdocs_lacks(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home.folder))  # without Chromium
    assert "note: ReadDocs runs no scripts of pages yet; to add that: apt-get install chromium-headless-shell\n" in (
        home.run("install", "cursor")
    )
    assert "note: ReadDocs" not in home.run("install", "gemini-cli", "--browser", "none")
    assert "note: ReadDocs" not in home.run("install", "codex", "--url", "https://tools.example.com")


def test_without_a_client_those_on_this_machine_are_listed(home: Home) -> None:
    assert "CLIENT is missing: claude-desktop" in home.run("install", code=2)
    home.write("cursor", "{}")
    home.write("codex")
    program = home.folder / "bin" / "gemini"
    program.parent.mkdir()
    program.touch(mode=0o755)
    home.environment.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    told = home.run("install", code=2)
    assert (
        "CLIENT is missing. On this machine: cursor, codex, gemini-cli; others are claude-desktop, claude-code" in told
    )
    home.run("install", "cursor")
    assert "On this machine: cursor (has Toolgate), codex" in home.run("uninstall", code=2)


def test_without_a_client_a_person_at_a_terminal_is_asked(home: Home) -> None:
    home.write("cursor", "{}")
    home.write("codex")
    outer, inner = pty.openpty()
    command = [COMMAND, "install", "--browser", "none"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home.folder), "TERM": "dumb"}
    with subprocess.Popen(
        command, stdin=inner, stdout=inner, stderr=inner, cwd=home.folder, env=environment, start_new_session=True
    ) as process:
        os.close(inner)
        try:
            os.write(outer, b"fern\n2\n")
            shown = b""
            with contextlib.suppress(OSError):  # the end, on Linux
                while select.select([outer], [], [], PATIENCE)[0] and (data := os.read(outer, 65_536)):
                    shown += data
            assert process.wait(PATIENCE) == 0, shown
        finally:
            process.kill()
            os.close(outer)
    told = shown.decode()
    assert "Clients on this machine:" in told and "   2  codex" in told and "There is no client 'fern'." in told
    assert "Added Toolgate to Codex" in told and home.entry("codex")["command"] == COMMAND


def test_on_wsl_an_app_of_windows_gets_text_to_paste(home: Home) -> None:
    home.environment.setenv("WSL_DISTRO_NAME", "Debian")
    told = home.run("install", "cursor", code=1)
    (servers,) = json.loads(told[: told.rindex("}") + 1]).values()
    assert servers["toolgate"] == {"command": "wsl.exe", "args": ["-d", "Debian", "--", COMMAND]}
    assert "Cursor runs on Windows" in told and "or open this link: cursor://" in told
    home.run("install", "codex")


def test_each_platform_has_its_places(home: Home) -> None:
    mac = Platform("darwin", {}, Path("/Users/ada"))
    linux = Platform(
        "linux", {"CODEX_HOME": "/c", "XDG_CONFIG_HOME": "/x", "COPILOT_HOME": "relative"}, Path("/home/ada")
    )
    assert {name: str(find_file(name, mac, None)) for name in PLACES} == {
        name: f"/Users/ada/{MAC.get(name, path)}" for name, path in LINUX.items()
    }
    assert find_file("codex", linux, None) == Path("/c/config.toml")
    assert find_file("zed", linux, None) == Path("/x/zed/settings.json")
    assert find_file("copilot", linux, None) == Path("/home/ada/.copilot/mcp-config.json")
    (home.folder / "opencode.jsonc").write_text("{}")
    assert find_file("opencode", linux, home.folder) == home.folder / "opencode.jsonc"


CLAUDE = """#!/usr/bin/python3
import json, os, sys
path = os.environ["HOME"] + "/.claude.json"
data = json.load(open(path)) if os.path.exists(path) else {}
words = sys.argv[1:]
assert words[2:4] == ["--scope", "user"] and not [name for name in os.environ if name.startswith("TOOLGATE_")]
servers = data.setdefault("mcpServers", {})
if words[1] == "add-json":
    if words[4] in servers:
        sys.exit("MCP server already exists\\x1b[2J")
    servers[words[4]] = json.loads(words[5])
else:
    del servers[words[4]]
json.dump(data, open(path, "w"))
"""


def test_claude_code_changes_its_file_itself(home: Home) -> None:
    program = home.folder / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(CLAUDE)
    program.chmod(0o755)
    home.environment.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    home.environment.setenv("TOOLGATE_TOKEN", "secret")
    home.run("install", "claude-code")
    home.run("install", "claude-code", "--name", "mine")
    assert home.entry("claude-code") == {"type": "stdio", "command": COMMAND, "args": ["--name", "mine"]}
    assert "already has" in home.run("install", "claude-code", "--name", "mine")
    home.run("uninstall", "claude-code")
    assert json.loads((home.folder / ".claude.json").read_text()) == {"mcpServers": {}}
    program.write_text("#!/bin/sh\nprintf 'no\\033[2J room' >&2; exit 1\n")
    told = home.run("install", "claude-code", code=1)
    assert r"claude mcp add-json failed: no\x1b[2J room" in told and COMMAND in told
