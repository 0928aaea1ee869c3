"""Put variables of the server's environment into values of a mount, so that the file need not hold keys.

`${env:NAME}` is the variable's value, and `${env:NAME:-default}` has a value for one that is not set or empty.
`${secret:NAME}` stays: its value depends on who calls, and comes when the mount is opened.
"""

import re
from collections.abc import Mapping

from toolgate.server.features.mounts.config import secret_references
from toolgate.server.features.mounts.config.faults import MountValueError

PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
OF_KINDS = re.compile(r"\$\{((?:env|input|secret|file|command|config):[^}]*)\}")  # no shell writes them so
VARIABLE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


def expand_placeholders(text: str, environment: Mapping[str, str]) -> str:
    """Return a value of `env` or `headers` with the values of the variables.

    Raises MountValueError for one that is not set, and for each other `${…}`.
    """
    return PLACEHOLDER.sub(lambda found: _expand(found[0], found[1], environment), text)


def expand_url(text: str, environment: Mapping[str, str]) -> str:
    """Return a URL with the values of the variables. Raises MountValueError as `expand_variables` does."""
    return OF_KINDS.sub(lambda found: _expand(found[0], found[1], environment), text)


def expand_variables(text: str, environment: Mapping[str, str]) -> str:
    """Return an argument, a command or a folder with the values of the variables. A shell's `${NAME}` stays.

    Raises MountValueError for a variable that is not set, and for `${input:…}` and its like.
    """
    return OF_KINDS.sub(lambda found: _expand_visible(found[0], found[1], environment), text)


def _expand_visible(placeholder: str, content: str, environment: Mapping[str, str]) -> str:
    """Return what stands in place of a placeholder where others on the machine can see it."""
    if content.startswith(secret_references.PREFIX):
        raise MountValueError(
            f"{placeholder} would be seen by others on the machine: put it into env", "CONFIG_PLACEHOLDER"
        )
    return _expand(placeholder, content, environment)


def _expand(placeholder: str, content: str, environment: Mapping[str, str]) -> str:
    if content.startswith(secret_references.PREFIX):
        secret_references.check_reference(content)
        return placeholder
    found = VARIABLE.fullmatch(content)
    if found is None:
        what = "is to be set by you" if content.startswith("input:") else "is unknown"
        raise MountValueError(
            f"{placeholder} {what}: write the value, ${{secret:NAME}} for what toolgate secret set keeps, or "
            f"${{env:NAME}} for a variable of the server's environment",
            "CONFIG_PLACEHOLDER",
        )
    value = environment.get(found[1]) or found[2]
    if value is None:
        raise MountValueError(
            f"the variable {found[1]} is not set in the server's environment, or is empty: set it, or write the value",
            "CONFIG_VARIABLE_NOT_SET",
        )
    return value
