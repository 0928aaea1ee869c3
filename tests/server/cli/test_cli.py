"""The command line: help, refusals, call, tools, demo, config file, environment."""

import contextlib
import http.server
import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.clients.raw_client import COMMAND, ROOT, eventually
from tests.interop.official_clients import THIRTEEN
from tests.needed_features import require_for
from tests.servers import forked_command
from tests.servers.reserved_port import kept_port
from toolgate.server.cli import main


def run(folder: Path, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **env}
    return forked_command.run([COMMAND, *words], stdin, cwd=folder, env=environment)


def test_help_names_every_option_that_works_and_every_command(tmp_path: Path) -> None:
    told = [run(tmp_path, *words) for words in (["--help"], ["serve", "--help"], ["call", "--help"])]
    assert [each.returncode for each in told] == [0, 0, 0]
    for word in ("--plugins", "--state", "--allow-private", "TOOLGATE_", "--url", "demo", "call", "tools"):
        assert any(word in each.stdout for each in told), word


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--no-such"], "--no-such"),
        (["nonsense"], "nonsense"),
        (["-t", "--auth", "sometimes"], "--auth"),
        (["-t", "--auth", "http://issuer.example"], "--auth"),
        (["-t", "--auth", "https://user@issuer.example"], "--auth"),
        (["-t", "--auth", "https://issuer.example/#here"], "--auth"),
        (["-t", "--host", "0.0.0.0"], "--public-url"),
        (
            ["-t", "--host", "0.0.0.0", "--public-url", "https://example.com", "--sandbox", "none"],
            "--accept-unsandboxed",
        ),
        (["-t", "--public-url", "https://example.com", "--sandbox", "none"], "--accept-unsandboxed"),
        (["-t", "--auth", "https://issuer.example", "--host", "0.0.0.0"], "--public-url"),
        (["-t", "--public-url", "http://example.com"], "--public-url"),
        (["-t", "--public-url", "example.com"], "--public-url"),
        (["-t", "--public-url", "https://example.com/?a=b"], "--public-url"),
        (["-t", "--public-url", "https://example.com:port"], "--public-url"),
        (["-t", "--public-url", 'https://example.com/"x'], "--public-url"),
        (["-t", "--auth", "none", "--host", "0.0.0.0"], "--host"),
        (["-t", "--auth", "none", "--host", "example.com"], "--host"),
        (["-t", "--auth", "none", "--public-url", "https://example.com"], "--public-url"),
        (["-t", "--auth", "none", "--port", "70000"], "--port"),
        (["-t", "--auth", "none", "--redis", "http://127.0.0.1"], "--redis"),
        (["-t", "--auth", "none", "--redis", "redis://127.0.0.1"], "--database"),
        (
            ["-t", "--auth", "none", "--redis", "redis://127.0.0.1", "--database", "postgresql://127.0.0.1/name"],
            "--node",
        ),
        (["--sandbox", "none", "--sandbox-network", "public"], "without a sandbox"),
        (["--sandbox", "uid", "--sandbox-network", "public"], "--sandbox"),
        (["--sandbox-network", "some"], "none, public or all"),
        (["--sandbox-uids", "0-5"], "--sandbox-uids"),
        (["--limit", "memory"], "NAME=VALUE"),
        (["--limit", "memory=much"], "512M"),
        (["--sandbox", "strong"], "--sandbox"),
        (["--hold", "soon"], "--hold"),
        (["--hold", "-1"], "--hold"),
        (["--grace", "1e9"], "--grace"),
        (["--workspace", "/no/such/folder"], "--workspace"),
        (["--state", "/proc/no"], "--state"),
        (["--config", "/no/such/file"], "--config"),
        (["--name", ""], "--name"),
        (["--engines", "altavista"], "--engines"),
        (["--allow-private", "not a host!"], "--allow-private"),
        (["call"], "call"),
        (["call", "Nope"], "Nope"),
        (["call", "Bash", "noequals"], "noequals"),
        (["demo", "extra"], "extra"),
        (["demo", "--url", "http://127.0.0.1:1/mcp"], "--url"),
        (["--url", "http://127.0.0.1:1/mcp"], "--url"),
        (["tools", "--url", "127.0.0.1:8080"], "--url"),
        (["tools", "--url", "ftp://127.0.0.1/mcp"], "--url"),
        (["tools", "--url", "http://127.0.0.1:1/mcp", "--plugins", "."], "--plugins"),
    ],
)
def test_a_wrong_command_line_is_refused_with_2_and_names_what_is_wrong(
    tmp_path: Path, words: list[str], named: str
) -> None:
    require_for(" ".join(words))
    told = run(tmp_path, *words)
    assert (told.returncode, told.stdout) == (2, "")
    assert named in told.stderr and "Traceback" not in told.stderr


def test_flags_beat_the_environment_and_the_environment_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('name = "from-file"\nhold = 7\nplugins = []\n')
    hello = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}\n'

    def name(*words: str, **env: str) -> str:
        told = run(tmp_path, *words, stdin=hello, **env)
        assert told.returncode == 0, told.stderr
        return str(json.loads(told.stdout)["result"]["serverInfo"]["name"])

    assert name() == "toolgate"
    assert name("--config", str(file)) == "from-file"
    assert name(TOOLGATE_CONFIG=str(file), TOOLGATE_NAME="from-env") == "from-env"
    assert name("-n", "from-flag", TOOLGATE_NAME="from-env") == "from-flag"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--sandbox bwrp", "--sandbox: must be auto, bwrap, uid or none, not 'bwrp' (did you mean bwrap?)"),
        ("--hold abc", "--hold: must be seconds, more than 0 and at most 3600, or a time such as 90s or 5m, not 'abc'"),
        ("--limit memory=lots", "--limit: memory: 'lots' is not a size such as 512M"),
        ("--deny Bash(", "--deny: 'Bash(' is not a rule: a rule is [WHO=]WHAT[(PATTERN)], such as Bash"),
        ("--logs file", "/file is not a folder"),
        ("--workspace file", "/file is not a folder"),
        ("--state file", "/file is not a folder"),
        ("-t --port 99999", "--port: must be a number from 0 to 65535, not '99999'"),
        ("-t --idle-after 5m", "--idle-after: must be at least one hour, such as 12h or 90d, not '5m'"),
        ("-t --host 0.0.0.0", "--public-url is missing: beyond localhost it is required"),
        ("-t --public-url https://example.com/mcp", "--public-url: must not end in /mcp: the server adds it"),
        ("-t --public-url https://[::1", "--public-url: must be an https URL such as https://tools.example.com"),
        ("--searxng http://[x", "--searxng: must be an http or https URL"),
        ("-t --clients none.toml", "/none.toml: no such file or directory"),
        ("-t --metrics-token none", "/none: no such file or directory"),
        ("-t --login github --github-client none", "/none: no such file or directory"),
        ("-t --login pasword", "header=NAME, not 'pasword' (did you mean password?)"),
        ("-t --trusted-proxies x", "must be an address, or a network such as 10.0.0.0/8"),
        ("call bash", "call: unknown tool 'bash' (did you mean Bash?); tools are Bash, "),
        ("health --url nonsense", "--url: 'nonsense' is not an http or https URL"),
        ("call Bash ls", "call: 'ls' is not ARGUMENT=VALUE, such as command=…"),
        ("call Bash command=ls command=pwd", "call: command is given twice"),
    ],
)
def test_a_refusal_names_the_thing_and_says_what_to_change(tmp_path: Path, words: str, said: str) -> None:
    require_for(words)
    (tmp_path / "file").touch()
    told = run(tmp_path, *words.split())
    assert (told.returncode, told.stdout) == (2, "") and said in told.stderr
    assert "Errno" not in told.stderr and "Error" not in told.stderr


@pytest.mark.parametrize(
    "words",
    [
        "--config FILE",
        "--search-keys FILE",
        "-t --clients FILE",
        "-t --login github --github-client FILE --allow-users a@example.com",
        "-t --metrics-token FILE",
        "-t --database file:FILE",
        "-t --database postgresql://127.0.0.1/name --secret FILE",
        "-t --database postgresql://127.0.0.1/name --redis file:FILE",
        "--node example.com:7443 --node-certificate FILE",
        "mount import FILE",
    ],
)
def test_a_pipe_or_a_device_in_the_place_of_a_file_is_refused_without_waiting(tmp_path: Path, words: str) -> None:
    require_for(words)
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/zero")):
        told = run(tmp_path, *words.replace("FILE", str(place)).split())
        assert told.returncode in (1, 2) and told.stdout == ""
        assert str(place) in told.stderr and "Traceback" not in told.stderr


def test_a_current_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    words = f'mkdir "$0/gone" && cd "$0/gone" && rmdir "$0/gone" && exec "{COMMAND}" tools'
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    told = subprocess.run(["sh", "-c", words, str(tmp_path)], env=environment, capture_output=True, text=True)
    said = "toolgate: --workspace: the current directory is gone; name a folder\n"
    assert (told.returncode, told.stdout, told.stderr) == (2, "", said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 5_000, "too many levels"),
        ("hold = " + "9" * 5_000, "a number has too many digits"),
        ("#" * 2**20 + "\n", "over 1,048,576 bytes"),
    ],
)
def test_a_config_file_that_no_parser_takes_is_refused_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    told = run(tmp_path, "--config", "config.toml")
    assert (told.returncode, told.stdout) == (2, "")
    assert said in told.stderr and len(told.stderr.splitlines()) == 1


def test_a_config_file_in_the_current_directory_is_not_read_unless_named(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("nonsense = 1\n")
    (tmp_path / "toolgate.toml").write_text("nonsense = 1\n")
    assert run(tmp_path).returncode == 0
    told = run(tmp_path, "--config", "config.toml")
    assert told.returncode == 2 and "nonsense" in told.stderr


def test_the_users_own_config_file_is_read(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "toolgate"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("hold = 'never'\n")
    told = run(tmp_path)
    assert told.returncode == 2 and "hold in" in told.stderr


def test_call_prints_the_content_and_its_exit_code_says_whether_the_tool_could(tmp_path: Path) -> None:
    told = run(tmp_path, "call", "Bash", "command=echo $((40 + 2)) > x; cat x", "timeout=5000")
    assert (told.returncode, told.stdout) == (0, "42\n"), told.stderr
    assert (tmp_path / "x").read_text() == "42\n"
    failed = run(tmp_path, "call", "ReadImage", "file_path=relative.png")
    assert failed.returncode == 1 and "absolute" in failed.stdout
    wrong = run(tmp_path, "call", "Bash", "command=true", "timeout=soon")
    assert wrong.returncode == 1 and "timeout" in wrong.stdout


@contextlib.contextmanager
def listening(folder: Path, *command: str) -> Generator[str, None, None]:
    """Start a server that logs where it listens, and return its base URL."""
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        text=True,
    )
    killer = threading.Timer(60, process.kill)
    killer.start()
    assert process.stderr is not None
    try:
        found = next(filter(None, (re.search(r"http://[0-9.]+:[0-9]+", line) for line in process.stderr)))
        yield found[0]
    finally:
        process.terminate()
        process.stderr.read()
        process.wait()
        process.stderr.close()
        killer.cancel()


def names(listed: str) -> list[str]:
    return [line.partition("(")[0] for line in listed.splitlines() if not line.startswith(" ")]


def test_call_and_tools_ask_a_running_server_by_its_url(tmp_path: Path) -> None:
    words = ("-t", "--auth", "none", "--port", "0", "--workspace", ".", "--sandbox", "none")
    with listening(tmp_path, COMMAND, *words) as base:
        url = f"{base}/mcp"
        told = run(tmp_path, "call", "Bash", "command=echo $((40 + 2)) > x; cat x", "timeout=5000", "--url", url)
        assert (told.returncode, told.stdout) == (0, "42\n"), told.stderr
        assert (tmp_path / "x").read_text() == "42\n"
        failed = run(tmp_path, "call", "--url", url, "ReadImage", "file_path=relative.png")
        assert failed.returncode == 1 and "absolute" in failed.stdout
        unknown = run(tmp_path, "call", "Nope", "--url", url)
        assert unknown.returncode == 2 and "Nope" in unknown.stderr
        listed = run(tmp_path, "tools", "--url", url)
        assert names(listed.stdout.partition("\n\n")[0]) == THIRTEEN
        assert "\nPrompts:\n" in listed.stdout and "\nResources:\n" in listed.stdout
        lost = run(tmp_path, "tools", "--url", f"{base}/nothing-here")
        assert (lost.returncode, lost.stdout) == (1, "") and f"Streamable HTTP is at {url}" in lost.stderr


class OfSessions(http.server.BaseHTTPRequestHandler):
    """Stands in for a server of the sessions era: all requests but initialize need the session, and are answered in
    events."""

    ended = False

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_first = message["method"] == "initialize"
        if not is_first and self.headers["Mcp-Session-Id"] != "s1":
            self.answer(400, "application/json", {"error": {"code": -32600, "message": "no session"}, "id": None})
            return
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "old", "version": "1"}}
        results = {
            "initialize": hello,
            "tools/list": {"tools": [{"name": "where", "description": "", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "in a session"}]},
        }
        kind = "application/json" if is_first else "text/event-stream"
        self.answer(200, kind, {"id": message.get("id"), "result": results.get(message["method"])})

    def do_DELETE(self) -> None:
        type(self).ended = True
        self.answer(200, "application/json", {})

    def answer(self, status: int, kind: str, message: dict[str, object]) -> None:
        text = json.dumps({"jsonrpc": "2.0", **message})
        body = (f"id: 1\r\n: a comment\r\ndata: {text}\r\n\r\n" if "event" in kind else text).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Mcp-Session-Id", "s1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_call_falls_back_to_a_session_and_ends_it(tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), OfSessions) as site:
        serving = threading.Thread(target=site.serve_forever, args=(0.02,))
        serving.start()
        told = run(tmp_path, "call", "where", "--url", f"http://127.0.0.1:{site.server_port}/mcp")
        site.shutdown()
        serving.join()
    assert (told.returncode, told.stdout, told.stderr) == (0, "in a session\n", "")
    assert OfSessions.ended


def test_call_says_when_no_server_listens_at_the_url(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{kept_port()}/mcp"
    told = run(tmp_path, "call", "Bash", "command=true", "--url", url)
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr == f"toolgate: {url}: connection refused; is the server running?\n"


def test_tools_lists_the_thirteen_in_order_and_plugins_behind_them(tmp_path: Path) -> None:
    told = run(tmp_path, "tools", "-p", str(ROOT / "tests" / "bench" / "plugins"))
    assert told.returncode == 0, told.stderr
    assert names(told.stdout.partition("\n\n")[0]) == [*THIRTEEN, "echo"]
    assert "Bash(command*, timeout)" in told.stdout


def test_tools_lists_prompts_and_all_resources_too(tmp_path: Path) -> None:
    told = run(tmp_path, "tools", "-p", str(ROOT / "tests" / "plugins"))
    assert told.returncode == 0, told.stderr
    assert "\ngreeting(name*, tone, times)\n    Greet somebody.\n" in told.stdout
    assert "\nnote://{name}\n    A note.\n" in told.stdout
    assert "\nmany://599\n" in told.stdout


def test_a_config_file_for_serving_over_http_keeps_no_command_from_a_server_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "toolgate" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('http = true\nauth = "none"\nport = 1\nallowed-hosts = ["a"]\nname = "mine"\n')
    told = run(tmp_path, "call", "Bash", "command=echo hi; env", TOOLGATE_SSE="1", TOOLGATE_TOKEN="secret")
    assert told.returncode == 0 and told.stdout.startswith("hi\n"), told.stderr
    assert "TOOLGATE_" not in told.stdout


def test_an_answer_that_does_not_come_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    async def late() -> int:
        raise TimeoutError

    assert main._wait(late()) == 1
    assert capsys.readouterr().err == "toolgate: no answer in time\n"


def test_a_run_on_a_terminal_explains_itself_on_standard_error(tmp_path: Path) -> None:
    outer, inner = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    process = subprocess.Popen(
        [COMMAND], stdin=inner, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=environment
    )
    os.close(inner)
    assert process.stdout and process.stderr
    try:
        told = process.stderr.readline() + process.stderr.readline()
        assert b"waiting for an MCP client" in told and b"toolgate demo" in told
        os.write(outer, b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        assert json.loads(process.stdout.readline()) == {"jsonrpc": "2.0", "id": 1, "result": {}}
        os.write(outer, b"\x04")  # Ctrl-D
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
        os.close(outer)


def test_version_is_told(tmp_path: Path) -> None:
    assert run(tmp_path, "--version").stdout.startswith("toolgate ")


def test_python_dash_m_is_the_same_command(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "toolgate.server", "--version"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=30,
    )
    assert told.stdout.startswith("toolgate ")


def test_logs_go_to_a_file_when_asked(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "broken.py").write_text("import nowhere\n")
    told = run(tmp_path, "-v", "--logs", str(tmp_path / "logs"), "-p", str(tmp_path / "plugins"))
    assert told.returncode == 0
    assert "nowhere" in (tmp_path / "logs" / "toolgate.log").read_text()
    assert "nowhere" in told.stderr


def test_the_state_folder_is_private(tmp_path: Path) -> None:
    run(tmp_path, "call", "Bash", "command=true")
    state = tmp_path / ".local" / "share" / "toolgate"
    assert state.stat().st_mode & 0o777 == 0o700


def test_the_demo_works_from_beginning_to_end(tmp_path: Path) -> None:
    told = run(
        tmp_path, "demo", TOOLGATE_HTTP="1", TOOLGATE_TOOLS="Bash", TOOLGATE_PUBLIC_URL="https://tools.example.com"
    )  # it serves its own
    assert told.returncode == 0, told.stdout[-3000:] + told.stderr[-3000:]
    for name in THIRTEEN:
        assert f"✓ {name}" in told.stdout, name
    for chapter, revision in {
        "stdio": "2025-11-25",
        "HTTP+SSE": "2024-11-05",
        "Streamable HTTP with sessions": "2025-11-25",
        "Streamable HTTP without sessions": "2026-07-28",
    }.items():
        toured = told.stdout[told.stdout.index(f"\n{chapter}") :]
        assert f"revision {revision}" in toured[:300], chapter
    assert told.stdout.count("streamed while it ran") == 3
    assert "All of it worked" in told.stdout
    assert eventually(lambda: not list(Path("/tmp").glob("toolgate-demo-*/work")))


def test_an_answer_is_one_object_for_programs_and_its_image_a_file(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "pictures.py").write_text(
        "from toolgate.tools import Image, tool\n@tool\nasync def pictures() -> list[Image]:\n"
        '    """Two of them."""\n    return [Image(b"one", "image/png"), Image(b"two", "image/png")]\n'
    )
    told = run(tmp_path, "call", "pictures", "--json", "--output", "a.png", "-p", "own")
    assert told.returncode == 0, told.stderr
    assert [block["type"] for block in json.loads(told.stdout)["content"]] == ["image", "image"]
    assert ((tmp_path / "a.png").read_bytes(), (tmp_path / "a-2.png").read_bytes()) == (b"one", b"two")
    told = run(tmp_path, "call", "Bash", "command=echo hi", "--output", "b.png")
    assert (told.returncode, told.stdout) == (1, "hi\n") and "--output: the answer has no image" in told.stderr
    assert not (tmp_path / "b.png").exists()
