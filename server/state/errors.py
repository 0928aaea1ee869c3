"""Define the errors of the state database that its own rooms and the start tell apart."""

from toolgate.server.base.errors import StateError
from toolgate.server.state.tables import OLDEST, VERSION


class StateSilentError(StateError):
    """The state database does not answer in time."""


class StateVersionError(StateError):
    """The state is of a version that this program can't use."""


def state_silent_error(outcome: str, name: str = "the state database") -> StateSilentError:
    """Return the error for work that is given up; `outcome` says what is known of it."""
    return StateSilentError(f"{name} does not answer in time; {outcome}, and the server's log says more")


def newer_state_error(version: int, option: str) -> StateVersionError:
    """Return the error for a database of that version, which `option` names."""
    return StateVersionError(
        f"the state database was made by a newer Toolgate (version {version}, this one knows {VERSION}); nothing was "
        f"changed: use that one, or another {option}"
    )


def upgrade_due_error(version: int, newest: int, name: str = "the state database") -> StateError:
    """Return the error for a database that a start of the server would upgrade to the version `newest`."""
    return StateError(
        f"{name} is of version {version}, and serving upgrades it to {newest}; nothing was changed: run toolgate "
        "backup before, to be able to go back"
    )


def older_state_error(version: int, option: str) -> StateVersionError:
    """Return the error for a database of a version that is not upgraded any more, which `option` names."""
    return StateVersionError(
        f"the state database is of version {version}, and this Toolgate upgrades versions from {OLDEST} on; nothing "
        f"was changed: start a Toolgate between the two once, which upgrades it, or give another {option}"
    )
