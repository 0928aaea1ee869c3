"""Read and write the approvals that people gave for good. Each function runs inside a transaction."""

import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.server.state import tables

if TYPE_CHECKING:
    from toolgate.server.state.tables import Connection as Connection


class StandingApproval(msgspec.Struct, frozen=True):
    """An approval for good. `shown` is the command, or the arguments; times are seconds since the epoch."""

    id: str
    tool: str
    shown: str
    folder: str
    rule: str
    client: str  # that asked
    made_at: float
    used_at: float | None


def add(connection: "Connection", principal: str, key: str, **row: Any) -> None:
    """Add an approval, in place of an equal one."""
    table = tables.approval
    connection.execute(table.delete().where(table.c.principal == principal, table.c.key == key))
    connection.execute(table.insert().values(id=secrets.token_hex(8), principal=principal, key=key, **row))


def mark_used(connection: "Connection", principal: str, key: str, now: float) -> bool:
    """Note the use of the approval with this key, and return whether there is one."""
    table = tables.approval
    mine = table.update().where(table.c.principal == principal, table.c.key == key)
    return connection.execute(mine.values(used_at=now)).rowcount > 0


def list_all(connection: "Connection", principal: str) -> list[StandingApproval]:
    """Return a principal's approvals, the newest first."""
    table = tables.approval
    mine = table.select().where(table.c.principal == principal).order_by(table.c.made_at.desc(), table.c.id)
    names = StandingApproval.__struct_fields__
    return [StandingApproval(**{name: getattr(row, name) for name in names}) for row in connection.execute(mine)]


def trim(connection: "Connection", principal: str, most: int) -> None:
    """Keep the newest `most` approvals of a principal."""
    table = tables.approval
    kept = [each.id for each in list_all(connection, principal)[:most]]
    connection.execute(table.delete().where(table.c.principal == principal, table.c.id.not_in(kept)))


def remove(connection: "Connection", principal: str, id: str) -> bool:
    """Remove one of a principal's approvals, and return whether it existed."""
    table = tables.approval
    return connection.execute(table.delete().where(table.c.principal == principal, table.c.id == id)).rowcount > 0
