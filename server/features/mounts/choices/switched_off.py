"""Describe what one person has switched off: whole mounts, and single tools."""

from collections.abc import Collection

import msgspec

from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.text.json_text import JsonError, decode_json

MAX_TOOLS = 1_000  # of one person, at all mounts
MAX_MOUNTS = 256
MAX_SIZE = 64 * 1024  # bytes of JSON: a name may have 1,024 characters
UNREADABLE = "what you have switched off can't be read: try again soon, or ask an operator, whose log says more"


class ChoiceError(ToolError):
    """A choice can't be kept; the text says why."""


class SwitchedOff(msgspec.Struct, frozen=True):
    """Whole `mounts`, and single `tools` as the mount and the tool's own name there."""

    mounts: frozenset[str] = frozenset()
    tools: frozenset[tuple[str, str]] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.mounts or self.tools)

    def hides(self, mount: str, kind: str, original: str) -> bool:
        """Return whether a part of a mount is off. `kind`: "tools", "prompts" or "resources"."""
        return mount in self.mounts or (kind == "tools" and (mount, original) in self.tools)

    def list_tools(self, mount: str) -> set[str]:
        """Return the names of the mount's tools that are off one by one."""
        return {name for each, name in self.tools if each == mount}

    def with_mount(self, mount: str, *, is_off: bool) -> "SwitchedOff":
        return SwitchedOff(self.mounts | {mount} if is_off else self.mounts - {mount}, self.tools)

    def with_tools(self, mount: str, on: Collection[str], off: Collection[str]) -> "SwitchedOff":
        """Return the choice with these tools of a mount switched on, and those switched off."""
        left = self.tools - {(mount, name) for name in on}
        return SwitchedOff(self.mounts, left | {(mount, name) for name in off})


NOTHING = SwitchedOff()


def encode_choice(choice: SwitchedOff) -> str:
    """Return JSON. Raises ChoiceError for too much."""
    if len(choice.tools) > MAX_TOOLS or len(choice.mounts) > MAX_MOUNTS:
        raise ChoiceError(f"more than {MAX_TOOLS} tools can't be switched off one by one: switch off the whole server")
    data = msgspec.json.encode(choice, order="deterministic")
    if len(data) > MAX_SIZE:
        raise ChoiceError("the names of these tools are too long to be kept: switch off the whole server")
    return data.decode()


def decode_choice(data: str) -> SwitchedOff:
    """Read JSON. Raises ChoiceError for anything else."""
    try:
        return decode_json(data, SwitchedOff)
    except JsonError:  # its words may quote the data
        raise ChoiceError(UNREADABLE) from None
