"""Define the errors of the state database."""

from toolgate.server.state.tables import VERSION
from toolgate.tools import ToolError


class StateError(ToolError):
    """The state database can't be used. Nothing was changed; the log has the path and the cause."""


class StateSilentError(StateError):
    """The state database does not answer in time."""


class NewerStateError(StateError):
    """The state is of a newer version than this program."""


def state_silent_error(outcome: str, name: str = "the state database") -> StateSilentError:
    """Return the error for work that is given up; `outcome` says what is known of it."""
    return StateSilentError(f"{name} does not answer in time; {outcome}, and the server's log says more")


def newer_state_error(version: int, option: str) -> NewerStateError:
    """Return the error for a database of that version, which `option` names."""
    return NewerStateError(
        f"the state database was made by a newer Toolgate (version {version}, this one knows {VERSION}); nothing was "
        f"changed: use that one, or another {option}"
    )
