"""Open stores of the kind that the fixture `each_store` has chosen: a test with it runs on SQLite and PostgreSQL."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.servers.postgres import Postgres
from toolgate.server.state.database_url import parse_database_url
from toolgate.server.state.store import Store
from toolgate.server.state.stores import open_store as openchosen

ON_EACH = pytest.mark.usefixtures("each_store")
ON_SQLITE = pytest.mark.parametrize("each_store", ["sqlite"], indirect=True)  # what only files have


@dataclass
class Databases:
    """The databases of one test, one for each folder: of `server`, or files without one."""

    server: Postgres | None = None
    urls: dict[Path, str] = field(default_factory=dict)


chosen = Databases()


def database_url(folder: Path) -> str:
    """Return the URL of the database of the folder, or "" for SQLite."""
    if chosen.server is None:
        return ""
    if folder not in chosen.urls:
        chosen.urls[folder] = chosen.server.create_database()
    return chosen.urls[folder]


def open_store(folder: Path) -> Store:
    """Return a store on the database of the folder."""
    url = database_url(folder)
    return openchosen(folder, parse_database_url(url) if url else None)


def with_store(folder: Path, body: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """Return what `body` returns for a store on the database of the folder."""

    async def run() -> Any:
        store = open_store(folder)
        try:
            return await asyncio.wait_for(body(store), 20)
        finally:
            await store.aclose()

    return asyncio.run(run())
