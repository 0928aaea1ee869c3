"""Keep of a form that is too large its short fields, and of each long one the size and a digest: enough to name those
that have changed."""

import hashlib
from typing import Any

import msgspec

MAX_FIELD = 2_048  # bytes of one that is kept whole
DIGITS = 8  # of a digest
BEGIN = b'["outline",'  # no form is an array


class Outline(msgspec.Struct, frozen=True, tag="outline", array_like=True):
    """What is kept of a form: whole fields, and what stands for the long ones, by name. Instructions have none: ""."""

    short: dict[str, Any]
    long: dict[str, str]


def create_outline(data: bytes) -> bytes:
    """Return the outline of a form, which may be one already."""
    if data.startswith(BEGIN):
        return data
    value = msgspec.json.decode(data)
    fields: dict[str, Any] = value if isinstance(value, dict) else {"": value}
    encoded = {name: msgspec.json.encode(each, order="deterministic") for name, each in fields.items()}
    short = {name: fields[name] for name, each in encoded.items() if len(each) <= MAX_FIELD}
    long = {name: _describe(each) for name, each in encoded.items() if name not in short}
    return msgspec.json.encode(Outline(short, long), order="deterministic")


def read_outline(data: bytes) -> Outline | None:
    """Return the outline, or None for a whole form."""
    return msgspec.json.decode(data, type=Outline) if data.startswith(BEGIN) else None


def _describe(data: bytes) -> str:
    return f"{len(data):,} bytes ({hashlib.sha256(data).hexdigest()[:DIGITS]})"
