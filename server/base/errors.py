"""Errors of the command line, the environment and the config file."""


class UsageError(Exception):
    """The command line, environment or config file is invalid: exit code 2. The text names the option."""
