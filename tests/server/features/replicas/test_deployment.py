"""The id of the servers on one database."""

import asyncio
from pathlib import Path

from tests.server.state.each_store import ON_EACH, open_store
from toolgate.server.features.replicas.deployment import find_deployment, read_deployment


@ON_EACH
def test_all_servers_of_a_database_find_one_id_and_those_of_another_a_different_one(tmp_path: Path) -> None:
    async def find_all() -> list[str]:
        stores = [open_store(folder) for folder in (tmp_path / "one", tmp_path / "one", tmp_path / "other")]
        try:
            found = await asyncio.gather(*map(find_deployment, stores))
            return [*found, await find_deployment(stores[0]), str(await stores[1].read(read_deployment))]
        finally:
            await asyncio.gather(*(store.aclose() for store in stores))

    first, *others = asyncio.run(find_all())
    assert len(first) == 16
    assert [id == first for id in others] == [True, False, True, True]


@ON_EACH
def test_a_database_that_no_server_with_redis_has_used_has_no_id(tmp_path: Path) -> None:
    async def read() -> str | None:
        store = open_store(tmp_path)
        try:
            return await store.read(read_deployment)
        finally:
            await store.aclose()

    assert asyncio.run(read()) is None
