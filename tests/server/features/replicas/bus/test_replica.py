"""Replicas and the ids that begin with their names, on each kind of bus."""

from collections.abc import Callable

import pytest

from toolgate.server.base.bus.bus import Bus
from toolgate.server.base.bus.replica_ids import ReplicaId, create_name, format_id, is_name, parse_id

Run = Callable[..., None]


def test_a_replica_lives_and_no_other_does(run: Run) -> None:
    async def check(bus: Bus) -> None:
        assert is_name(bus.replica.name)
        assert bus.replica.holds_lease()
        assert await bus.replica.is_alive(bus.replica.name)
        assert await bus.replica.list_names() == [bus.replica.name]
        for name in ("", "no name", bus.replica.name + "0"):
            assert not await bus.replica.is_alive(name)

    run(check)


def test_a_replica_that_reads_its_mail_has_not_ended(run: Run) -> None:
    async def check(bus: Bus) -> None:
        assert not await bus.replica.find_ended(bus.replica.name)
        assert await bus.replica.find_ended("no name")
        assert await bus.replica.is_alive(bus.replica.name)

    run(check)


def test_a_bus_in_use_is_healthy(run: Run) -> None:
    async def check(bus: Bus) -> None:
        await bus.keys.get("a")
        health = bus.health()
        assert health.is_reachable
        assert (health.lag, health.unwritten, health.dropped) == (0, 0, 0)
        assert 0 <= health.latency < 1 and 0 <= health.lease_age < 3 and health.seconds >= 0

    run(check)


def test_an_id_leads_to_its_replica() -> None:
    name = create_name()
    assert parse_id(format_id(name, "a.b")) == ReplicaId(name, "a.b")
    assert len(name) == 8 and name != create_name()


@pytest.mark.parametrize("id", ["", "0123abcd", "0123ABCD.x", "0123abcde.x", "é123abcd.x", ".x", "0123abcd\n.x"])
def test_an_id_of_no_replica_leads_nowhere(id: str) -> None:
    assert parse_id(id) is None
