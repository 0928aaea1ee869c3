"""Check that rooms have an order and a docstring, and that no file is loose without a reason."""

from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.architecture import rooms
from tests.architecture.rooms import ORDER
from tests.conftest import SLOW
from tests.needed_features import is_deleted, require
from tests.servers.forked_command import KNOWN
from tests.servers.outbound_search import CONNECTIONS, DOORS, REQUESTS, STARTERS, STREAMS

MOST = 15  # files of a room, beside its `__init__`


def test_webhooks_import_only_the_way_out_and_the_rate_limit() -> None:
    require("events")
    room = "server/features/events/webhooks"
    imported = {target for importer, target in rooms.arrows() if importer == room}
    assert imported == {"server/base", "tools/api/outbound", "tools/api/context", "tools/api/errors.py"}


def test_a_room_imports_only_rooms_below_it() -> None:
    upward = [
        line
        for (importer, imported), lines in rooms.arrows().items()
        if ORDER.index(imported) > ORDER.index(importer)
        for line in lines
    ]
    assert upward == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert rooms.file_circles() == []


def test_a_circle_is_found_wherever_it_is() -> None:
    one, two, three, four = map(Path, ("one", "two", "three", "four"))
    assert rooms.circles({one: {two}, two: {three}, three: {one}, four: {one}}) == [[one, three, two]]
    assert rooms.circles({one: {two}, two: {three}, four: {one}}) == []


def test_every_entry_of_the_order_is_there() -> None:
    assert [entry for entry in ORDER if not (rooms.ROOT / entry).exists() and not is_deleted(entry)] == []


def test_a_room_has_at_most_15_files() -> None:
    counts = Counter(str(path.parent) for path in rooms.sources() if path.name != "__init__.py")
    assert {folder: count for folder, count in counts.items() if count > MOST} == {}


def test_every_module_that_starts_first_is_there() -> None:
    assert [name for name in SLOW if not (rooms.ROOT / "tests" / name).exists()] == []


def test_every_module_that_servers_are_forked_with_is_there() -> None:
    searched = [module for module, _ in (*DOORS, *STREAMS, *STARTERS, *CONNECTIONS, *REQUESTS)]
    there = [name for name in (*KNOWN, *searched) if not is_deleted(name)]
    assert [name for name in there if find_spec(name) is None] == []  # and a class is looked up there


@pytest.mark.parametrize("folder", rooms.folders(), ids=str)
def test_every_room_has_a_docstring(folder: Path) -> None:
    assert rooms.describe(folder / "__init__.py"), (
        f"{folder}/__init__.py needs a docstring: what it is for, and where one enters"
    )
