"""Put variables of the server's environment into values of `env` and `headers`.

`${env:NAME}` is the variable's value, and `${env:NAME:-default}` has a value for one that is not set or empty.
"""

import re
from collections.abc import Mapping

from toolgate.server.features.mounts.config.faults import MountValueError

PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
VARIABLE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
FOREIGN = re.compile(r"\$\{(?:env|input|secret|file|command|config):[^}]*\}")  # a shell's own are no words with a colon


def expand_placeholders(text: str, environment: Mapping[str, str]) -> str:
    """Return the text with the values of the variables. Raises MountValueError for one that is not set."""
    return PLACEHOLDER.sub(lambda found: _expand(found[0], found[1], environment), text)


def refuse_placeholders(text: str) -> str:
    """Return the text. Raises MountValueError for one with a placeholder, where none is replaced."""
    if found := FOREIGN.search(text):
        raise MountValueError(
            f"{found[0]} is replaced in values of env and headers alone: write the value itself", "CONFIG_PLACEHOLDER"
        )
    return text


def _expand(placeholder: str, content: str, environment: Mapping[str, str]) -> str:
    found = VARIABLE.fullmatch(content)
    if found is None:
        raise MountValueError(
            f"{placeholder} is unknown: write ${{env:NAME}} for a variable of the server's environment",
            "CONFIG_PLACEHOLDER",
        )
    value = environment.get(found[1]) or found[2]
    if value is None:
        raise MountValueError(
            f"the variable {found[1]} is not set in the server's environment, or is empty: set it, or write the value",
            "CONFIG_VARIABLE_NOT_SET",
        )
    return value
