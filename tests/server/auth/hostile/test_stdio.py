"""Over stdio the caller is the user who started the server."""

from collections.abc import Callable

from tests.clients.raw_client import Server


def test_pr_16_stdio_asks_for_no_token_and_has_neither_keys_nor_a_pairing_code(start: Callable[..., Server]) -> None:
    server = start("-v")
    tools = server.request("tools/list", {})["tools"]
    assert tools
    assert all("securitySchemes" not in tool for tool in tools)
    assert "pairing code" not in server.log()
    assert not list(server.state.rglob("signing*"))
