"""Say what a client can be asked, and what a valid answer looks like.

Source: MCP 2026-07-28 client/elicitation, client/sampling and client/roots.
"""

from collections.abc import Callable, Mapping
from typing import Any

from toolgate.server.protocol.session import Call
from toolgate.tools.api.errors import UnansweredError

ELICIT = "elicitation/create"
LINKS = "elicitation.url"  # the capability, for `can`
UNREACHABLE = "this client takes no text/event-stream for this call and has no stream open"
CAPABILITY = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
SHAPES: dict[str, Callable[[dict[str, Any]], bool]] = {  # what a valid answer looks like
    "elicitation/create": lambda answer: (
        answer.get("action") in ("accept", "decline", "cancel")
        and isinstance(answer.get("content", {}), (dict, type(None)))
    ),
    "sampling/createMessage": lambda answer: "role" in answer and "content" in answer,
    "roots/list": lambda answer: isinstance(answer.get("roots"), list),
}


def can_show_forms(call: Call) -> bool:
    """Return whether the client can show a form to a person."""
    declared = call.session.capabilities.get("elicitation")
    # {} means forms; a client that declares modes must name them (client/elicitation, "Capabilities")
    has_forms = isinstance(declared, dict) and ("form" in declared or "url" not in declared)
    return has_forms and call.revision.elicitation and call.can_ask


def can_open_links(call: Call) -> bool:
    """Return whether the client can have a person open a link."""
    declared = call.session.capabilities.get("elicitation")
    return isinstance(declared, dict) and "url" in declared and call.revision.url_elicitation and call.can_ask


def is_link(request: Mapping[str, Any]) -> bool:
    """Return whether a question has a person open a link."""
    return request["method"] == ELICIT and (request.get("params") or {}).get("mode") == "url"


def check_shape(method: str, answer: Any) -> Any:
    """Return the answer if it has a valid shape. Raises UnansweredError."""
    if not isinstance(answer, dict) or not SHAPES[method](answer):
        raise UnansweredError("the client's answer has no shape known here", {CAPABILITY[method]: {}})
    return answer
