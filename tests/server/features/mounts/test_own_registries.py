"""What a person may be shown, where others alone are shown something."""

import gc
import weakref

from toolgate.server.features.mounts.parts.own_registries import MAX_OWN, OwnRegistries, PartKey
from toolgate.tools import tool
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.tool import Tool


def make_tool(name: str) -> Tool:
    @tool(name=name)
    def answer() -> str:
        """Answer."""
        return name

    return answer


def list_own(principal: str) -> list[PartKey]:
    return [("tools", f"of_{principal}")]


def test_each_is_shown_what_all_are_and_their_own() -> None:
    people = [f"p{number}" for number in range(2 * MAX_OWN)]
    registry = Registry([make_tool("common"), *(make_tool(f"of_{name}") for name in people)])
    private = frozenset(key for name in people for key in list_own(name))
    own = OwnRegistries(registry, private)
    for name in (*people, people[0]):
        found = own.find(name, list_own)
        assert found is not None and list(found.tools) == ["common", f"of_{name}"]
    stranger = own.find("stranger", list_own)
    assert stranger is not None and list(stranger.tools) == ["common"]
    assert own.find("operator", lambda _: private) is None  # all of it


def test_a_registry_that_is_not_served_any_more_is_not_kept() -> None:
    registry = Registry([make_tool("of_ada")])
    own = OwnRegistries(registry, frozenset(list_own("ada")))
    assert own.find("ada", list_own) is None
    gone = weakref.ref(registry)
    del registry
    gc.collect()
    assert gone() is None
