"""Lists that are kept by who is shown them: equal ones once, and a single person's not on the disk."""

from pathlib import Path

import pytest

from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.lists import list_store
from toolgate.server.features.mounts.lists.list_store import MAX_PERSONAL, ListStore, MountLists
from toolgate.server.features.mounts.mount.profile import NOTHING

FAR = MountConfig(name="far", command="far")


def make(*names: str) -> MountLists:
    return MountLists(tools=[{"name": name} for name in names])


def test_equal_lists_of_many_people_are_one(tmp_path: Path) -> None:
    store = ListStore(tmp_path, FAR)
    for number in range(MAX_PERSONAL):
        assert store.put(NOTHING.for_principal(f"u-{number}"), make("a", "b"))
    assert store.put(NOTHING.for_principal("u-1"), make("c")) and store.put(NOTHING, make("a", "b"))
    assert [[tool["name"] for tool in each.tools] for each in store.distinct] == [["c"], ["a", "b"]]
    assert not store.put(NOTHING, make("a", "b"))


def test_the_oldest_person_goes_and_everybodys_lists_stay(tmp_path: Path) -> None:
    store = ListStore(tmp_path, FAR)
    store.put(NOTHING, make("all"))
    for number in range(MAX_PERSONAL + 1):
        store.put(NOTHING.for_principal(f"u-{number}"), make(f"of-{number}"))
    assert store.find(NOTHING.for_principal("u-0")) is None and store.find(NOTHING.for_principal("u-1")) == make("of-1")
    assert store.find(NOTHING) == make("all")


def test_lists_that_many_people_have_stay_for_all_of_them(tmp_path: Path) -> None:
    store, common = ListStore(tmp_path, FAR), [f"u-{number}" for number in range(MAX_PERSONAL + 1)]
    for who in common:
        store.put(NOTHING.for_principal(who), make("a"))
    for number in range(MAX_PERSONAL):
        store.put(NOTHING.for_principal(f"v-{number}"), make(f"of-{number}"))
    assert [who for who in common if store.find(NOTHING.for_principal(who)) is None] == []
    assert store.find(NOTHING.for_principal("v-0")) is None and store.find(NOTHING.for_principal("v-1")) is not None


def test_people_have_a_bound_whatever_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_store, "MAX_OF_PEOPLE", 2)
    store, people = ListStore(tmp_path, FAR), [NOTHING.for_principal(name) for name in ("ada", "bob", "eve")]
    for who in people:
        store.put(who, make("a"))
    assert [store.find(who) for who in people] == [None, make("a"), make("a")]


def test_a_persons_lists_are_not_written(tmp_path: Path) -> None:
    store = ListStore(tmp_path, FAR)
    assert store.is_empty
    store.put(NOTHING.for_principal("u-1"), make("private"))
    store.put(NOTHING, make("all"))
    store.save()
    assert not any(b"private" in file.read_bytes() for file in tmp_path.iterdir())
    after = ListStore(tmp_path, FAR)
    after.load()
    assert after.find(NOTHING) == make("all") and after.find(NOTHING.for_principal("u-1")) is None
