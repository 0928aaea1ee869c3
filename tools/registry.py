"""The tools on offer, by name and in order. A registry never changes: a change is a new one, swapped in whole."""

import fnmatch
from collections.abc import Iterable, Iterator

from toolgate.tools.errors import Collision
from toolgate.tools.tool import Tool


class Registry:
    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self._add(tool)

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def with_tools(self, tools: Iterable[Tool]) -> "Registry":
        """This registry and more. Raises Collision, which names both places, when a name is taken."""
        return Registry([*self, *tools])

    def replacing(self, tool: Tool) -> "Registry":
        """This registry with `tool` in the place of its namesake."""
        return Registry(tool if held.name == tool.name else held for held in self)

    def without(self, patterns: Iterable[str]) -> "Registry":
        """This registry less the tools whose names match one of the patterns, case ignored."""
        hidden = [pattern.lower() for pattern in patterns]
        return Registry(
            tool for tool in self if not any(fnmatch.fnmatchcase(tool.name.lower(), hide) for hide in hidden)
        )

    def _add(self, tool: Tool) -> None:
        held = self._tools.get(tool.name)
        if held is not None:
            raise Collision(f"tool {tool.name!r} is declared twice: in {held.source} and in {tool.source}")
        self._tools[tool.name] = tool
