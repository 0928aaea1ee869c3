"""Tell a principal that a background task has ended, with its next tool result."""

from toolgate.tools.api.context.notices import Notices
from toolgate.tools.workspace.output.run_record import Run
from toolgate.tools.workspace.output.text import describe_end, shorten_command

NAMED = 60  # characters of a command in a notice
SCOPE = "tools:read"  # the scope needed to read a notice, as for the output


def add(notices: Notices, run: Run) -> None:
    """Keep a notice of the task's end or, of one that still runs, that its call ended before it."""
    name = shorten_command(run.command, NAMED)
    end = describe_end(run) if run.status != "running" else "goes on, though the call that started it was cut off"
    text = f"background task {run.id} ({name}) {end}; read it with ReadBgOutput"
    drop(notices, run.id)
    notices.add(key_of(run.id), text, SCOPE)


def drop(notices: Notices, run_id: int) -> None:
    """Drop the notice: the model already knows."""
    notices.drop(key_of(run_id))


def key_of(run_id: int) -> str:
    """Return the key of the notice."""
    return f"bg-{run_id}"
