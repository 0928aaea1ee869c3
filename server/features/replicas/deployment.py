"""Name the deployment: the servers on one state database. Its id tells them from others on the same Redis."""

import secrets
from typing import TYPE_CHECKING

from toolgate.server.state import tables

if TYPE_CHECKING:
    from toolgate.server.state.store import Store


def read_deployment(connection: "tables.Connection") -> str | None:
    """Return the id, or None if no server with --redis has used the database yet."""
    id: str | None = connection.execute(tables.deployment.select()).scalar()
    return id


async def find_deployment(store: "Store") -> str:
    """Return the id, and make it at the first use. Raises StateError."""
    return await store.transact(_find_or_create)


def _find_or_create(connection: "tables.Connection") -> str:
    id = read_deployment(connection)
    if id is None:
        id = secrets.token_hex(8)
        connection.execute(tables.deployment.insert().values(id=id))
    return id
