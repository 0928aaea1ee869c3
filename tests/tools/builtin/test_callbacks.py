"""SetCallback, against the real state and a clock of the test's own."""

from pathlib import Path
from typing import Any

import pytest

from tests.tools.fake_context import FakeServices, data, refused, run, said
from toolgate.tools.builtin.callbacks import set_callback


@pytest.mark.parametrize(
    ("delay", "count", "text", "left"),
    [
        (30, {"repeat_count": 40}, "Callback scheduled: fires every 30s, repeats 40 times.", 40),
        (5, {}, "Callback scheduled: fires every 5s, repeats 20 times.", 20),
        (3600, {"repeat_count": -1}, "Callback scheduled: fires every 3600s, repeats until cancelled.", -1),
        (60, {"repeat_count": 0}, "Callback scheduled: fires once in 60s.", 1),
        (60, {"repeat_count": 1}, "Callback scheduled: fires once in 60s.", 1),
    ],
)
def test_set_says_what_it_scheduled(tmp_path: Path, delay: int, count: dict[str, int], text: str, left: int) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            output = await lent.call(set_callback, action="set", message="look", delay_seconds=delay, **count)
            row = {"callback_id": 0, "message": "look", "fires_in_ms": delay * 1000, "left": left}
            assert said(output) == text
            assert data(output) == {"callbacks": [{**row, "delay_seconds": delay}], "note": text}

    run(body())


def test_list_shows_the_slots_with_their_times(tmp_path: Path) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            nothing = await lent.call(set_callback, action="list")
            assert (said(nothing), data(nothing)) == ("No callbacks are set.", {"callbacks": []})
            await lent.call(set_callback, action="set", message="one\nline", delay_seconds=30)
            await lent.call(set_callback, action="set", message="x" * 2048, delay_seconds=40, repeat_count=-1)
            await lent.call(set_callback, action="set", message="look", delay_seconds=50, repeat_count=1)
            lent.time += 10
            listed = await lent.call(set_callback, action="list")
            assert said(listed).split("\n") == [
                "0: in 20s, every 30s, 20 left: one line",
                f"1: in 30s, every 40s, until cancelled: {'x' * 2048}",
                "2: in 40s, once: look",
            ]
            one = {"callback_id": 0, "message": "one\nline", "fires_in_ms": 20_000, "left": 20, "delay_seconds": 30}
            two = {"callback_id": 1, "message": "x" * 2048, "fires_in_ms": 30_000, "left": -1, "delay_seconds": 40}
            three = {"callback_id": 2, "message": "look", "fires_in_ms": 40_000, "left": 1, "delay_seconds": 50}
            assert data(listed) == {"callbacks": [one, two, three]}

    run(body())


def test_cancel_ends_one_or_all_and_shows_the_rest(tmp_path: Path) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            for _ in range(4):
                await lent.call(set_callback, action="set", message="look", delay_seconds=30)
            one = await lent.call(set_callback, action="cancel", callback_id=2)
            assert said(one) == "Cancelled: 2."
            assert [row["callback_id"] for row in data(one)["callbacks"]] == [0, 1, 3]
            told = refused(await lent.call(set_callback, action="cancel", callback_id=2))
            assert told == "callback 2 is not set (of 0 to 7 there are: 0, 1, 3)"
            every = await lent.call(set_callback, action="cancel")
            assert said(every) == "Cancelled: 0, 1, 3."
            assert data(every) == {"callbacks": [], "note": "Cancelled: 0, 1, 3."}
            none = await lent.call(set_callback, action="cancel")
            assert said(none) == "No callbacks are set, so there was nothing to cancel."

    run(body())


def test_a_ninth_is_refused_with_the_limit(tmp_path: Path) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            for number in range(8):
                made = await lent.call(set_callback, action="set", message="look", delay_seconds=30)
                assert data(made)["callbacks"][0]["callback_id"] == number
            told = refused(await lent.call(set_callback, action="set", message="look", delay_seconds=30))
            assert told == "all 8 callbacks (0 to 7) are taken: cancel one first"

    run(body())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"action": "set", "message": "x"}, "set needs message and delay_seconds (1 to 3600)"),
        ({"action": "set", "delay_seconds": 1}, "set needs message and delay_seconds"),
        ({"action": "set", "message": " ", "delay_seconds": 1}, "set needs message"),
        ({"action": "set", "message": "x", "delay_seconds": 0}, "delay_seconds"),
        ({"action": "set", "message": "x", "delay_seconds": 3601}, "3600"),
        ({"action": "set", "message": "x" * 2049, "delay_seconds": 1}, "at most 2048"),
        ({"action": "set", "message": "x", "delay_seconds": 1, "repeat_count": -2}, "-1 (for ever) or 0 to"),
        ({"action": "set", "message": "x", "delay_seconds": 1, "repeat_count": 10**30}, "not 10000000000000000000…"),
        ({"action": "set", "message": "x", "delay_seconds": 1, "callback_id": 1}, "leave callback_id out"),
        ({"action": "cancel", "callback_id": 0}, "callback 0 is not set (of 0 to 7 there are: none)"),
        ({"action": "cancel", "callback_id": 10**30}, "callback 10000000000000000000… is not set"),
        ({"action": "pause"}, "action"),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it(tmp_path: Path, arguments: dict[str, Any], told: str) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            assert told in refused(await lent.call(set_callback, **arguments))
            assert data(await lent.call(set_callback, action="list")) == {"callbacks": []}

    run(body())


def test_the_schema_is_the_contracts() -> None:
    properties = set_callback.input["properties"]
    assert {name: declared["type"] for name, declared in properties.items()} == {
        "action": "string",
        "message": "string",
        "delay_seconds": "integer",
        "repeat_count": "integer",
        "callback_id": "integer",
    }
    assert (properties["delay_seconds"]["minimum"], properties["delay_seconds"]["maximum"]) == (1, 3600)
    assert properties["action"]["enum"] == ["set", "list", "cancel"]
    assert set_callback.input["required"] == ["action"]
