"""How much one person may switch off, and what is asked of the state."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.server.features.mounts.pins.gated import LeavingStore
from toolgate.server.base.errors import StateError
from toolgate.server.features.mounts.choices.book import ChoiceBook
from toolgate.server.features.mounts.choices.switched_off import (
    MAX_TOOLS,
    NOTHING,
    ChoiceError,
    SwitchedOff,
    decode_choice,
    encode_choice,
)


def named(count: int, size: int = 8) -> SwitchedOff:
    return NOTHING.with_tools("far", (), [f"{number:0{size}}" for number in range(count)])


async def share(_principal: str) -> None:
    """No other server is there."""


def test_a_choice_is_read_as_it_was_written() -> None:
    choice = named(3).with_mount("other", is_off=True)
    assert decode_choice(encode_choice(choice)) == choice
    assert decode_choice(encode_choice(named(MAX_TOOLS))) == named(MAX_TOOLS)


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (named(MAX_TOOLS + 1), "more than 1000 tools"),
        (named(70, 1_024), "too long to be kept"),
        (SwitchedOff(frozenset(f"m{number}" for number in range(257))), "more than 1000 tools"),
    ],
    ids=["many-tools", "long-names", "many-mounts"],
)
def test_too_much_is_refused(choice: SwitchedOff, told: str) -> None:
    with pytest.raises(ChoiceError, match=told):
        encode_choice(choice)


def test_too_much_changes_nothing_and_the_state_is_not_asked_without_a_choice(tmp_path: Path) -> None:
    changes: list[tuple[str, SwitchedOff | None, SwitchedOff | None]] = []

    async def run() -> None:
        store = LeavingStore(tmp_path)
        book = ChoiceBook(lambda: store, lambda *change: changes.append(change), share)
        assert book.find("ada") is None, "nothing is known before the state was looked at"
        await book.load()
        assert (book.find("ada"), store.reads) == (NOTHING, 0)
        kept = await book.change("ada", lambda _: named(2))
        with pytest.raises(ChoiceError):
            await book.change("ada", lambda _: named(MAX_TOOLS + 1))
        assert book.find("ada") == kept == named(2)
        assert changes == [("ada", NOTHING, named(2))]
        store.close()

    asyncio.run(run())


def test_a_state_that_is_away_is_asked_again(tmp_path: Path) -> None:
    async def run() -> None:
        store = LeavingStore(tmp_path)
        first = ChoiceBook(lambda: store, _ignore, share)
        await first.load()
        await first.change("ada", lambda _: named(1))
        loaded = asyncio.Event()
        second = ChoiceBook(lambda: store, lambda *_: loaded.set(), share, again=0.01)
        store.is_away = True
        with pytest.raises(StateError):
            await second.load()
        assert second.find("ada") is second.find("bob") is None
        second.load_soon()
        store.is_away = False
        await asyncio.wait_for(loaded.wait(), 20)
        assert second.find("ada") == named(1)
        store.close()

    asyncio.run(run())


def test_what_is_read_late_is_not_taken_for_newer(tmp_path: Path) -> None:
    async def run() -> None:
        store = LeavingStore(tmp_path)
        books = [ChoiceBook(lambda: store, _ignore, share) for _ in range(2)]
        for book in books:
            await book.load()
        await books[0].change("ada", lambda _: named(1))
        await books[1].load()
        await books[1].change("ada", lambda choice: choice.with_mount("far", is_off=True))
        await books[1].load()
        await books[0].load()
        assert books[0].find("ada") == books[1].find("ada") == named(1).with_mount("far", is_off=True)
        store.close()

    asyncio.run(run())


def _ignore(*_: Any) -> None:
    """Nobody watches."""
