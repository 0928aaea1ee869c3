"""Serve MCP over stdio, or over HTTP with -t or -s, if the command line names no command."""

import asyncio
import fcntl
import logging
import sys
from typing import TYPE_CHECKING

from toolgate.server.app.app import App
from toolgate.server.base import logging as logs
from toolgate.server.base import run_loop
from toolgate.server.base.errors import StateError, UsageError
from toolgate.server.base.version import VERSION
from toolgate.server.config.load import Config
from toolgate.server.state.errors import StateVersionError

if TYPE_CHECKING:
    from toolgate.server.cli.terminal.banner import Banner

DONE, FAULT, USAGE = 0, 1, 2
WAITING = """\
toolgate {version} speaks the Model Context Protocol on standard input and output: it is waiting for an MCP client.
  try it:      toolgate demo          or   toolgate call Bash command='echo hello'
  connect it:  toolgate install claude-code   (or claude-desktop, cursor, vscode, …)
  more:        toolgate --help        end with Ctrl-D or Ctrl-C
"""


def serve(options: Config) -> int:
    """Serve until the client or a signal ends it."""
    if sys.platform not in ("linux", "darwin"):
        raise UsageError(f"{sys.platform} is not supported: use Linux, macOS, or WSL on Windows")
    run_loop.exit_on_signal()  # until the server has its own handlers
    if options.is_remote:
        from toolgate.server.app import http_checks  # start-up: stdio needs no HTTP

        http_checks.check_http(options)
    banner = _choose_banner(options)
    logs.start(options.verbose, options.logs, options.log_format, banner.filter if banner is not None else None)
    code = DONE
    try:
        _run_loop(options, banner)
    except UsageError:
        raise
    except StateError as error:  # the log has the details
        print(f"toolgate: {error}", file=sys.stderr)
        code = USAGE if isinstance(error, StateVersionError) else FAULT
    except Exception:
        logging.getLogger("toolgate").exception("the server failed")
        code = FAULT
    finally:
        logs.stop()
        if banner is not None:
            banner.close()
    run_loop.exit_if_hung(code)
    return code


def _choose_banner(options: Config) -> "Banner | None":
    if not (options.is_remote and sys.stderr.isatty()):
        return None
    from toolgate.server.cli.terminal.banner import (
        choose_banner,  # start-up: clients start the server without a terminal
    )

    return choose_banner(options)


def _run_loop(options: Config, banner: "Banner | None") -> None:
    def announce(sandbox: str, public_url: str, pairing_link: str) -> None:
        if banner is not None:
            banner.show(sandbox, public_url, pairing_link)
        from toolgate.server.cli.readiness import notify_ready  # start-up: stdio does without it

        notify_ready(options.socket_variables, public_url)

    async def serve_http() -> None:
        await App(options).serve_http(announce)

    async def serve_stdio() -> None:
        await App(options).serve_stdio(source, sink)

    if options.is_remote:
        import uvloop  # start-up: stdio does without it

        run_loop.run_server(serve_http, uvloop.new_event_loop)
        return
    if not (_is_open(0) and _is_open(1)):
        raise UsageError("standard input or output is closed: serving stdio needs both")
    if sys.stdin.isatty():
        print(WAITING.format(version=VERSION), file=sys.stderr, end="")
    source, sink = run_loop.take_descriptors()
    run_loop.run_server(serve_stdio, asyncio.new_event_loop)


def _is_open(descriptor: int) -> bool:
    """Return whether the descriptor was open at the start: those `open_standard` opened are not inheritable."""
    return not fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
