"""Read and write what was approved of mounted servers. Each function runs inside a transaction.

`server` is a digest of what a mount runs or reaches: another command or URL of the same name is another server, and has
pins of its own. What was approved once stays approved, so that a server may show different clients different forms.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Literal

import msgspec

from toolgate.server.features.mounts.pins.definitions import ItemDefinition, Kind
from toolgate.server.features.mounts.pins.outlines import create_outline
from toolgate.server.state import tables

if TYPE_CHECKING:
    from toolgate.server.state.tables import Connection, Row

Standing = Literal["approved", "held", "refused"]

MAX_DEFINITION = 64 * 1024  # bytes that are stored to be shown; a longer one has an outline
MAX_HELD = 500  # forms of one server that wait for a review; the newest stay
MAX_PINS = 12_000  # forms of one server; a list has 10,000 items
MAX_SERVERS = 4  # of one mount whose pins are kept


class StoredPin(msgspec.Struct, frozen=True):
    """One form of an item, and what was decided of it at `seen_at`, in seconds since 1970. `definition` is an
    outline where it is too large to be kept, and b"" where that is, too, or was not asked for."""

    mount: str
    server: str
    kind: Kind
    name: str
    digest: str
    standing: Standing
    seen_at: float
    definition: bytes = b""


class StoredBaseline(msgspec.Struct, frozen=True):
    """When the first lists of a server were taken. `seen`: a person has seen them."""

    mount: str
    server: str
    seen: bool
    taken_at: float


def take_baseline(
    connection: "Connection",
    mount: str,
    server: str,
    definitions: Iterable[ItemDefinition],
    now: float,
    *,
    seen: bool,
) -> bool:
    """Approve the first lists of a server. Return False if another process has taken them before; those that a person
    has `seen` count all the same. What was refused of the mount stays so."""
    key = {"mount": mount, "server": server}
    if not tables.add_row(connection, tables.mount_baseline, {**key, "seen": seen, "taken_at": now}):
        if not seen:
            return False
        tables.write_row(connection, tables.mount_baseline, key, {"seen": True, "taken_at": now})
    _forget_others(connection, mount, server)
    refused = _list_refused(connection, mount)
    for each in definitions:
        standing: Standing = "refused" if (each.kind, each.digest) in refused else "approved"
        _add(connection, mount, server, each, standing, now)
        if standing == "approved":
            _approve_held(connection, mount, server, each, now)
    return True


def approve(
    connection: "Connection", mount: str, server: str, definitions: Iterable[ItemDefinition], now: float
) -> None:
    """Approve forms, but for those that were refused."""
    for each in definitions:
        if not _add(connection, mount, server, each, "approved", now):
            _approve_held(connection, mount, server, each, now)
    _remove_oldest(connection, mount, server, "approved", MAX_PINS)


def hold(connection: "Connection", mount: str, server: str, definitions: Iterable[ItemDefinition], now: float) -> None:
    """Have forms wait for a review, but for those that were decided."""
    for each in definitions:
        _add(connection, mount, server, each, "held", now)
    _remove_oldest(connection, mount, server, "held", MAX_HELD)


def decide(connection: "Connection", pins: Collection[StoredPin], standing: Standing, now: float) -> None:
    """Approve or refuse forms that are there."""
    for pin in pins:
        row = {"standing": standing, "seen_at": now}
        connection.execute(tables.mount_pin.update().filter_by(**_key(pin.mount, pin.server, pin)).values(row))


def forget_baseline(connection: "Connection", mount: str, server: str) -> None:
    """Have the first lists be taken later, if nothing of the server is known yet."""
    pins = tables.mount_pin.select().filter_by(mount=mount, server=server).limit(1)
    if connection.execute(pins).first() is None:
        connection.execute(tables.mount_baseline.delete().filter_by(mount=mount, server=server))


def forget_mount(connection: "Connection", mount: str) -> None:
    """Remove all that was decided of a mount."""
    for table in (tables.mount_pin, tables.mount_baseline):
        connection.execute(table.delete().where(table.c.mount == mount))


def list_baselines(connection: "Connection", mounts: Collection[str]) -> list[StoredBaseline]:
    baseline = tables.mount_baseline
    found = connection.execute(baseline.select().where(baseline.c.mount.in_(mounts)))
    return [StoredBaseline(row.mount, row.server, row.seen, row.taken_at) for row in found]


def list_standings(connection: "Connection", mounts: Collection[str]) -> list[StoredPin]:
    """Return the pins of mounts without their definitions, the oldest first."""
    pin = tables.mount_pin
    columns = [column for column in pin.c if column is not pin.c.definition]
    found = connection.execute(tables.select(*columns).where(pin.c.mount.in_(mounts)).order_by(pin.c.seen_at))
    return [_read(row) for row in found]


def list_pins(connection: "Connection", mount: str) -> list[StoredPin]:
    """Return the pins of a mount with their definitions, the oldest first."""
    pin = tables.mount_pin
    found = connection.execute(pin.select().where(pin.c.mount == mount).order_by(pin.c.seen_at, pin.c.kind, pin.c.name))
    return [_read(row, row.definition) for row in found]


def has_refusal(connection: "Connection", mount: str) -> bool:
    return bool(_list_refused(connection, mount))


def _add(
    connection: "Connection", mount: str, server: str, item: ItemDefinition, standing: Standing, now: float
) -> bool:
    data = item.data if len(item.data) <= MAX_DEFINITION else create_outline(item.data)
    data = data if len(data) <= MAX_DEFINITION else b""
    row = {"name": item.name, "standing": standing, "definition": data, "seen_at": now}
    return tables.add_row(connection, tables.mount_pin, {**_key(mount, server, item), **row})


def _approve_held(connection: "Connection", mount: str, server: str, item: ItemDefinition, now: float) -> None:
    pin = tables.mount_pin
    held = pin.update().filter_by(**_key(mount, server, item)).where(pin.c.standing == "held")
    connection.execute(held.values(standing="approved", seen_at=now))


def _key(mount: str, server: str, item: ItemDefinition | StoredPin) -> dict[str, str]:
    return {"mount": mount, "server": server, "kind": item.kind, "digest": item.digest}


def _list_refused(connection: "Connection", mount: str) -> set[tuple[str, str]]:
    pin = tables.mount_pin
    refused = tables.select(pin.c.kind, pin.c.digest).where((pin.c.mount == mount) & (pin.c.standing == "refused"))
    return {(row.kind, row.digest) for row in connection.execute(refused)}


def _forget_others(connection: "Connection", mount: str, server: str) -> None:
    """Remove what waits for a review of other servers of the mount, and all but refusals of those of long ago."""
    pin, baseline = tables.mount_pin, tables.mount_baseline
    is_other = (pin.c.mount == mount) & (pin.c.server != server)
    connection.execute(pin.delete().where(is_other & (pin.c.standing == "held")))
    newest = baseline.select().where(baseline.c.mount == mount).order_by(baseline.c.taken_at.desc())
    for row in connection.execute(newest).all()[MAX_SERVERS:]:
        of_server = (pin.c.mount == mount) & (pin.c.server == row.server)
        connection.execute(pin.delete().where(of_server & (pin.c.standing != "refused")))
        connection.execute(baseline.delete().filter_by(mount=mount, server=row.server))


def _remove_oldest(connection: "Connection", mount: str, server: str, standing: Standing, most: int) -> None:
    pin = tables.mount_pin
    chosen = (pin.c.mount == mount) & (pin.c.server == server) & (pin.c.standing == standing)
    listed = tables.select(pin.c.kind, pin.c.digest).where(chosen).order_by(pin.c.seen_at.desc())
    for row in connection.execute(listed.offset(most)).all():
        connection.execute(pin.delete().filter_by(mount=mount, server=server, kind=row.kind, digest=row.digest))


def _read(row: "Row[tuple[object, ...]]", definition: bytes = b"") -> StoredPin:
    return StoredPin(row.mount, row.server, row.kind, row.name, row.digest, row.standing, row.seen_at, definition)
