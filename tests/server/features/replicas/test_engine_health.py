"""A search engine that refuses one replica is left alone by the others."""

from collections.abc import Callable

from tests.server.features.replicas.bus.conftest import eventually
from tests.server.features.replicas.bus.conftest import shared_redis as shared_redis
from tests.server.features.replicas.bus.pairs import run_replicas as run_replicas
from toolgate.server.base.bus.bus import Bus
from toolgate.server.features.replicas.services.engine_health import TOPIC, share_engine_health
from toolgate.tools.reading.search.health import MAX_WAIT, EngineHealth
from toolgate.tools.reading.search.outcome import EngineOutcome


def test_an_engine_that_refuses_one_rests_at_all(run_replicas: Callable[..., None]) -> None:
    now = [1_000.0]

    async def check(one: Bus, two: Bus) -> None:
        healths = [{name: EngineHealth(name, lambda: now[0]) for name in ("brave", "mojeek")} for _ in range(2)]
        for bus, health in zip((one, two), healths, strict=True):
            share_engine_health(bus, health)
            await bus.topics.subscribe("ready", lambda _: None, lambda: None).confirm()
        here, there = healths

        async def is_open() -> bool:
            return there["brave"].state == "open"

        refused = EngineOutcome("brave", "blocked", reason="too many requests", wait=90, is_engine_fault=True)
        here["brave"].record(refused, here["brave"].begin())
        await eventually(is_open)
        skipped = there["brave"].skip_outcome()
        assert skipped is not None and skipped.reason == "too many requests; next try in 90 s"
        assert there["mojeek"].state == here["mojeek"].state == "closed"
        now[0] += 91
        assert there["brave"].state == here["brave"].state == "half-open"
        there["brave"].record(EngineOutcome("brave", "ok"), there["brave"].begin())
        assert there["brave"].state == "closed"
        for forged in (b"", b"\xc0", b"\x95\xa1x\xa1y\xa7blocked\xa0\x01"):  # no rest, or of no engine here
            one.topics.publish(TOPIC, forged)
        here["mojeek"].on_suspend("blocked", "x" * 1_000, 1e9)
        await eventually(lambda: has_state(there["mojeek"], "open"))
        now[0] += MAX_WAIT + 1
        assert there["mojeek"].state == "half-open"

    run_replicas(check)


async def has_state(health: EngineHealth, state: str) -> bool:
    return health.state == state
