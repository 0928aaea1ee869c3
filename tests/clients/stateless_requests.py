"""Requests of 2026-07-28 with an access token, one at a time."""

from typing import Any

from tests.clients.raw_client import STATELESS
from tests.clients.raw_http_client import NAMED, Site
from tests.clients.raw_task_client import KNOWS
from tests.server.auth.minted_tokens import ENVELOPE, request

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


def ask(server: Site, token: str, method: str, **params: Any) -> Any:
    """Return the result of one request of the stateless era, or its error."""
    meta = {**ENVELOPE, CAPABILITIES: KNOWS}
    headers = {"mcp_protocol_version": STATELESS, "mcp_method": method, "authorization": f"Bearer {token}"}
    if method in NAMED:
        headers["mcp_name"] = params[NAMED[method]]
    response, raw, said = server.ask("POST", "/mcp", request(method, {**params, "_meta": meta}), **headers)
    assert said is not None, (response.status, raw, server.log())
    return said.get("result", said.get("error"))


def call(server: Site, token: str, tool: str, arguments: dict[str, Any] | None = None, **params: Any) -> Any:
    """Return the result of a call."""
    return ask(server, token, "tools/call", name=tool, arguments=arguments or {}, **params)


def text(result: Any) -> str:
    """Return all text of a result."""
    assert "content" in result, result
    return "\n".join(part.get("text", "") for part in result["content"])
