"""Read an Accept header: in which of the two forms a POST may be answered.

Source: RFC 9110 section 12.5.1. The most specific range that matches decides; `q=0` excludes; a malformed range is
passed over. Parameters of a range besides q have no effect: each form has one representation.
"""

import re
from enum import Flag
from functools import lru_cache


class ReplyForms(Flag):
    """What an answer may be: one JSON body, a stream of events, either, or neither."""

    NEITHER = 0
    JSON = 1
    STREAM = 2
    EITHER = 3


KINDS = {
    ReplyForms.JSON: ("application/json", "application/*", "*/*"),
    ReplyForms.STREAM: ("text/event-stream", "text/*", "*/*"),
}
QUALITY = re.compile(r"[01](\.[0-9]{0,20})?")
MAX_CACHED = 256  # bytes: a longer header is read anew each time
MAX_READ = 4_096  # bytes: browsers send some 150, and 60 KiB of nothing but separators take 35 ms


def parse_accept(accept: bytes | None) -> ReplyForms:
    """Those that a request with this header takes; one without takes either, and one that is too long neither."""
    if not accept or accept.isspace():
        return ReplyForms.EITHER
    if len(accept) > MAX_READ:
        return ReplyForms.NEITHER
    return _parse_cached(accept) if len(accept) <= MAX_CACHED else _parse(accept)


@lru_cache(256)
def _parse_cached(accept: bytes) -> ReplyForms:
    return _parse(accept)


def _parse(accept: bytes) -> ReplyForms:
    qualities: dict[str, float] = {}
    for item in accept.decode("latin-1").lower().split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        quality = _parse_quality(parameters)
        if quality is not None:
            qualities[kind] = max(quality, qualities.get(kind, 0.0))
    taken = ReplyForms.NEITHER
    for form, ranges in KINDS.items():
        if next((qualities[kind] for kind in ranges if kind in qualities), 0.0) > 0:
            taken |= form
    return taken


def _parse_quality(parameters: list[str]) -> float | None:
    """The weight of a range; None where it has one that is none."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            return float(value) if QUALITY.fullmatch(value.strip()) else None
    return 1.0
