"""Make the payload of a test event, which fits the schema of its type and says that nothing has happened."""

from collections.abc import Mapping
from typing import Any

from toolgate.server.features.events.log.errors import EventError
from toolgate.tools.api.event import EventType

TEXT = "This is a test event: nothing has happened."
MARK = "is_test"  # a member that the payload of a test has besides, if its schema allows that
FORMATS = {  # of strings that a client may parse
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "uri": "https://example.com/test",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
MAX_DEPTH = 8  # schemas within schemas
MAX_ITEMS = 16  # of an array that must have some

Schema = Mapping[str, Any]


def make_sample(type: EventType, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a payload for subscribers with these arguments. Raises EventError if none fits the type's schema."""
    sample = {**_make_object(type.payload, type.payload, MAX_DEPTH), **arguments}
    if type.payload.get("additionalProperties", True) is not False:
        sample.setdefault(MARK, True)
    if type.check_payload(sample) is not None:
        raise EventError("Unsupported", f"no test event fits the payload of {type.name}", feature="test")
    return sample


def _make(schema: Any, root: Schema, depth: int) -> Any:
    """Return a value, or None where the schema is beyond this: a check of the whole follows."""
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    if "const" in schema:
        return schema["const"]
    for choices in (schema.get("examples"), schema.get("enum")):
        if choices:
            return choices[0]
    if "$ref" in schema:
        return _make(root.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2]), root, depth - 1)
    variants = [each for each in schema.get("anyOf") or schema.get("oneOf") or () if each != {"type": "null"}]
    if variants:
        return _make(variants[0], root, depth - 1)
    kinds = schema.get("type")
    kind = next((each for each in kinds if each != "null"), None) if isinstance(kinds, list) else kinds
    match kind:
        case "object":
            return _make_object(schema, root, depth)
        case "array":
            count = min(schema.get("minItems", 0), MAX_ITEMS)
            return [_make(schema.get("items"), root, depth - 1) for _ in range(count)]
        case "string":
            return _make_text(schema)
        case "integer" | "number":
            return _make_number(schema)
        case "boolean":
            return False
        case _:
            return None


def _make_object(schema: Schema, root: Schema, depth: int) -> dict[str, Any]:
    return {name: _make(each, root, depth - 1) for name, each in schema.get("properties", {}).items()}


def _make_text(schema: Schema) -> str:
    text = FORMATS.get(schema.get("format", ""), TEXT)
    return text[: schema.get("maxLength", len(text))].ljust(min(schema.get("minLength", 0), 10 * len(TEXT)), ".")


def _make_number(schema: Schema) -> int | float:
    least = max(schema.get("minimum", 0), schema.get("exclusiveMinimum", -1) + 1)
    most = min(schema.get("maximum", least), schema.get("exclusiveMaximum", least + 1) - 1)
    return min(least, most)  # type: ignore[no-any-return]  # a schema's numbers
