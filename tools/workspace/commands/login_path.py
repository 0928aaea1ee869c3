"""Read the PATH of a person's login shell, for a server that a desktop program has started with the system's PATH.

Nothing else of the shell's environment is taken. It runs once, with the first command, supervised like one.
"""

import asyncio
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from toolgate.tools.api.context.services import ProgramResult
from toolgate.tools.api.errors import ToolError

PATIENCE = 2.0  # seconds that a command waits for the shell; later commands have what came after that
WITHIN = 10.0  # seconds after which the shell is killed: some profiles ask a network
MARK = "toolgate-path:"
PRINT_PATH = f"printf '\\n{MARK}%s\\n' \"$PATH\""
MAX_OUTPUT = 256 * 2**10  # bytes: a profile may print before it
MAX_PATH = 32 * 2**10  # bytes

RunProgram = Callable[
    [Sequence[str], float], Awaitable[ProgramResult]
]  # with a timeout; raises ToolError, TimeoutError

log = logging.getLogger(__name__)


class LoginPath:
    """The PATH of the login shell `shell`, which `run_program` runs."""

    def __init__(self, shell: str, run_program: RunProgram) -> None:
        self._shell = shell
        self._run_program = run_program
        self._reading: asyncio.Task[str] | None = None
        self._base: Mapping[str, str] | None = None  # variables, and the same with the PATH
        self._extended: Mapping[str, str] = {}

    async def extend(self, variables: Mapping[str, str]) -> Mapping[str, str]:
        """Return the variables with the folders of the login shell's PATH before their own. Wait PATIENCE for it."""
        if self._base is variables:
            return self._extended
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        if not self._reading.done():
            await asyncio.wait([self._reading], timeout=PATIENCE)
        if not self._reading.done():
            return variables
        path = join_paths(self._reading.result(), variables.get("PATH", ""))
        self._base, self._extended = variables, {**variables, "PATH": path}
        return self._extended

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> str:
        """Return the PATH, or "" where the shell has not printed it."""
        until = time.monotonic() + WITHIN
        for options in (("-l", "-i"), ("-l",)):  # an interactive profile may start another shell in its place
            try:
                ended = await self._run_program(
                    [self._shell, *options, "-c", PRINT_PATH], max(0.1, until - time.monotonic())
                )
            except TimeoutError:
                log.warning("the PATH of %s is not known: its profile took over %g s", self._shell, WITHIN)
                return ""
            except ToolError as error:
                log.warning("the PATH of %s is not known: %s", self._shell, error)
                return ""
            if path := find_path(ended.output):
                return path
        log.warning("the PATH of %s is not known: its profile ends the shell", self._shell)
        return ""


def find_path(output: bytes) -> str:
    """Return the PATH in the output of PRINT_PATH, or ""."""
    found = re.findall(rb"(?m)^" + MARK.encode() + rb"(/[^\0\r\n]*)$", output)
    return os.fsdecode(found[-1]) if found and len(found[-1]) <= MAX_PATH else ""


def join_paths(first: str, second: str) -> str:
    """Return a PATH with the absolute folders of both, each once."""
    folders = [folder for folder in first.split(":") if folder.startswith("/")]
    return ":".join(dict.fromkeys([*folders, *filter(None, second.split(":"))]))
