"""A method in another process is called as the method itself would be, and one that can't be called is refused."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest

from toolgate.server.base.rpc import frames
from toolgate.server.base.rpc.methods import MethodTable, add_requests, list_methods, pick_methods


class Shelf(Protocol):
    async def fetch(self, name: str, shelf: int = 0, *, limit: int, whole: bool = False) -> bytes: ...


METHOD = MethodTable({"shelf": pick_methods(Shelf, "fetch")}).find("shelf.fetch")


@pytest.mark.parametrize(
    ("words", "keywords", "given"),
    [
        (("a",), {"limit": 1}, {"name": "a", "limit": 1}),
        (("a", 2), {"limit": 1, "whole": True}, {"name": "a", "shelf": 2, "limit": 1, "whole": True}),
        ((), {"limit": 1, "name": "a"}, {"name": "a", "limit": 1}),
    ],
)
def test_arguments_are_bound_by_name(words: tuple[Any, ...], keywords: dict[str, Any], given: dict[str, Any]) -> None:
    assert METHOD is not None
    assert METHOD.bind(words, keywords) == given


@pytest.mark.parametrize(
    ("words", "keywords"),
    [
        ((), {"limit": 1}),
        (("a",), {}),
        (("a", 1, 2), {"limit": 1}),
        (("a",), {"name": "a", "limit": 1}),
        (("a",), {"limit": 1, "more": 1}),
    ],
)
def test_wrong_arguments_are_a_type_error(words: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    assert METHOD is not None
    with pytest.raises(TypeError, match=r"argument"):
        METHOD.bind(words, keywords)


@pytest.mark.parametrize(("limit", "allowed"), [(-(2**40), 0), (7, 7), (2**40, 10)])
def test_a_limit_is_cut_to_what_one_answer_may_hold(limit: int, allowed: int) -> None:
    assert METHOD is not None
    data = frames.encode_raw({"name": "a", "limit": limit})
    assert METHOD.decode_arguments(data, 10) == {"name": "a", "shelf": 0, "limit": allowed, "whole": False}


class Reading(Protocol):
    async def measure(self, name: str) -> int: ...


class Opening(Reading, Protocol):
    async def open(self, name: str) -> Shelf: ...


class Following(Reading, Protocol):
    def follow(self, name: str) -> AsyncIterator[int]: ...


def test_a_method_of_the_protocol_is_requested_without_another_declaration() -> None:
    @add_requests(MethodTable({"opening": list_methods(Opening)}))
    class RemoteOpening(Opening):
        async def _call(self, name: str, /, *words: Any, **keywords: Any) -> Any:
            return name, words, keywords

    remote: Any = RemoteOpening()
    assert asyncio.run(remote.measure("a")) == ("opening.measure", ("a",), {})
    assert asyncio.run(remote.measure(name="a")) == ("opening.measure", (), {"name": "a"})


def test_a_method_whose_result_no_message_can_hold_is_refused() -> None:
    table = MethodTable({"opening": list_methods(Opening)})
    assert table.find("opening.measure") is not None
    with pytest.raises(TypeError, match=r"^opening\.open: no message can hold Shelf$"):
        table.find("opening.open")


def test_a_class_must_define_what_can_not_be_requested() -> None:
    class RemoteFollowing(Following):
        pass

    with pytest.raises(TypeError, match=r"^RemoteFollowing must define what can't be requested: follow$"):
        add_requests(MethodTable({"following": list_methods(Following)}))(RemoteFollowing)
