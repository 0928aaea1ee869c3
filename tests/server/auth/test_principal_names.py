"""The names of principals for rules are found without reading everybody each time."""

import asyncio
from pathlib import Path

from tests.server.state.steps import counted_steps
from toolgate.server.auth.principal_names import PrincipalNames
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.principals.principal import Principal
from toolgate.server.state import tables
from toolgate.server.state.rows.people import BUILT_IN
from toolgate.server.state.sqlite.store import SqliteStore


def name_of(subject: str) -> str:
    return Principal(OWN_ISSUER, subject, "").name


async def sign_in(store: SqliteStore, *subjects: str, seen_at: float) -> None:
    row = {"issuer": BUILT_IN, "seen_at": seen_at}
    rows = [{**row, "subject": each, "known_as": each, "name": each} for each in subjects]
    await store.transact(lambda connection: connection.execute(tables.person.insert(), rows))


def test_a_new_person_is_found_without_reading_the_others(tmp_path: Path) -> None:
    async def body() -> None:
        store = SqliteStore(tmp_path)
        with counted_steps() as counter:
            await sign_in(store, *(f"p-{n}" for n in range(500)), seen_at=0.0)
            names = PrincipalNames(store)
            assert await names.find_names(name_of("p-7")) == {name_of("p-7"), "account:p-7"}
            counter.count = 0
            assert await names.find_names(name_of("p-499")) == {name_of("p-499"), "account:p-499"}
            assert counter.count == 0
            await sign_in(store, "new", seen_at=store.now())
            counter.count = 0
            assert await names.find_names(name_of("new")) == {name_of("new"), "account:new"}
            assert await names.find_names("u-stranger") == {"u-stranger"}
            assert 0 < counter.count < 200
        store.close()

    asyncio.run(body())


def test_a_name_that_the_cache_has_no_room_for_is_found_again(tmp_path: Path) -> None:
    async def body() -> None:
        store = SqliteStore(tmp_path)
        await sign_in(store, *(f"p-{n}" for n in range(9)), seen_at=0.0)
        names = PrincipalNames(store, most=3)
        for n in (0, 5, 8, 0):
            assert await names.find_names(name_of(f"p-{n}")) == {name_of(f"p-{n}"), f"account:p-{n}"}
        store.close()

    asyncio.run(body())
