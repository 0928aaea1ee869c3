"""Secrets in the state database: sealed, each person's own before the team's."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.state.conftest import each_store as each_store
from tests.server.state.each_store import ON_EACH, with_store
from toolgate.server.features.mounts.kept_secrets import secret_store
from toolgate.server.features.mounts.kept_secrets.secret_store import MAX_VALUE, TEAM, SecretError, SecretStore
from toolgate.server.state import tables
from toolgate.server.state.keys.file import replace_file
from toolgate.server.state.keys.sealing_keys import KeyFolder

pytestmark = ON_EACH
KEYS = "keys"


def run(folder: Path, body: Callable[[SecretStore, Any], Awaitable[None]]) -> None:
    with_store(folder, lambda store: body(SecretStore(store, KeyFolder(folder / KEYS)), store))


async def read(secrets: SecretStore, who: str, *names: str, own_only: bool = False) -> dict[str, str]:
    found = await secrets.find(who, names, own_only=own_only)
    return {name: secrets.open(each) for name, each in found.items()}


def test_a_persons_own_goes_before_the_teams(tmp_path: Path) -> None:
    async def body(secrets: SecretStore, _: Any) -> None:
        assert await read(secrets, "ada", "A") == {}
        await secrets.set(TEAM, "A", "team a")
        await secrets.set(TEAM, "B", "team b")
        await secrets.set("ada", "A", "ada's")
        assert await read(secrets, "ada", "A", "B", "C") == {"A": "ada's", "B": "team b"}
        assert await read(secrets, "bob", "A", "B") == {"A": "team a", "B": "team b"}
        assert await read(secrets, "ada", "A", "B", own_only=True) == {"A": "ada's"}
        assert await read(secrets, TEAM, "A", own_only=True) == {}
        await secrets.set("ada", "A", "another")
        assert await read(secrets, "ada", "A") == {"A": "another"}
        assert [(each.principal, each.name) for each in await secrets.list()] == [("", "A"), ("ada", "A"), ("", "B")]
        assert [each.name for each in await secrets.list("ada")] == ["A"]
        assert await secrets.remove("ada", "A") and not await secrets.remove("ada", "A")
        assert await read(secrets, "ada", "A") == {"A": "team a"}

    run(tmp_path, body)


def test_all_of_a_person_are_removed_at_once(tmp_path: Path) -> None:
    async def body(secrets: SecretStore, _: Any) -> None:
        await secrets.remove_all("ada")
        for name in ("A", "B"):
            await secrets.set("ada", name, "x")
            await secrets.set(TEAM, name, "y")
        await secrets.remove_all("ada")
        assert await read(secrets, "ada", "A", "B") == {"A": "y", "B": "y"}

    run(tmp_path, body)


@pytest.mark.parametrize("value", ["", "a\0b", "a" * (MAX_VALUE + 1), "é" * (MAX_VALUE // 2 + 1), "\ud800"])
def test_a_bad_value_is_refused_and_not_repeated(tmp_path: Path, value: str) -> None:
    async def body(secrets: SecretStore, _: Any) -> None:
        with pytest.raises(SecretError) as raised:
            await secrets.set("ada", "A", value)
        assert not value or value not in str(raised.value)
        assert await secrets.list() == []

    run(tmp_path, body)


def test_a_name_is_short_and_plain(tmp_path: Path) -> None:
    async def body(secrets: SecretStore, _: Any) -> None:
        for name in ("", ".", "-a", "a b", "a/b", "é", "a" * 65, "a\n"):
            with pytest.raises(SecretError):
                await secrets.set("ada", name, "x")
        await secrets.set("ada", "a" * 64, "x" * MAX_VALUE)
        assert await read(secrets, "ada", "a" * 64) == {"a" * 64: "x" * MAX_VALUE}

    run(tmp_path, body)


def test_a_person_can_keep_so_many_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_store, "MAX_OF_PRINCIPAL", 2)

    async def body(secrets: SecretStore, _: Any) -> None:
        for name in ("A", "B", "B"):
            await secrets.set("ada", name, "x")
        with pytest.raises(SecretError, match="remove some"):
            await secrets.set("ada", "C", "x")
        await secrets.set("bob", "C", "x")

    run(tmp_path, body)


def test_rows_are_sealed_for_one_person_and_one_name(tmp_path: Path) -> None:
    async def body(secrets: SecretStore, store: Any) -> None:
        await secrets.set("ada", "A", "the value")
        (row,) = await secrets.list()
        assert "value" not in row.sealed
        table = tables.secret
        for moved in ({"principal": "bob"}, {"principal": "ada", "name": "B"}):
            change = table.update().values(**moved)
            await store.transact(lambda connection, change=change: connection.execute(change) and None)
            (row,) = await secrets.list()
            with pytest.raises(SecretError, match="can't be read"):
                secrets.open(row)

    run(tmp_path, body)


def test_another_key_opens_nothing_and_what_is_set_again_counts(tmp_path: Path) -> None:
    async def body(secrets: SecretStore, _: Any) -> None:
        await secrets.set("ada", "A", "before")
        replace_file(tmp_path / KEYS / "mount-secrets", b"k" * 32)
        with pytest.raises(SecretError, match="keys/mount-secrets was lost or replaced; set it again"):
            await read(secrets, "ada", "A")
        await secrets.set("ada", "A", "after")
        assert await read(secrets, "ada", "A") == {"A": "after"}

    run(tmp_path, body)
