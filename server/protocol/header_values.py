"""Encode texts for the headers that repeat a request. Source: MCP 2026-07-28 basic/transports, "Value Encoding"."""

import base64


def encode_header(value: str) -> str:
    """Return the text as a header's value: what none can hold is base64."""
    if value.isascii() and value.isprintable() and value == value.strip() and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="
