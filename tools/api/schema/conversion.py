"""Convert JSON data to the types of a signature. To JSON Schema 2.0 is an integer; to Python it is a float."""

from collections.abc import Mapping
from typing import Any

import msgspec


def convert_value(value: Any, kind: Any) -> Any:
    """Return the value as `kind`, with whole numbers as integers where nothing else fits.

    Raises msgspec.ValidationError.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        try:
            return msgspec.convert(to_integers(value), kind)
        except RecursionError:
            raise error from None


def convert_form(content: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a form with integers where its schema has integers."""
    properties = schema.get("properties", {})
    return {
        name: to_integers(value) if properties.get(name, {}).get("type") == "integer" else value
        for name, value in content.items()
    }


def to_integers(value: Any) -> Any:
    """Return the value with an integer for each whole number, such as 2 for 2.0. Raises RecursionError."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [to_integers(item) for item in value]
        case dict():
            return {name: to_integers(item) for name, item in value.items()}
        case _:
            return value
