"""The command line: parse, build, run. What a sub-command does is in a file of its own, loaded when it is asked for."""

import argparse
import asyncio
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolgate.server import VERSION
from toolgate.server.config import load
from toolgate.server.protocol.errors import UsageError
from toolgate.server.telemetry import logging as logs

DONE, FAULT, USAGE = 0, 1, 2

COMMANDS = {
    "serve": "serve MCP over stdio, with -t or -s over HTTP (the same as no command)",
    "demo": "a tour: every tool, called for real on local data",
    "call": "TOOL [key=value …]: call one tool and print its content",
    "tools": "list the tools, prompts and resources",
    "config": "CLIENT: print the ready configuration for an MCP client; for a server elsewhere with --public-url",
    "doctor": "check this machine, or with --url what a hosted client would meet there",
    "health": "whether the server on this machine takes work: exit code 0; for engines of containers",
    "user": "add NAME | list | remove NAME | passwd NAME: accounts of the built-in login",
    "workspace": "list | archive WHO | restore WHO | remove WHO: people's workspaces",
    "client": "list | add NAME WHERE… [--confidential] | remove ID: OAuth clients",
    "token": "list | revoke user NAME, client ID, grant ID or all: what people granted",
    "key": "rotate [--drop-old]: let a new key sign tokens",
    "audit": "show the newest calls on record; audit verify: whether the record is whole",
    "backup": "FILE or - [--with-workspaces]: the state as one file, while a server runs",
    "restore": "FILE or - [--replace]: a backup back into the state folder",
}

ASKING = ("call", "tools", "doctor", "health")  # what --url is for

AUDIT = {  # what is for that command: its flags, with a value or without
    "principal": ("WHO", "audit: calls of a person, by name or by what the record calls them"),
    "tool": ("NAME", "audit: calls of a tool, or of all that match a pattern such as git_*"),
    "since": ("WHEN", "audit: calls since a time such as 2026-01-31T12:00, or 90m, 12h, 7d ago"),
    "until": ("WHEN", "audit: calls until then"),
    "decision": ("WORD", "audit: calls that were allowed, approved, …"),
    "outcome": ("WORD", "audit: calls that came out ok, error, refused, cancelled, fault, task or asked"),
    "last": ("N", "audit: how many of them (default 50; 0: all)"),
    "json": (None, "audit: print the lines themselves; doctor: one object, for programs"),
    "follow": (None, "audit: go on with those that come"),
}
OF_DOCTOR = ("json",)  # those of them that are for that command too
FLAGS = ("url", "confidential", "drop_old", "with_workspaces", "replace", *AUDIT)  # of one command or another
NO_OPTIONS = ("command", "words", *FLAGS)  # what the parser knows besides
EVERY_OPTION = """\
Every option is also TOOLGATE_<NAME> in the environment and a key of the config file; --url, --confidential,
--drop-old, --with-workspaces, --replace and those of audit are flags alone. TOOLGATE_TOKEN holds the access token
for the server at --url."""

WAITING = """\
toolgate {version} speaks the Model Context Protocol on standard input and output: it is waiting for an MCP client.
  try it:      toolgate demo          or   toolgate call Bash command='echo hello'
  connect it:  toolgate config claude-desktop   (or claude-code, cursor, vscode, …)
  more:        toolgate --help        end with Ctrl-D or Ctrl-C
"""


@dataclass(frozen=True, slots=True)
class Line:
    """A command line behind its command. `url`: a server that runs already; `confidential`: the client to be added
    keeps a secret; `drop_old`: no key but the new one is known any more; `with_workspaces`: people's are in the backup
    too; `replace`: what is in the state is moved aside; `audit`: what AUDIT has flags for."""

    words: Sequence[str]
    url: str | None
    confidential: bool = False
    drop_old: bool = False
    with_workspaces: bool = False
    replace: bool = False
    audit: Mapping[str, Any] = field(default_factory=dict[str, Any])


def run(words: Sequence[str]) -> int:
    """Run one command line. A refusal is a sentence on standard error and exit code 2."""
    open_standard()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a file name may hold anything
    try:
        return _run(words)
    except UsageError as error:
        print(f"toolgate: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return FAULT
    except UnicodeEncodeError as error:
        print(f"toolgate: {error.object[error.start : error.end]!r} can't be printed here", file=sys.stderr)
        return FAULT
    except BrokenPipeError:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except OSError as error:
        print(f"toolgate: {error}", file=sys.stderr)
        return FAULT


def _run(words: Sequence[str]) -> int:
    parsed = parser().parse_intermixed_args(words)
    flags = {name: value for name, value in vars(parsed).items() if name not in NO_OPTIONS}
    options = load.load(flags)
    command: str = parsed.command or "serve"
    if command not in COMMANDS:
        raise UsageError(f"there is no command {command!r}; there are {', '.join(COMMANDS)}")
    if parsed.url is not None and command not in ASKING:
        raise UsageError(f"--url belongs to {' and '.join(ASKING)}")
    if parsed.confidential and command != "client":
        raise UsageError("--confidential belongs to client add")
    if parsed.drop_old and command != "key":
        raise UsageError("--drop-old belongs to key rotate")
    if parsed.with_workspaces and command != "backup":
        raise UsageError("--with-workspaces belongs to backup")
    if parsed.replace and command != "restore":
        raise UsageError("--replace belongs to restore")
    if parsed.url is not None and flags and command != "doctor":
        raise UsageError(f"--url asks a server that is running: it can't be given --{next(iter(flags))}")
    about_audit = {name: value for name in AUDIT if (value := getattr(parsed, name)) not in (None, False)}
    misplaced = [name for name in about_audit if command not in ("audit", "doctor" if name in OF_DOCTOR else "audit")]
    if misplaced:
        raise UsageError(f"--{misplaced[0]} belongs to audit{' and doctor' if misplaced[0] in OF_DOCTOR else ''}")
    line = Line(
        parsed.words,
        parsed.url,
        parsed.confidential,
        parsed.drop_old,
        parsed.with_workspaces,
        parsed.replace,
        about_audit,
    )
    return RUNNERS[command](options, line)


def parser() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:9} {does}" for name, does in COMMANDS.items())
    made = load.Parser(
        prog="toolgate",
        usage="toolgate [options] [command …]",
        description="Thirteen agent tools for any MCP client.",
        epilog=f"commands:\n{commands}\n\n{EVERY_OPTION}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    made.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    made.add_argument("--version", action="version", version=f"toolgate {VERSION}")
    made.add_argument(
        "--url", metavar="URL", help="call, tools, doctor, health: ask the server there, not one of our own"
    )
    made.add_argument("--confidential", action="store_true", help="client add: a client that can keep a secret")
    made.add_argument(
        "--drop-old",
        action="store_true",
        help="key rotate: end all access tokens; where a key may be known to somebody",
    )
    made.add_argument("--with-workspaces", action="store_true", help="backup: people's too; no server may run")
    made.add_argument("--replace", action="store_true", help="restore: what is in the state folder is moved aside")
    for name, (metavar, help) in AUDIT.items():
        how: dict[str, Any] = {"action": "store_true"} if metavar is None else {"metavar": metavar}
        made.add_argument(f"--{name}", help=help, **how)
    load.add_options(made)
    return made


def _serve(options: load.Config, line: Line) -> int:
    _nothing_more(line)
    if sys.platform not in ("linux", "darwin"):
        raise UsageError(f"{sys.platform} is not served: use Linux, macOS, or WSL on Windows")
    from toolgate.server import run_loop  # start-up: sub-commands and --help do without
    from toolgate.server.state.store import NewerStateError, StateError

    if options.is_remote:
        signal.signal(signal.SIGTERM, _leave)  # until the server hears of it
        from toolgate.server import http_app  # start-up: stdio does without all of HTTP

        http_app.check_http(options)
    logs.start(options.verbose, options.logs, options.log_format)
    code = DONE
    try:
        _run_loop(options)
    except UsageError:
        raise
    except StateError as error:  # what it is, the log has said
        print(f"toolgate: {error}", file=sys.stderr)
        code = USAGE if isinstance(error, NewerStateError) else FAULT
    except Exception:
        logging.getLogger("toolgate").exception("the server failed")
        code = FAULT
    finally:
        logs.stop()
    run_loop.exit_if_hung(code)
    return code


def _leave(_number: int, _frame: object) -> None:
    """Nothing is begun yet that would have to be ended."""
    raise SystemExit(DONE)


def _run_loop(options: load.Config) -> None:
    from toolgate.server import run_loop  # start-up: sub-commands and --help do without
    from toolgate.server.app import App
    from toolgate.transports import stdio

    async def serve_http() -> None:
        await App(options).serve_http()

    async def serve_stdio() -> None:
        await App(options).serve_stdio(source, sink)

    if options.is_remote:
        import uvloop  # start-up: stdio does without

        run_loop.run_server(serve_http, uvloop.new_event_loop)
        return
    if not (_is_open(0) and _is_open(1)):
        raise UsageError("standard input or output is closed: serving stdio needs both")
    if sys.stdin.isatty():
        print(WAITING.format(version=VERSION), file=sys.stderr, end="")
    source, sink = stdio.take_descriptors()
    run_loop.run_server(serve_stdio, asyncio.new_event_loop)


def _is_open(descriptor: int) -> bool:
    """Whether it was open when we were started: what `open_standard` opened is not inheritable, the rest is."""
    return not fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def open_standard() -> None:
    """Fill the standard descriptors that are closed, so that nothing else is ever opened in their place."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w", closefd=False))  # noqa: SIM115


def _demo(options: load.Config, line: Line) -> int:
    _nothing_more(line)
    from toolgate.server import run_loop
    from toolgate.server.cli import demo

    return run_loop.run_interruptible(demo.run_tour(options))


def _call(options: load.Config, line: Line) -> int:
    from toolgate.server.cli import call

    return _asked(call.call(line.words, options, line.url))


def _tools(options: load.Config, line: Line) -> int:
    _nothing_more(line)
    from toolgate.server.cli import call

    return _asked(call.list_parts(options, line.url))


def _nothing_more(line: Line) -> None:
    if line.words:
        raise UsageError(f"unexpected {line.words[0]!r}")


def _asked(question: Coroutine[Any, Any, int]) -> int:
    """Ask a server."""
    from toolgate.server import run_loop
    from toolgate.server.cli.mcp_client.client import McpClientError, ServerExitError

    try:
        return run_loop.run_interruptible(question)
    except ServerExitError as ended:  # why, it has said itself
        return ended.code or FAULT
    except (McpClientError, TimeoutError) as error:
        print(f"toolgate: {str(error) or 'no answer in time'}", file=sys.stderr)
        return FAULT


def _config(options: load.Config, line: Line) -> int:
    from toolgate.server import client_config

    own = options.to_flags()
    if options.is_remote:  # where a config file says so, the client's own server would not speak stdio
        own += ["--config", os.devnull]
    body, where = client_config.build_snippet(line.words, own, options.public_url)
    print(body)
    print(where, file=sys.stderr)  # what is on standard output can be pasted as it is
    return DONE


def _doctor(options: load.Config, line: Line) -> int:
    _nothing_more(line)
    from toolgate.server import run_loop
    from toolgate.server.cli.doctor import main

    as_json = bool(line.audit.get("json"))
    return run_loop.run_interruptible(
        main.check_machine(options, as_json=as_json)
        if line.url is None
        else main.check_remote(options, line.url, as_json=as_json)
    )


def _health(options: load.Config, line: Line) -> int:
    _nothing_more(line)
    from toolgate.server import run_loop
    from toolgate.server.cli import health

    return run_loop.run_interruptible(health.health(options, line.url))


def _user(options: load.Config, line: Line) -> int:
    from toolgate.server.cli import user

    return user.user(options, line.words)


def _workspace(options: load.Config, line: Line) -> int:
    from toolgate.server.cli import workspace

    return workspace.workspace(options, line.words)


def _client(options: load.Config, line: Line) -> int:
    from toolgate.server.cli import oauth_client

    return oauth_client.client(options, line.words, confidential=line.confidential)


def _token(options: load.Config, line: Line) -> int:
    from toolgate.server.cli import oauth_client

    return oauth_client.token(options, line.words)


def _key(options: load.Config, line: Line) -> int:
    from toolgate.server.cli import oauth_client

    return oauth_client.key(options, line.words, drop_old=line.drop_old)


def _audit(options: load.Config, line: Line) -> int:
    from toolgate.server.cli import audit as audit_cli

    return audit_cli.audit(options, line.words, line.audit)


def _backup(options: load.Config, line: Line) -> int:
    from toolgate.server.cli import backup

    return backup.backup(options, line.words, workspaces=line.with_workspaces)


def _restore(options: load.Config, line: Line) -> int:
    from toolgate.server.cli import backup

    return backup.restore(options, line.words, replace=line.replace)


Runner = Callable[[load.Config, Line], int]
RUNNERS: dict[str, Runner] = {
    "serve": _serve,
    "demo": _demo,
    "call": _call,
    "tools": _tools,
    "config": _config,
    "doctor": _doctor,
    "health": _health,
    "user": _user,
    "workspace": _workspace,
    "client": _client,
    "token": _token,
    "key": _key,
    "audit": _audit,
    "backup": _backup,
    "restore": _restore,
}
