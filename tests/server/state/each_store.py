"""Open stores of the kind that the fixture `each_store` has chosen: a test with it runs on SQLite and PostgreSQL."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from tests.servers.postgres import Postgres
from toolgate.server.app import features
from toolgate.server.config import load
from toolgate.server.state.store import Store

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
        chosen.urls[folder] = chosen.server.create_filled_database()
    return chosen.urls[folder]


def open_store(folder: Path) -> Store:
    """Return a store on the database of the folder."""
    return open_at(folder, database_url(folder))


def open_at(folder: Path, url: str = "") -> Store:
    """Return the store that a server with this --state and --database has."""
    flags = {"http": "true", "state": str(folder), **({"database": url} if url else {})}
    return features.open_store(load.load(flags, {}))


def with_store(folder: Path, body: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """Return what `body` returns for a store on the database of the folder."""

    async def run() -> Any:
        store = open_store(folder)
        try:
            return await asyncio.wait_for(body(store), 2 * PATIENCE)
        finally:
            await store.aclose()

    return asyncio.run(run())
