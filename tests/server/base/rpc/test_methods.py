"""A call of a method in another process takes the arguments that the method itself would take."""

from typing import Any, Protocol

import pytest

from toolgate.server.base.rpc import frames
from toolgate.server.base.rpc.methods import MethodTable


class Shelf(Protocol):
    async def fetch(self, name: str, shelf: int = 0, *, limit: int, whole: bool = False) -> bytes: ...


METHOD = MethodTable({"shelf": (Shelf, ("fetch",))}).find("shelf.fetch")


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
