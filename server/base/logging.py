"""Send log lines to standard error, and to rotating files on request. Standard output belongs to the protocol."""

import logging
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path

from toolgate.server.base.log_format import FORMATTERS

HEAD = 1_000  # bytes kept from the beginning of a line that is too long
MAX_LINE = 4_000  # bytes: what a pipe that is ready takes without blocking (PIPE_BUF is 4096)
FILE_SIZE, FILES = 5 * 2**20, 3  # bytes a file, files kept: a week of a busy server, and bounded


def start(
    verbose: bool,
    folder: Path | None,
    style: str = "text",
    is_shown: Callable[[logging.LogRecord], bool] | None = None,
) -> None:
    """Start to log, as "text" or "json". Makes `folder`. Raises UsageError if it can't be written to.

    `is_shown(record)` selects the lines for standard error; None: all.
    """
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    logging.getLogger("toolgate").setLevel(logging.DEBUG if verbose else logging.INFO)
    handlers: list[tuple[logging.Handler, int | None]] = [(StderrHandler(), MAX_LINE)]
    if folder is not None:
        handlers.append((_file_handler(folder), None))
    if is_shown is not None:
        handlers[0][0].addFilter(is_shown)
    for handler, most in handlers:
        handler.setFormatter(FORMATTERS[style](most))
        root.addHandler(handler)


def stop() -> None:
    """Flush and close the handlers."""
    for handler in list(logging.getLogger().handlers):
        logging.getLogger().removeHandler(handler)
        handler.close()


class StderrHandler(logging.Handler):
    """Write a line if standard error is ready, and drop it otherwise: a client that does not read its server's standard
    error must not stop the server."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode("utf-8", "replace")
            if len(line) > MAX_LINE:  # the beginning says what it is, the end of a traceback what went wrong
                line = line[:HEAD] + b" ... " + line[HEAD - MAX_LINE :]
            data = line + b"\n"
            descriptor = sys.stderr.fileno()
            waiting = select.poll()
            waiting.register(descriptor, select.POLLOUT)
            if any(event & select.POLLOUT for _, event in waiting.poll(0)):
                os.write(descriptor, data)
        except Exception:  # noqa: BLE001, S110  # there is nowhere left to report it, and logging must not break its caller
            pass


def _file_handler(folder: Path) -> logging.Handler:
    from logging.handlers import RotatingFileHandler  # start-up: only with --logs

    from toolgate.server.base.errors import UsageError
    from toolgate.server.base.text import describe_os_error

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return RotatingFileHandler(folder / "toolgate.log", maxBytes=FILE_SIZE, backupCount=FILES, encoding="utf-8")
    except FileExistsError:
        raise UsageError(f"--logs: {folder} is not a folder") from None
    except OSError as error:
        raise UsageError(f"--logs: can't write {describe_os_error(error)}") from None
