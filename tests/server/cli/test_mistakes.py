"""The mistakes that people make at the terminal: each message names the thing and the fix, in words of theirs."""

import os
import shlex
from pathlib import Path

import pytest

from toolgate.server.cli import main

TABLE: dict[str, tuple[str, ...]] = {  # the words → what the message says
    # options
    "--prot 80": ("--prot", "did you mean --port?"),
    "tools --plugin x": ("--plugin ", "did you mean --plugins?"),
    "--hlep": ("did you mean --help?",),
    "-x": ("unknown option -x", "usage: toolgate"),
    "--port": ("--port needs a value",),
    "--verbose=yes": ("--verbose takes no value",),
    "user list --port 99": ("--port does not belong here", "serve, doctor, health"),
    "-t --port http": ("--port", "a number from 0 to 65535", "'http'"),
    "-t --port 70000": ("--port", "'70000'"),
    "-t --host 0.0.0.0": ("--public-url is missing", "the https URL that clients use"),
    "-t --auth nobody": ("--auth", "oauth, none or the URL of an issuer"),
    "-t --auth oath": ("did you mean oauth?",),
    "-t --auth none --host 0.0.0.0": ("--host", "loopback only"),
    "-t --public-url example.com": ("--public-url", "https URL such as"),
    "-t --public-url https://example.com/mcp": ("--public-url", "must not end in /mcp"),
    "-t --login oidc": ("--login", "oidc=ISSUER"),
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
    "--hold soon tools": ("--hold", "seconds", "'soon'"),
    "--log-format xml tools": ("--log-format", "text or json"),
    "--database x tools": ("--database is not available",),
    "--name= tools": ("--name", "1 to 64 printable"),
    "--deny Bash( tools": ("--deny", "'Bash(' is not a rule", "Bash(git push*)"),
    "--approve account:ada tools": ("'account:ada' is a caller", "account:ada=Bash"),
    "--structured-output lots tools": ("lean or full",),
    # files and folders
    "--config none tools": ("--config: there is no file none",),
    "--config adir tools": ("--config: can't read adir: is a directory",),
    "--config bad.toml tools": ("unknown option 'nmae'", "did you mean name?"),
    "--config broken.toml tools": ("broken.toml is not valid TOML", "line 1"),
    "--state afile user list": ("--state", "afile is not a folder"),
    "--workspace none tools": ("--workspace: there is no folder",),
    "--plugins none tools": ("--plugins: there is no folder",),
    "--skills none tools": ("--skills: there is no folder",),
    "--engines googl tools": ("unknown search engine 'googl'", "known: duckduckgo"),
    "--engines duckduck tools": ("did you mean duckduckgo?",),
    "--browser none-such tools": ("--browser: program none-such not found",),
    "backup b.tar": ("--state: there is no folder",),
    "--state adir backup afile": ("afile already exists: name another file",),
    "--state adir backup none/dir/b.tar": ("there is no folder none/dir",),
    "restore none.tar": ("none.tar: no such file",),
    # commands
    "doctr": ("unknown command 'doctr'", "did you mean doctor?"),
    "help doctr": ("did you mean doctor?", "toolgate --help"),
    "user": ("user: COMMAND is missing: add, list, remove, passwd",),
    "user add": ("user add: NAME is missing", "usage: toolgate user add NAME"),
    "user add a/b": ("a name may contain only letters",),
    "user ad ada": ("did you mean add?",),
    "user remove nobody": ("there is no account 'nobody'", "toolgate user list"),
    "user list extra": ("unexpected 'extra'", "usage: toolgate user list"),
    "client add Fern": ("REDIRECT… is missing", "usage: "),
    "client add Fern nowhere": ("'nowhere' is neither a redirect URI nor a platform", "platforms are claude"),
    "client add Fern http://example.com/cb": ("http://example.com/cb", "must be https"),
    "client remove none": ("there is no client 'none'", "toolgate client list"),
    "token revoke": ("COMMAND is missing: user, client, grant, all",),
    "token revoke grant none": ("there is no active grant 'none'", "toolgate token list"),
    "token revoke user nobody": ("there is no user 'nobody'", "toolgate token list"),
    "config": ("CLIENT is missing: claude-desktop",),
    "config cursr": ("did you mean cursor?",),
    "config chatgpt": ("add --public-url",),
    "audit --since tomorrow": ("--since", "today or yesterday", "7d ago", "'tomorrow'"),
    "audit --last many": ("--last: must be a number", "'many'"),
    "audit --decision deneid": ("--decision", "did you mean denied?"),
    "audit --outcome fine": ("--outcome", "ok, error, refused"),
    "audit verfy": ("did you mean verify?",),
    "workspace archive nobody": ("there is no person 'nobody'", "toolgate workspace list"),
    # tools and servers
    "call": ("TOOL is missing; toolgate tools lists them", "usage: toolgate call TOOL"),
    "call bash command=ls": ("unknown tool 'bash'", "did you mean Bash?"),
    "call Bash ls": ("'ls' is not ARGUMENT=VALUE, such as command=…",),
    "call Bash cmd=ls": ('no argument "cmd"', 'did you mean "command"?'),
    "call TaskManager action=delete query=": ('"delete" is not one of "create", "add", "complete"',),
    "call ReadDocs url=/etc/passwd": ("only http and https URLs can be fetched, not /etc/passwd",),
    "call ReadDocs url=toolgate.invalid/page": ("could not resolve toolgate.invalid",),
    "call ReadImage file_path=a.png --output adir": ("--output: adir is a folder",),
    "call Bash command=ls --url http://127.0.0.1:1/mcp": ("127.0.0.1:1/mcp: connection refused",),
    "tools --url 127.0.0.1:8080": ("is not an http or https URL", "did you mean http://127.0.0.1:8080/mcp?"),
    "doctor --url tools.example.com": ("did you mean https://tools.example.com/mcp?",),
    "tools --url http://127.0.0.1:1/mcp --state x": ("--state has no effect with --url",),
    "login": ("URL is missing", "usage: toolgate login URL"),
    "logout http://127.0.0.1:1/mcp": ("nobody is signed in to http://127.0.0.1:1/mcp",),
    "health --port 1": ("127.0.0.1:1", "connection refused"),
}
JARGON = ("Traceback", "Errno", "presets", "NoneType", "additionalProperties", "Additional properties")


@pytest.mark.parametrize(("words", "said"), TABLE.items(), ids=TABLE)
def test_a_mistake_is_named_with_its_fix(
    words: str,
    said: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in list(os.environ):
        if name.startswith(("TOOLGATE_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adir").mkdir()
    (tmp_path / "afile").touch()
    (tmp_path / "bad.toml").write_text('nmae = "x"\n')
    (tmp_path / "broken.toml").write_text("a = = 1\n")
    assert main.run(shlex.split(words.replace("(", "\\("))) in (1, 2)
    told = capfd.readouterr()
    text = told.err + told.out
    for part in said:
        assert part in text
    assert not [word for word in JARGON if word in text] and "\x1b" not in text
    assert len(text) < 900
