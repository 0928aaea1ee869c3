"""Read the parameters of the events methods, and say what is wrong with them."""

import re
from collections.abc import Container
from typing import Annotated, Any, TypeVar

import msgspec

from toolgate.server.features.events.log.errors import EventError
from toolgate.server.features.events.log.rows import EventFilter
from toolgate.server.protocol.errors import InvalidParams, format_name
from toolgate.server.protocol.messages import encode_value
from toolgate.tools.api.event import EventType
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.schema.conversion import convert_value
from toolgate.tools.api.schema.schema import measure
from toolgate.tools.api.text.cleaning import closest

MAX_ARGUMENTS = 8_192  # bytes of JSON: a path and a pattern have a few hundred
FAULT = re.compile(r"(?P<text>.*?)(?: - at `\$\.?(?P<place>.*)`)?", re.DOTALL)

Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
P = TypeVar("P", bound="FilterParams")


class FilterParams(msgspec.Struct, rename="camel"):
    """What every method but events/list takes."""

    name: str
    arguments: dict[str, Any] | None = None


class PollParams(FilterParams, rename="camel"):
    cursor: str | None = None
    max_age_ms: Milliseconds | None = None
    max_events: Annotated[int, msgspec.Meta(ge=1)] | None = None


class WebhookEndpoint(msgspec.Struct, rename="camel"):
    url: str
    mode: str = "webhook"
    secret: str | None = None


class UnsubscribeParams(FilterParams, rename="camel", kw_only=True):
    delivery: WebhookEndpoint


class SubscribeParams(UnsubscribeParams, rename="camel", kw_only=True):
    cursor: str | None = None
    max_age_ms: Milliseconds | None = None
    ttl_ms: Milliseconds | None | msgspec.UnsetType = msgspec.UNSET

    @property
    def ttl(self) -> float | None:
        """The seconds that are asked for: None leaves it to the server, inf asks for no end."""
        if self.ttl_ms is msgspec.UNSET:
            return None
        return float("inf") if self.ttl_ms is None else self.ttl_ms / 1000


def read_params(given: dict[str, Any], kind: type[P]) -> P:
    """Return the parameters as `kind`. Raises InvalidParams that names the first wrong one."""
    try:
        return convert_value(given, kind)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        fault = FAULT.fullmatch(str(error))
        assert fault is not None
        text, place = fault["text"], fault["place"]
        where = f"{place!r}: " if place else ""
        raise InvalidParams(f"{where}{text[:1].lower()}{text[1:]}"[:400]) from None


def not_before(params: "PollParams | SubscribeParams", now: float) -> float:
    """Return the time before which events are skipped, in seconds since the epoch."""
    return 0.0 if params.max_age_ms is None else now - params.max_age_ms / 1000


def find_type(registry: Registry, tools: Container[str], name: str) -> EventType:
    """Return the type of that name, unless it tells about a tool that is not among `tools`. Raises EventError."""
    served = served_types(registry, tools)
    found = served.get(name)
    if found is None:
        near = closest(name, served)
        hint = f"; did you mean {near}?" if near else ""
        raise EventError("NotFound", f"unknown event: {format_name(name)}{hint}", kind="event")
    return found


def served_types(registry: Registry, tools: Container[str]) -> dict[str, EventType]:
    """Return the types by name, without those that tell about a tool that is not among `tools`."""
    return {name: type for name, type in registry.events.items() if type.tool is None or type.tool in tools}


def make_filter(principal: str, type: EventType, arguments: dict[str, Any] | None) -> EventFilter:
    """Return the filter for these arguments, of which nulls count as left out. Raises InvalidParams."""
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    measured = measure(given, MAX_ARGUMENTS)
    if measured is None or measured[0] > MAX_ARGUMENTS:  # first: a check and an encoding of these hold the loop
        raise InvalidParams(f"'arguments' of {type.name} are larger than {MAX_ARGUMENTS} bytes")
    given = type.read_arguments(given)
    finding = type.check_arguments(given)
    if finding is not None:
        raise InvalidParams(f"'arguments' of {type.name}: {finding}")
    canonical = encode_canonical(given)
    if len(canonical) > MAX_ARGUMENTS:
        raise InvalidParams(f"'arguments' of {type.name} are larger than {MAX_ARGUMENTS} bytes")
    return EventFilter(principal, type.name, canonical.decode())


def encode_canonical(value: Any) -> bytes:
    """Return JSON that is equal for equal values: members in order, no white space."""
    return msgspec.json.encode(msgspec.json.decode(encode_value(value)), order="deterministic")
