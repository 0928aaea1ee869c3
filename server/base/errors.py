"""Define the errors of the options and of the state, which every room may name."""

from toolgate.tools.api.errors import ToolError


class UsageError(Exception):
    """The command line, environment or config file is invalid: exit code 2. The text names the option."""


class StateError(ToolError):
    """The state database can't be used. Nothing was changed; the log has the path and the cause."""
