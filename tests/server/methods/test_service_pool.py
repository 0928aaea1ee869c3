"""A server's memory does not grow with the people it meets, and nobody loses anything by that."""

import asyncio
import gc
import secrets
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest

from toolgate.server.methods.server import MAX_PRINCIPALS, ServicePool
from toolgate.server.state.rows.working_directories import WorkingDirectories
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.tools.api.context.notices import Notices
from toolgate.tools.api.context.services import CallerState, Services, Settings

PEOPLE = 10_000
HOME = Path("/srv/work")


@pytest.fixture
def made() -> "WeakValueDictionary[str, Services]":
    """The services that are in memory, by principal."""
    return WeakValueDictionary()


Finder = Callable[[str], CallerState]


def create_pool(made: "WeakValueDictionary[str, Services]", find_state: Finder | None = None) -> ServicePool:
    def create(principal: str, state: CallerState, notices: Notices) -> Services:
        none: Any = None  # the pool uses no other part
        services = Services(principal, state, none, none, none, none, none, Settings(), built_in={Notices: notices})
        made[principal] = services
        return services

    return ServicePool(create) if find_state is None else ServicePool(create, find_state)


@pytest.fixture
def pool(made: "WeakValueDictionary[str, Services]") -> ServicePool:
    return create_pool(made)


def meet(pool: ServicePool, count: int = PEOPLE) -> None:
    """Let so many new people call once."""
    crowd = secrets.token_hex(4)
    for number in range(count):
        pool.of_principal(f"{crowd}-{number}")


def count_notices() -> int:
    return sum(1 for thing in gc.get_objects() if type(thing) is Notices)


def test_ten_thousand_people_leave_no_growth(pool: ServicePool, made: "WeakValueDictionary[str, Services]") -> None:
    before = count_notices()
    meet(pool)
    assert len(made) == MAX_PRINCIPALS
    assert count_notices() - before <= 2 * MAX_PRINCIPALS


def test_people_who_only_get_notices_leave_no_empty_ones(pool: ServicePool) -> None:
    before = count_notices()
    for number in range(PEOPLE):
        pool.notices(str(number)).add("run-1", "ended", "tools:read")
        pool.notices(str(number)).take()
    assert count_notices() - before <= 2 * MAX_PRINCIPALS


def test_who_called_last_keeps_the_services(pool: ServicePool) -> None:
    ada = pool.of_principal("ada")
    meet(pool, MAX_PRINCIPALS - 1)
    state = pool.of_principal("ada").caller_state
    meet(pool, MAX_PRINCIPALS - 1)
    assert pool.of_principal("ada").caller_state is state is ada.caller_state


def test_a_call_under_way_shares_state_and_notices_with_the_next(pool: ServicePool) -> None:
    under_way = pool.of_principal("ada")
    meet(pool, 3 * MAX_PRINCIPALS)  # the notices are trimmed as well
    assert pool.of_principal("ada") is under_way
    assert pool.notices("ada") is under_way.built_in[Notices]
    meet(pool, MAX_PRINCIPALS)
    pool.forget("ada")  # its workspace is gone
    assert pool.of_principal("ada") is not under_way


def test_a_directory_that_is_not_stored_is_kept_and_a_stored_one_is_found_again(
    made: "WeakValueDictionary[str, Services]", tmp_path: Path
) -> None:
    async def move_and_call_again() -> None:
        pool = create_pool(made, WorkingDirectories(store, "").get_place)
        for name in ("ada", "bob"):
            pool.of_principal(name).caller_state.cwd = HOME
        await pool.of_principal("bob").caller_state.save_cwd()
        meet(pool, MAX_PRINCIPALS)
        gc.collect()
        assert "ada" in made and "bob" not in made
        assert [pool.of_principal(name).caller_state.cwd for name in ("ada", "bob")] == [HOME, HOME]

    with closing(SqliteStore(tmp_path / "state")) as store:
        asyncio.run(move_and_call_again())


def test_notices_wait_however_many_others_come(pool: ServicePool) -> None:
    pool.notices("ada").add("run-1", "ended", "tools:read")
    meet(pool)
    assert [notice.text for notice in pool.notices("ada").take().values()] == ["ended"]
