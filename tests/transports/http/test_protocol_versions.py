"""The header MCP-Protocol-Version with a revision that the server does not have: the refusal names both."""

from typing import Any

import pytest

from tests.clients.raw_client import REVISIONS, STATELESS
from tests.clients.raw_http_client import Site
from tests.server.auth.minted_tokens import HELLO, request

UNKNOWN = ["1999-01-01", "2027-06-01", "2025-11-25, 2025-11-25", "", "v1", "é", "x" * 5_000]
BATCH = [request("ping", id=1), request("ping", id=2)]
RESPONSE = {"jsonrpc": "2.0", "id": 1, "result": {}}
NOTIFICATION = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def open_session(site: Site) -> str:
    opened = site.ask("POST", "/mcp", request("initialize", HELLO))[0].getheader("mcp-session-id")
    assert opened is not None
    return opened


@pytest.mark.parametrize("version", UNKNOWN)
@pytest.mark.parametrize(
    "message",
    [
        request("tools/list", id="mine"),
        request("initialize", HELLO, id="mine"),
        request("tools/call", {"name": "echo", "_meta": {"progressToken": 1}}, id="mine"),
        request("tools/list", {"_meta": 5}, id="mine"),
        BATCH,
        RESPONSE,
        NOTIFICATION,
    ],
    ids=["list", "initialize", "call", "odd-meta", "batch", "response", "notification"],
)
def test_an_unknown_revision_in_the_header_is_named_with_the_revisions_served(
    shared: Site, version: str, message: Any
) -> None:
    expected_id = message.get("id") if isinstance(message, dict) and "method" in message else None
    for session in ({}, {"mcp_session_id": open_session(shared)}):
        response, _, answer = shared.ask("POST", "/mcp", message, mcp_protocol_version=version, **session)
        assert (response.status, answer["id"], answer["error"]["code"]) == (400, expected_id, -32022)
        assert answer["error"]["data"] == {"supported": list(reversed(REVISIONS)), "requested": version[:40]}
        assert answer["error"]["message"].startswith("MCP-Protocol-Version is ")
        assert all(revision in answer["error"]["message"] for revision in REVISIONS)


def test_an_unknown_revision_on_get_and_delete_is_400_and_names_the_header(shared: Site) -> None:
    for method in ("GET", "DELETE"):
        told = {"mcp_session_id": open_session(shared), "mcp_protocol_version": "1999-01-01"}
        response, text, _ = shared.ask(method, "/mcp", accept="text/event-stream", **told)
        assert (response.status, b"MCP-Protocol-Version" in text) == (400, True)


def test_a_request_without_metadata_is_still_told_of_it_under_the_header_of_its_revision(shared: Site) -> None:
    told = {"mcp_protocol_version": STATELESS, "mcp_method": "tools/list"}
    response, _, answer = shared.ask("POST", "/mcp", request("tools/list"), **told)
    assert (response.status, answer["error"]["code"]) == (400, -32602)
    assert "_meta" in answer["error"]["message"]
