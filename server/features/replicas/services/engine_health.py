"""Tell all replicas when a search engine refuses one of them, so that all let it rest.

They mostly ask from one address. One with another address loses little: a rest has ten minutes at most, or what the
engine asked for.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated

import msgspec

from toolgate.server.base.bus.bus import Bus
from toolgate.tools.reading.search.health import EngineHealth
from toolgate.tools.reading.search.outcome import Status
from toolgate.tools.reading.search.query import MAX_REASON

TOPIC = "search engines"


class _Rest(msgspec.Struct, array_like=True, frozen=True):
    """An engine is not asked for so many seconds."""

    replica: str
    engine: str
    status: Status
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON)]
    seconds: Annotated[float, msgspec.Meta(gt=0)]


_decode = msgspec.msgpack.Decoder(_Rest).decode


def share_engine_health(bus: Bus, health: Mapping[str, EngineHealth]) -> None:
    """Share the rests of these engines. One that is missed costs a refused query."""

    def publish(engine: str, status: Status, reason: str, seconds: float) -> None:
        rest = _Rest(bus.replica.name, engine, status, reason[:MAX_REASON], seconds)
        bus.topics.publish(TOPIC, msgspec.msgpack.encode(rest))

    def receive(data: bytes) -> None:
        rest = _decode(data)
        if rest.replica != bus.replica.name and rest.engine in health:
            health[rest.engine].adopt_rest(rest.status, rest.reason, rest.seconds)

    for name, engine in health.items():
        engine.on_suspend = partial(publish, name)
    bus.topics.subscribe(TOPIC, receive, lambda: None)
