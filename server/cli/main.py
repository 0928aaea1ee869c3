"""Run the command on the command line, and turn errors into a sentence and an exit code."""

import os
import sys
from collections.abc import Coroutine, Sequence
from pkgutil import resolve_name
from typing import Any

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import describe_os_error, escape_lines, escape_unprintable, show_bytes
from toolgate.server.config import load

DONE, FAULT, USAGE = 0, 1, 2


def run(words: Sequence[str]) -> int:
    """Run one command line. A refusal is a sentence on standard error and exit code 2."""
    open_standard()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a file name may hold anything
    try:
        return _run(words)
    except UsageError as error:
        print(f"toolgate: {escape_lines(str(error))}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return FAULT
    except UnicodeEncodeError as error:
        around = error.object[max(0, error.start - 20) : error.end + 20]
        print(f"toolgate: not UTF-8: {escape_unprintable(show_bytes(around))}", file=sys.stderr)
        return FAULT
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except OSError as error:
        print(f"toolgate: {escape_unprintable(describe_os_error(error))}", file=sys.stderr)
        return FAULT


def _run(words: Sequence[str]) -> int:
    flags = load.read_flags(words)
    if flags is not None:  # as clients start it: click would cost them 13 ms
        from toolgate.server.cli import serve

        return serve.serve(load.load(flags))
    from toolgate.server.cli.parsing.command_line import parse_words

    asked = parse_words(words)
    config = (load.load(asked.options),) if asked.command.takes_config else ()
    done = resolve_name(f"toolgate.server.{asked.run}")(*config, **asked.parameters)
    return done if isinstance(done, int) else _wait(done)


def _wait(work: Coroutine[Any, Any, int]) -> int:
    """Return the exit code of a command that asks a server or waits for something else."""
    from toolgate.server.base import run_loop
    from toolgate.server.cli.mcp_client.client import McpClientError, ServerExitError

    try:
        return run_loop.run_interruptible(work)
    except ServerExitError as ended:  # the server has printed why
        return ended.code or FAULT
    except (McpClientError, TimeoutError) as error:
        print(f"toolgate: {escape_unprintable(str(error)) or 'no answer in time'}", file=sys.stderr)
        return FAULT


def open_standard() -> None:
    """Open /dev/null for each closed standard descriptor, so that no later file gets its number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w", closefd=False))  # noqa: SIM115
