"""Check and prepare the text of a command for bash."""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.processes.input_file import open_input

MAX_ARGUMENT = 131_071  # bytes: Linux's limit of one argument (execve(2))
MAX_COMMAND = 4 * 2**20  # bytes: as many as the longest text of an argument may have
LINE_ENDS = re.compile(r"\r+(?:\n|\Z)")  # of Windows, also where a newline was converted twice
# Runs the command that is its standard input, with the parameters and the empty input that `bash -c COMMAND` has.
FROM_INPUT = 'set -- "$(</dev/stdin)"; exec </dev/null; eval "shift; $1"'


def normalize_command(command: str) -> str:
    """Return the command with line ends that bash knows. Raises ToolError for one that no shell can run."""
    if "\r" in command:
        command = LINE_ENDS.sub(lambda found: "\n" if found[0].endswith("\n") else "", command)
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise ToolError("the command holds half of a surrogate pair, which is not a character") from None
    if "\0" in command:
        raise ToolError(r"the command holds a NUL character, which no command line can: write $'\0' or \0")
    if size > MAX_COMMAND:
        ways = "write its parts to a file with several calls of Bash (cat >> FILE <<'END'), then run `bash FILE`"
        raise ToolError(f"the command is {size:,} bytes, over {MAX_COMMAND:,}: {ways}")
    return command


@contextmanager
def open_command(command: str) -> Generator[tuple[Sequence[str], int | None], None, None]:
    """Yield the words that run the command, and the descriptor of their standard input; None: it is empty."""
    data = command.encode()
    if len(data) <= MAX_ARGUMENT:
        yield ["bash", "-c", command], None
        return
    with open_input(data) as descriptor:
        yield ["bash", "-c", FROM_INPUT], descriptor
