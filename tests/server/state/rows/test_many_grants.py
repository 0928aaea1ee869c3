"""Many grants of one person: pages show the newest, commands take a few statements, and ending all takes pieces."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.server.state.each_store import ON_EACH, with_store
from toolgate.server.auth.grants import Grants
from toolgate.server.auth.login.accounts import Person
from toolgate.server.base.principals.principal import derive_subject
from toolgate.server.state import tables
from toolgate.server.state.store import Store

pytestmark = ON_EACH

ADA = Person("https://issuer.example", "1", "ada")
COUNT = 320


@contextmanager
def recorded_statements() -> Generator[list[list[str]]]:
    """Yield the statements of each transaction."""
    transactions: list[list[str]] = []

    def begin(_connection: object) -> None:
        transactions.append([])

    def execute(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if transactions:
            transactions[-1].append(statement)

    event.listen(Engine, "begin", begin)
    event.listen(Engine, "before_cursor_execute", execute)
    try:
        yield transactions
    finally:
        event.remove(Engine, "begin", begin)
        event.remove(Engine, "before_cursor_execute", execute)


async def add_grants(store: Store, count: int = COUNT, ada: Person = ADA) -> None:
    """Store grants of one person, two to each of her clients, and a token of each."""
    subject, far = derive_subject(ada.issuer, ada.subject), store.now() + 1e6
    metadata = '{"client_name":"app","redirect_uris":[],"token_endpoint_auth_method":"none","grant_types":[]}'
    client = {"kind": "dynamic", "metadata": metadata, "made_at": 0.0}
    row: dict[str, Any] = {"subject": subject, "scope": "a b", "resource": "", "redirect_uri": "", "family": ""}
    row |= {"used_at": 1.0, "expires_at": far}
    token = {"subject": subject, "expires_at": far, "denied": False}
    person = {"issuer": ada.issuer, "known_as": ada.subject, "name": ada.name, "seen_at": 0.0}

    def fill(connection: "tables.Connection") -> None:
        clients = [{**client, "id": f"c-{n}"} for n in range(count // 2)]
        connection.execute(tables.client.insert(), clients)
        connection.execute(tables.person.insert(), [{**person, "subject": subject}])
        grants = [{**row, "id": f"g-{n}", "client": f"c-{n // 2}", "made_at": float(n)} for n in range(count)]
        connection.execute(tables.grant.insert(), grants)
        live = [{**token, "jti": f"t-{n}", "client": f"c-{n // 2}", "grant_id": f"g-{n}"} for n in range(count)]
        connection.execute(tables.access_token.insert(), live)

    await store.transact(fill)


def test_a_page_has_the_newest_fifty_and_the_number_of_all(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        await add_grants(store)
        with recorded_statements() as transactions:
            shown, count = await Grants(store, {}).list_newest(ADA)
        assert ([grant.id for grant in shown], count) == ([f"g-{COUNT - 1 - n}" for n in range(50)], COUNT)
        assert {(grant.person, grant.client.name) for grant in shown} == {("ada", "app")}
        assert sum("oauth_grant" in statement for each in transactions for statement in each) == 2

    with_store(tmp_path, body)


def test_the_list_of_all_grants_is_one_query(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        await add_grants(store)
        with recorded_statements() as transactions:
            found = await Grants(store, {}).list_grants()
        assert len(found) == COUNT
        assert sum("oauth_" in statement for each in transactions for statement in each) == 1

    with_store(tmp_path, body)


def test_ending_all_grants_takes_short_transactions(tmp_path: Path) -> None:
    denied: list[str] = []

    async def body(store: Store) -> None:
        await add_grants(store)
        with recorded_statements() as transactions:
            assert await Grants(store, {}, denied.extend).revoke_all() == COUNT
        assert len(denied) == COUNT
        assert max(map(len, transactions)) < 120 and len(transactions) > COUNT // 100
        assert await Grants(store, {}).list_grants() == []
        assert await Grants(store, {}).revoke_all() == 0

    with_store(tmp_path, body)


@pytest.mark.parametrize("remove", [False, True])
def test_a_grant_outlives_its_client_and_person_in_the_list(tmp_path: Path, *, remove: bool) -> None:
    async def body(store: Store) -> None:
        await add_grants(store, 2)
        if remove:
            await store.transact(lambda connection: connection.execute(tables.client.delete()))
            await store.transact(lambda connection: connection.execute(tables.person.delete()))
        found = await Grants(store, {}).list_grants()
        expected = ("a removed app", "", "") if remove else ("app", "ada", ADA.issuer)
        assert [(each.client.name, each.person, each.issuer) for each in found] == [expected] * 2
        assert await Grants(store, {}).has_grant(ADA, "c-0")
        assert not await Grants(store, {}).has_grant(ADA, "c-1")

    with_store(tmp_path, body)
