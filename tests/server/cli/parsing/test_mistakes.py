"""The mistakes that people make at the terminal: each message names the thing and the fix, in words of theirs."""

import io
import os
import shlex
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needed_features import require_for
from toolgate.server.cli import main

TABLE: dict[str, tuple[str, ...]] = {  # the words → what the message says
    # options
    "--prot 80": ("--prot", "did you mean --port?"),
    "tools --plugin x": ("--plugin ", "did you mean --plugins?"),
    "--hlep": ("did you mean --help?",),
    "-x": ("unknown option -x", "usage: toolgate"),
    "--http --stdio": ("--stdio and --http exclude each other: a server serves stdio or HTTP",),
    "install --al": ("unknown option --al; see toolgate install --help",),
    "demo --fast": ("unknown option --fast; see toolgate demo --help",),
    "install cursor --dry-rnu": ("did you mean --dry-run?", "see toolgate install --help"),
    "TOOLGATE_PROT=80 tools": ("unknown variable TOOLGATE_PROT", "did you mean TOOLGATE_PORT?"),
    "TOOLGATE_TRUSTED_PROXY=10.0.0.1 tools": ("did you mean TOOLGATE_TRUSTED_PROXIES?",),
    "TOOLGATE_PORT=http tools": ("TOOLGATE_PORT: must be a number from 0 to 65535, not 'http'",),
    "--port": ("--port needs a value",),
    "--verbose=yes": ("--verbose takes no value",),
    "user list --port 99": ("--port does not belong here", "serve, doctor, health"),
    "-t --port http": ("--port", "a number from 0 to 65535", "'http'"),
    "-t --port 70000": ("--port", "'70000'"),
    "-t --host 0.0.0.0": ("--public-url is missing", "the https URL that clients use"),
    "-t --host 256.1.1.1": ("--host: must be an address such as 127.0.0.1", "not '256.1.1.1'"),
    "-t --host=": ("--host: must be an address",),
    "-t --host 1.2.3.4 --auth none": ("--host", "loopback only, not on 1.2.3.4"),
    "-t --allowed-hosts *": ("--allowed-hosts: must be a host such as tools.example.com", "not '*'"),
    "-t --allowed-hosts https://a.example": ("with or without a port, not 'https://a.example'",),
    "-t --allowed-origins app.example.com": ("--allowed-origins: must be an origin such as https://",),
    "-t --public-url http://tools.example.com": ("--public-url: must be an https URL",),
    "-t --public-url https://tools.example.com --sandbox none": ("--sandbox none", "--accept-unsandboxed"),
    "-t --auth none --sandbox none --port {port}": ("can't listen on 127.0.0.1:{port}: address already in use",),
    "node --listen unix:/a --listen unix:/a": ("--listen unix:/a is given twice", "give each address once"),
    "node --state /s --max-people 0": ("--max-people: must be a number from 1 to 999999, not '0'",),
    "node --state /s --max-people 1 --workspace .": ("--max-people has no effect with --workspace", "leave one out"),
    "health --node nowhere": ("--node: must be unix:/PATH", "not 'nowhere'"),
    "health --node unix:/a --url http://127.0.0.1": ("--url has no effect with --node: give one of them",),
    "-t --auth nobody": ("--auth", "oauth, none or the URL of an issuer"),
    "-t --auth oath": ("did you mean oauth?",),
    "-t --auth none --host 0.0.0.0": ("--host", "loopback only"),
    "-t --public-url example.com": ("--public-url", "https URL such as"),
    "-t --public-url https://example.com/mcp": ("--public-url", "must not end in /mcp"),
    "-t --login oidc": ("--login", "oidc=ISSUER"),
    "-t --login google": ("--login: must be one of", "write oidc=https://accounts.google.com"),
    "-t --login oidc=http://id.example": ("--login: the issuer must be an https URL, such as oidc=https://accounts",),
    "-t --login oidc=accounts.google.com": ("--login: the issuer is a URL: oidc=https://accounts.google.com",),
    "-t --login githb": ("did you mean github?",),
    "-t --login oidc=https://id.example": ("--oidc-client FILE", "TOOLGATE_OIDC_ID", "--allow-users"),
    "-t --login header=X-User": ("--login header needs --trusted-proxies",),
    "-t --trusted-proxies localhost": ("--trusted-proxies", "such as 10.0.0.0/8", "'localhost'"),
    "-t --trusted-proxies 10.0.0.1/8": ("zeros follow the prefix",),
    "-t --allow-users ada": ("--allow-users: 'ada' has no effect",),
    "-t --registration opne": ("did you mean open?",),
    "-t --idle-after 5": ("--idle-after", "12h or 90d"),
    "-t --clients none.toml": ("--clients: can't read", "none.toml"),
    "-t --metrics-token none": ("--metrics-token: can't read",),
    "--limit memory=lots tools": ("--limit: memory: 'lots'", "such as 512M"),
    "--limit memry=1G tools": ("there is no limit 'memry'", "did you mean memory?"),
    "--limit memory tools": ("'memory' is not NAME=VALUE", "memory=512M"),
    "--sandbox bwrp tools": ("did you mean bwrap?",),
    "--sandbox-uids 0-5 tools": ("--sandbox-uids", "40000-49999"),
    "--tools Bsh tools": ("--tools: 'Bsh' matches no built-in tool (did you mean Bash?)",),
    "--tools 'Bash,' tools": ("--tools: must be patterns of names",),
    "--tools !git_* tools": ("'!git_*' matches no built-in tool", "none leaves out all"),
    "--tools '!Bash,*' tools": ('write "*" first',),
    "--hold soon tools": ("--hold", "seconds", "'soon'", "5m"),
    "--hold 5d tools": ("--hold", "5m", "'5d'"),
    "--log-format xml tools": ("--log-format", "text or json"),
    "--database x tools": ("--database does not belong here",),
    "--name= tools": ("--name", "1 to 64 printable"),
    "--deny Bash( tools": ("--deny", "'Bash(' is not a rule", "Bash(git push*)"),
    "--approve account:ada tools": ("--approve: 'account:ada' is a caller: add what", "account:ada=Bash"),
    "--deny Bsh call Bash command=ls": ("--deny Bsh: there is no tool Bsh", "did you mean Bash?"),
    "--approve 'rm *' tools": ("there is no tool rm (did you mean Bash(rm *)?)",),
    "--approve scope:tools:shel tools": ("there is no scope tools:shel", "did you mean tools:shell?"),
    "--structured-output lots tools": ("lean or full",),
    # files and folders
    "--config none tools": ("--config: there is no file none",),
    "--config adir tools": ("--config: can't read adir: is a directory",),
    "--config bad.toml tools": ("unknown option 'nmae'", "did you mean name?"),
    "--config broken.toml tools": ("broken.toml is not valid TOML", "line 1"),
    "--config tables.toml tools": (
        "tables.toml: there is no table [server]: ",
        "write port = 8080 at the top",
    ),
    "--config switch.toml tools": ("switch.toml is not valid TOML: line 2: http must be true or false",),
    "--config word.toml tools": ("word.toml is not valid TOML: line 1: name must be a number, or a text in quotes",),
    "--config list.toml tools": ("list.toml is not valid TOML: line 1: deny must be a list of texts, such as",),
    "--state afile user list": ("--state", "afile is not a folder"),
    "--workspace none tools": ("--workspace: there is no folder",),
    "--plugins none tools": ("--plugins: there is no folder",),
    "--plugins adir/none.py tools": ("--plugins: there is no file", "adir/none.py"),
    "--plugins afile tools": ("afile is neither a folder nor a Python file", "must end in .py"),
    "--skills none tools": ("--skills: there is no folder",),
    "--engines googl tools": ("unknown search engine 'googl'", "known: duckduckgo"),
    "--engines duckduck tools": ("did you mean duckduckgo?",),
    "--browser none-such tools": ("--browser: program none-such not found: give the path of Chromium",),
    "backup b.tar": ("--state: there is no folder",),
    "--state adir backup afile": ("afile already exists: name another file",),
    "--state adir backup none/dir/b.tar": ("there is no folder none/dir: create it first",),
    "--state adir backup b.tar": ("adir has nothing to back up: --state names another folder",),
    "--state adir restore afile": ("the file is damaged, or is not a backup",),
    "--state used restore afile": ("used is not empty", "--replace replaces what the backup has"),
    "restore none.tar": ("none.tar: no such file",),
    # commands
    "doctr": ("unknown command 'doctr'", "did you mean doctor?"),
    "start": ("there is no command 'start': toolgate serve",),
    "update": ("there is no command 'update': upgrade it as it was installed",),
    "help start": ("help: unknown command 'start': toolgate serve",),
    "help doctr": ("did you mean doctor?", "toolgate --help"),
    "user": ("user: COMMAND is missing: add, list, remove, passwd",),
    "user add": ("user add: NAME is missing", "usage: toolgate user add NAME"),
    "user add a/b": ("'a/b' can't be a name", "only letters, digits"),
    "user ad ada": ("did you mean add?",),
    "user add ada": ("no password was given: type one, or pipe it in",),
    "user passwd nobody": ("there is no account 'nobody'", "toolgate user list"),
    "user remove nobody": ("there is no account 'nobody'", "toolgate user list"),
    "user list extra": ("unexpected 'extra'", "usage: toolgate user list"),
    "client add Fern": ("REDIRECT… is missing", "usage: "),
    "client add Fern nowhere": ("'nowhere' is neither a redirect URI nor a platform", "platforms are claude"),
    "client add Fern http://example.com/cb": ("client add: 'http://example.com/cb': a redirect URI must be https",),
    "client remove none": ("there is no client 'none'", "toolgate client list"),
    "token revoke": ("COMMAND is missing: user, client, grant, all",),
    "token revoke grant none": ("there is no active grant 'none'", "toolgate token list"),
    "token revoke user nobody": ("there is no user 'nobody'", "toolgate token list"),
    "config": ("CLIENT is missing: claude-desktop",),
    "config cursr": ("did you mean cursor?",),
    "config chatgpt": ("add --public-url",),
    "config cursor extra": ("config: takes CLIENT and nothing else", "usage: toolgate config CLIENT"),
    "install": ("install: CLIENT is missing: claude-desktop",),
    "install cursr": ("did you mean cursor?",),
    "install claude": ("did you mean claude-desktop or claude-code?",),
    "install code": ("did you mean vscode?",),
    "install cursor codex": ("install: takes CLIENT and nothing else",),
    "install qwen": ("did you mean qwen-code?",),
    "uninstall claude": ("did you mean claude-desktop or claude-code?",),
    "install cursor -p none": ("install: a server with these options does not start: --plugins: there is no folder",),
    "install cursor --workspace none": ("does not start: --workspace: there is no folder",),
    "install cursor --skills none --dry-run": ("does not start: --skills: there is no folder",),
    "install cursor --deny Bsh": ("does not start: --deny Bsh: there is no tool Bsh", "did you mean Bash?"),
    "install cursor --browser none-such": ("does not start: --browser: program none-such not found",),
    "install chatgpt": ("ChatGPT has no file", "toolgate config chatgpt"),
    "install windsurf --project": ("Windsurf reads no file of a project: omit --project",),
    "install cursor --url nope": ("--url: must be an https URL such as",),
    "audit --since tomorrow": ("--since", "today or yesterday", "7d ago", "'tomorrow'"),
    "audit --last many": ("--last: must be a number", "'many'"),
    "audit --decision deneid": ("--decision", "did you mean denied?"),
    "audit --follow --until today": ("--follow waits for calls to come", "leave one out"),
    "audit --outcome fine": ("--outcome", "ok, error, refused"),
    "audit verfy": ("did you mean verify?",),
    "workspace archive nobody": ("there is no person 'nobody'", "toolgate workspace list"),
    # tools and servers
    "call": ("TOOL is missing; toolgate tools lists them", "usage: toolgate call TOOL"),
    "call bash command=ls": ("unknown tool 'bash'", "did you mean Bash?"),
    "call Bash ls": ("'ls' is not ARGUMENT=VALUE, such as command=…",),
    "call Bash --command=ls": ("unknown option --command", "arguments have no dashes: command=…"),
    "call Bash --token=s3cret": ("unknown option --token", "token=…"),
    "call Bash": ('argument "command" is missing',),
    "call Bash command=ls timeout=soon": ('argument "timeout" must be an integer, not "soon"',),
    "call Bash command=ls timeout=999999999": ("greater than the maximum of 600000",),
    "call ReadBgOutput task_id=99": ("no background task 99", "ListBgTasks"),
    "call InvokeSkill skill_name=nope": ("'nope' is not a skill; skills are: toolgate-tools",),
    "call ReadImage file_path=a.png": ("'a.png' is not an absolute path: give one that begins with /",),
    "call TaskManager action=complete query=tests": ("no task is named 'tests': list shows what there is",),
    "call Bash cmd=ls": ('no argument "cmd"', 'did you mean "command"?'),
    "call TaskManager action=delete query=": ('"delete" is not one of "create", "add", "complete"',),
    "call ReadDocs url=/etc/passwd": (
        "only http and https URLs can be fetched, not /etc/passwd: begin a web address with https://",
    ),
    "call ReadDocs url=toolgate.invalid/page --browser none": ("could not resolve toolgate.invalid",),
    "call ReadImage file_path=a.png --output adir": ("--output: adir is a folder",),
    "call Bash command=ls --url http://127.0.0.1:1/mcp": (
        "127.0.0.1:1/mcp: connection refused; is the server running?",
    ),
    "doctor --url http://127.0.0.1:1/mcp": (
        "FAIL  connection",
        "connection refused",
        "others need one that did not pass",
    ),
    "tools --url https://127.0.0.1:{http}/mcp": ("TLS: that port speaks http, not https",),
    "tools --url http://127.0.0.1:{http}/sse": ("HTTP 404", "with Streamable HTTP the URL ends in /mcp"),
    "tools --url 127.0.0.1:8080": ("is not an http or https URL", "did you mean http://127.0.0.1:8080/mcp?"),
    "doctor --url tools.example.com": ("did you mean https://tools.example.com/mcp?",),
    "tools --url http://127.0.0.1:1/mcp --state x": ("--state has no effect with --url",),
    "login": ("URL is missing", "usage: toolgate login URL"),
    "login http://127.0.0.1:1/mcp --state x": ("login: --state does not belong here", " more)"),
    "logout http://127.0.0.1:1/mcp": ("nobody is signed in to http://127.0.0.1:1/mcp",),
    "health --port 1": ("127.0.0.1:1", "connection refused; is the server running?"),
}
HARMLESS = {  # words that people try, which work
    "help": "Usage: toolgate",
    "help call": "toolgate call TOOL",
    "version": "toolgate ",
    "-V": "toolgate ",
    "config cursor -p none": "note: config: a server with these options does not start: --plugins: there is no folder",
    "audit --since yesterday": "nothing is on record: serve with --audit on",
    "--plugins plugins tools": "plugins/broken.py: it failed to load: SyntaxError",
}
JARGON = ("Traceback", "Errno", "presets", "NoneType", "additionalProperties", "Additional properties")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home and current folder of a person, with some files."""
    for name in list(os.environ):
        if name.startswith(("TOOLGATE_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for folder in ("adir", "plugins", "used"):
        (tmp_path / folder).mkdir()
    (tmp_path / "afile").touch()
    (tmp_path / "used/state.db").touch()
    (tmp_path / "bad.toml").write_text('nmae = "x"\n')
    (tmp_path / "broken.toml").write_text("a = = 1\n")
    (tmp_path / "tables.toml").write_text("[server]\nport = 80\n")
    (tmp_path / "switch.toml").write_text('name = "x"\nhttp = yes\n')
    (tmp_path / "list.toml").write_text("deny = Bash\n")
    (tmp_path / "word.toml").write_text("name = mine # today\n")
    (tmp_path / "plugins/broken.py").write_text("def x(:\n")
    return tmp_path


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    """Return a port in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


class PlainAnswer(socketserver.BaseRequestHandler):
    """Answer whatever comes in clear text, TLS too."""

    def handle(self) -> None:
        self.request.recv(65_536)
        self.request.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@pytest.fixture(scope="module")
def http_port() -> Iterator[str]:
    """Return the port of an http server that has nothing."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), PlainAnswer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield str(server.server_address[1])
        server.shutdown()


WITH_TOOLS = (  # of the 0.2 s that all tools take to load; another row of `make test` makes a mistake of its kind
    "call TaskManager action=complete query=tests",
    "call ReadDocs url=toolgate.invalid/page --browser none",
    "call Bash command=ls timeout=999999999",
    "call ReadBgOutput task_id=99",
    "install cursor --skills none --dry-run",
    "--plugins adir/none.py tools",
    "--engines duckduck tools",
    "call Bash",
    "--skills none tools",
    "install cursor --workspace none",
    "call ReadImage file_path=a.png",
    "--plugins afile tools",
    "--tools !git_* tools",
    "install cursor -p none",
    "--tools '!Bash,*' tools",
    "call TaskManager action=delete query=",
    "call Bash cmd=ls",
    "--browser none-such tools",
    "install cursor --deny Bsh",
    "call Bash ls",
    "--approve scope:tools:shel tools",
    "--approve 'rm *' tools",
)
ROWS = [
    pytest.param(words, said, id=words, marks=pytest.mark.soak if words in WITH_TOOLS else ())
    for words, said in TABLE.items()
]


def test_each_row_of_the_soak_is_in_the_table() -> None:
    assert {*WITH_TOOLS} <= TABLE.keys()


@pytest.mark.parametrize(("words", "said"), ROWS)
def test_a_mistake_is_named_with_its_fix(
    words: str,
    said: tuple[str, ...],
    place: Path,
    port: str,
    http_port: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    require_for(words)
    variable, equals, rest = words.partition(" ")[0].partition("=")
    if equals and variable.startswith("TOOLGATE_"):
        monkeypatch.setenv(variable, rest)
        words = words.partition(" ")[2]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    words = words.replace("(", "\\(").replace("{port}", port).replace("{http}", http_port)
    assert main.run(shlex.split(words)) in (1, 2)
    told = capfd.readouterr()
    text = told.err + told.out
    for part in said:
        assert part.replace("{port}", port) in text
    assert not [word for word in (*JARGON, "s3cret") if word in text] and "\x1b" not in text
    assert len(text) < 1000


@pytest.mark.parametrize(("words", "said"), HARMLESS.items(), ids=HARMLESS)
def test_words_that_people_try_work(words: str, said: str, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require_for(words)
    assert main.run(words.split()) == 0
    told = capfd.readouterr()
    assert said in told.out + told.err and not [word for word in JARGON if word in told.out + told.err]
