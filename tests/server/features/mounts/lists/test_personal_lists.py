"""What single people were shown lies in the state: bounded, sealed for each, and shown again after a start."""

import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import eventually
from tests.server.auth.minted_tokens import signed_site
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn, far_sign_in
from tests.server.features.mounts.sign_in.test_elicitation import disconnect
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, CONNECT, Scene
from tests.server.state.conftest import each_store as each_store
from tests.server.state.each_store import ON_EACH, with_store
from tests.servers import forked_command
from tests.servers.forked_command import COMMAND
from toolgate.server.features.mounts.kept_secrets.secret_store import KEY
from toolgate.server.features.mounts.lists.list_store import MountLists
from toolgate.server.features.mounts.lists.personal_lists import MAX_SIZE, OF_ALL, PersonalLists, remove_person
from toolgate.server.features.mounts.lists.rows import KeptBounds
from toolgate.server.features.mounts.mount.profile import NOTHING, ClientProfile, create_profile
from toolgate.server.state.keys.sealing_keys import KeyFolder

LISTED = {"far__whoami", "far__of_ada_there"}


def of(principal: str, declared: Any = None) -> ClientProfile:
    return (create_profile(declared) if declared else NOTHING).for_principal(principal)


def make(name: str) -> MountLists:
    return MountLists(tools=[{"name": name, "inputSchema": {"type": "object"}, "n": 1.0}], ttl=3.0, revision="x")


class Kept:
    """The lists of mounts on one state."""

    def __init__(self, store: Any, folder: Path) -> None:
        self.store = store
        self._folder = folder

    def open(self, mount: str = "far", server: str = "s", **bounds: KeptBounds) -> PersonalLists:
        return PersonalLists(self.store, KeyFolder(self._folder), mount, server, **bounds)


def run(folder: Path, body: Callable[[Kept], Awaitable[None]]) -> None:
    with_store(folder, lambda store: body(Kept(store, folder / "keys")))


@ON_EACH
def test_each_kind_of_client_of_each_person_has_what_it_was_shown(tmp_path: Path) -> None:
    async def body(kept: Kept) -> None:
        lists = kept.open()
        assert await lists.find(of("ada")) is None
        await lists.keep(of("ada"), make("first"))
        await lists.keep(of("ada"), make("a"))
        await lists.keep(of("ada", {"sampling": {}}), make("b"))
        await lists.keep(of("bob"), make("c"))
        found = [await lists.find(each) for each in (of("ada"), of("ada", {"sampling": {}}), of("bob"), of("eve"))]
        assert found == [make("a"), make("b"), make("c"), None]
        assert await kept.open(mount="other").find(of("ada")) is None
        assert await kept.open(server="another").find(of("ada")) is None

    run(tmp_path, body)


@ON_EACH
def test_an_account_takes_its_lists_along(tmp_path: Path) -> None:
    async def body(kept: Kept) -> None:
        lists = kept.open()
        for who in ("ada", "bob"):
            await lists.keep(of(who), make("a"))
        await remove_person(kept.store, "ada")
        assert (await lists.find(of("ada")), await lists.find(of("bob"))) == (None, make("a"))

    run(tmp_path, body)


@ON_EACH
@pytest.mark.parametrize("bound", ["lists", "size"])
def test_the_oldest_of_a_person_and_of_all_give_way(tmp_path: Path, bound: str) -> None:
    """Each list has the same size; two of one person fit, and three of all."""

    async def body(kept: Kept) -> None:
        async def keep(mount: str, who: str) -> None:
            await kept.open(mount, of_person=bounds[0], of_all=bounds[1]).keep(of(who), make("a"))

        async def list_kept() -> list[tuple[str, str]]:
            places = [(mount, who) for who in ("ada", "bob", "eve") for mount in "xyz"]
            return [place for place in places if await kept.open(place[0]).find(of(place[1])) is not None]

        await kept.open("x").keep(of("ada"), make("a"))
        size = await kept.store.read(lambda connection: measure(connection))
        bounds = [KeptBounds(number, OF_ALL.size) for number in (2, 3)]
        if bound == "size":
            bounds = [KeptBounds(OF_ALL.lists, number * size) for number in (2, 3)]
        await keep("y", "ada")
        await keep("z", "ada")
        assert await list_kept() == [("y", "ada"), ("z", "ada")]
        await keep("x", "bob")
        await keep("x", "eve")
        assert await list_kept() == [("z", "ada"), ("x", "bob"), ("x", "eve")]

    run(tmp_path, body)


def measure(connection: Any) -> int:
    from toolgate.server.state import tables

    found: int = connection.execute(tables.select(tables.mount_list.c.size)).scalar_one()
    return found


def test_lists_that_are_too_long_or_too_deep_are_not_kept(tmp_path: Path) -> None:
    async def body(kept: Kept) -> None:
        deep: dict[str, Any] = {}
        for _ in range(20_000):  # deeper than any Python writes
            deep = {"a": deep}
        for lists in (make("a" * MAX_SIZE), MountLists(tools=[deep])):
            await kept.open().keep(of("ada"), lists)
            assert await kept.open().find(of("ada")) is None

    run(tmp_path, body)


def test_lists_that_were_fetched_with_other_secrets_are_none(tmp_path: Path) -> None:
    async def body(kept: Kept) -> None:
        lists = kept.open()
        await lists.keep(of("ada"), make("a"), ["one", "two"])
        found = [await lists.find(of("ada"), each) for each in (["two", "one", "one"], ["one"], ["onetwo"], [])]
        assert found == [make("a"), None, None, None]

    run(tmp_path, body)


def test_lists_whose_key_was_lost_are_none(tmp_path: Path) -> None:
    async def body(kept: Kept) -> None:
        await kept.open().keep(of("ada"), make("a"))
        other = PersonalLists(kept.store, KeyFolder(tmp_path / "other"), "far", "s")
        assert await other.find(of("ada")) is None

    run(tmp_path, body)


def test_a_key_that_is_damaged_costs_the_lists_and_no_more(tmp_path: Path) -> None:
    async def body(kept: Kept) -> None:
        await kept.open().keep(of("ada"), make("a"))
        (tmp_path / "keys" / KEY).write_bytes(b"damaged")
        assert await kept.open().find(of("ada")) is None
        await kept.open().keep(of("ada"), make("b"))

    run(tmp_path, body)


@pytest.fixture
def far() -> Iterator[FarSignIn]:
    with far_sign_in() as opened:
        yield opened


@contextlib.contextmanager
def restarted_scene(folder: Path, far: FarSignIn, *, ends: bool = False) -> Iterator[Scene]:
    """Have Ada connect and list, and yield the server that comes after that one. `ends`: her connection ends before."""
    options = write_config(folder, url_mount(f"{far.origin}/mcp", "far", *AUTH))
    with signed_site(folder / "server", *options) as signed:
        scene = Scene(signed, far)
        scene.connect(scene.ada)
        scene.wait_listed(scene.ada)
        assert eventually(lambda: count_rows(scene.state) == 1)  # a list is shown before it is stored
        if ends:
            disconnect(scene.ada)
    far.end_access()
    with signed_site(folder / "server", *options) as signed:
        scene.signed, scene.url, scene.state = signed, signed.site.url, signed.site.state
        for who in (scene.ada, scene.bob):
            who.move(signed)
        yield scene


@pytest.mark.brief("True")
@pytest.mark.parametrize("ends", [False, True])
def test_a_start_shows_each_person_what_they_had(tmp_path: Path, far: FarSignIn, ends: bool) -> None:
    far.refresh_may_end.clear()  # nobody can list anything now
    with restarted_scene(tmp_path, far, ends=ends) as scene:
        assert scene.list_far(scene.ada) == LISTED
        assert scene.list_far(scene.bob) == {CONNECT}
        far.refresh_may_end.set()
        assert ("SIGN_IN_REQUIRED" in scene.call(scene.ada)) is ends


def test_a_removed_account_or_mount_leaves_no_lists(tmp_path: Path, far: FarSignIn) -> None:
    with restarted_scene(tmp_path, far) as scene:
        scene.connect(scene.bob)
        scene.wait_listed(scene.bob)
        assert eventually(lambda: count_rows(scene.state) == 2)
        command(scene, "user", "remove", "ada")
        assert count_rows(scene.state) == 1
    command(scene, "mount", "remove", "far", "--config", str(tmp_path / "mounts.toml"))
    assert count_rows(scene.state) == 0


def command(scene: Scene, *words: str) -> None:
    told = [COMMAND, *words, "--state", str(scene.state)]
    answered = forked_command.run(told, "", cwd=scene.state, env={"PATH": "/usr/bin:/bin"})
    assert answered.returncode == 0, answered.stderr


def count_rows(state: Path) -> int:
    with contextlib.closing(sqlite3.connect(state / "state.db")) as database:
        (count,) = database.execute("SELECT count(*) FROM mount_list").fetchone()
        return int(count)
