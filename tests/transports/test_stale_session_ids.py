"""An `initialize` over Streamable HTTP that names a session: one that is not its client's opens another."""

from pathlib import Path

import pytest

from tests.clients.raw_http_client import Site, site
from tests.server.auth.minted_tokens import HELLO, request, session, signed_site

INITIALIZE = request("initialize", HELLO)
STALE = ["deadbeef", "", "undefined", "null", "x" * 5_000, "a b", "é"]


def initialize(site: Site, id: str, **headers: str) -> str:
    """Initialize under a session's id, and return the id of the session that opens."""
    response, _, answer = site.ask("POST", "/mcp", INITIALIZE, mcp_session_id=id, **headers)
    assert (response.status, answer["result"]["protocolVersion"]) == (200, "2025-11-25")
    opened = response.getheader("mcp-session-id")
    assert opened is not None
    assert opened != id
    return opened


@pytest.mark.parametrize("id", STALE)
def test_initialize_with_an_unknown_id_opens_a_session(shared: Site, id: str) -> None:
    opened = initialize(shared, id)
    assert shared.ask("POST", "/mcp", request("ping"), mcp_session_id=opened)[0].status == 200


def test_initialize_with_the_id_of_an_ended_session_opens_another(shared: Site) -> None:
    first = initialize(shared, "none")
    assert shared.ask("DELETE", "/mcp", mcp_session_id=first)[0].status == 204
    second = initialize(shared, first)
    assert shared.ask("POST", "/mcp", request("ping"), mcp_session_id=first)[0].status == 404
    assert shared.ask("POST", "/mcp", request("ping"), mcp_session_id=second)[0].status == 200


@pytest.mark.parametrize("id", STALE)
def test_other_methods_with_an_unknown_id_get_404(shared: Site, id: str) -> None:
    for message in (request("ping"), request("tools/list"), {"jsonrpc": "2.0", "method": "notifications/initialized"}):
        assert shared.ask("POST", "/mcp", message, mcp_session_id=id)[0].status == 404
    assert shared.ask("DELETE", "/mcp", mcp_session_id=id)[0].status == 404
    assert shared.ask("GET", "/mcp", mcp_session_id=id, accept="text/event-stream")[0].status == 404


def test_a_refused_initialize_with_an_unknown_id_opens_no_session(shared: Site) -> None:
    response, _, answer = shared.ask("POST", "/mcp", request("initialize"), mcp_session_id="deadbeef")
    assert answer["error"]["code"] == -32602
    opened = response.getheader("mcp-session-id")
    assert opened is None or shared.ask("POST", "/mcp", request("ping"), mcp_session_id=opened)[0].status == 404


def test_initialize_with_the_id_of_an_own_open_session_is_refused_and_the_session_goes_on(shared: Site) -> None:
    own = initialize(shared, "none")
    response, _, answer = shared.ask("POST", "/mcp", INITIALIZE, mcp_session_id=own)
    assert answer["error"]["code"] == -32600
    assert response.getheader("mcp-session-id") is None
    assert shared.ask("POST", "/mcp", request("ping"), mcp_session_id=own)[0].status == 200


def test_initialize_with_the_id_of_another_persons_session_opens_a_separate_one(tmp_path: Path) -> None:
    with signed_site(tmp_path) as signed:
        ada, bob = signed.token("ada", "one"), signed.token("bob", "one")
        of_ada = session(signed, ada)
        of_bob = initialize(signed.site, of_ada, authorization=f"Bearer {bob}")
        unknown = initialize(signed.site, "deadbeef", authorization=f"Bearer {bob}")
        assert len({of_ada, of_bob, unknown}) == 3
        ping = {"authorization": f"Bearer {bob}"}
        assert signed.site.ask("POST", "/mcp", request("ping"), mcp_session_id=of_ada, **ping)[0].status == 404
        assert signed.site.ask("POST", "/mcp", request("ping"), mcp_session_id=of_bob, **ping)[0].status == 200


def test_initialize_with_the_id_of_a_session_before_a_restart_is_refused_while_it_can_go_on(tmp_path: Path) -> None:
    with site(tmp_path) as first:
        own = initialize(first, "none")
    with site(tmp_path) as second:
        assert second.ask("POST", "/mcp", INITIALIZE, mcp_session_id=own)[2]["error"]["code"] == -32600
        assert second.ask("POST", "/mcp", request("ping"), mcp_session_id=own)[0].status == 200
        assert second.ask("DELETE", "/mcp", mcp_session_id=own)[0].status == 204
        initialize(second, own)
