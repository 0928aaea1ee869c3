"""Define the errors of the state database."""

from toolgate.server.state.tables import VERSION
from toolgate.tools import ToolError


class StateError(ToolError):
    """The state database can't be used. Nothing was changed; the log has the path and the cause."""


class NewerStateError(StateError):
    """The state is of a newer version than this program."""


def newer_state_error(version: int, option: str) -> NewerStateError:
    """Return the error for a database of that version, which `option` names."""
    return NewerStateError(
        f"the state database was made by a newer Toolgate (version {version}, this one knows {VERSION}); nothing was "
        f"changed: use that one, or another {option}"
    )
