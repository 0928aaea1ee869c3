"""Resources for the conformance suite: text, binary, a template, a watched one."""

import base64

from toolgate.tools import resource

PIXEL = base64.b64decode(  # a red PNG of one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC"
)


@resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """A picture."""
    return PIXEL


@resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> dict[str, object]:
    """The data of an id, whichever it is."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


@resource("test://watched-resource", mime_type="text/plain")
def watched() -> str:
    """A text to subscribe to."""
    return "This is the content of the watched resource."
