"""Each `requestState` goes on with its call once, at whichever server, and any other try counts against the limit."""

import json
from pathlib import Path
from typing import Any

from tests.clients.raw_client import STATELESS, eventually
from tests.clients.raw_http_client import Site
from tests.server.auth.minted_tokens import ENVELOPE, request
from tests.server.features.mounts.mounted import CAPABILITIES, far_site, url_mount, write_config
from tests.server.features.mounts.test_replicas import respond, text
from tests.servers.postgres import Postgres
from tests.servers.replicas import running_replicas
from tests.servers.reserved_port import reserved_port

META = {**ENVELOPE, "io.modelcontextprotocol/clientCapabilities": CAPABILITIES}
ONCE = "limits = { calls = 1 }"


def call(at: Site, tool: str = "far__ask", **again: Any) -> Any:
    """Return the result of one try of a call whose mounted server asks."""
    sent = request("tools/call", {"name": tool, "arguments": {}, "_meta": META, **again})
    headers = {"mcp_protocol_version": STATELESS, "mcp_method": "tools/call", "mcp_name": tool}
    _, raw, said = at.ask("POST", "/mcp", sent, **headers)
    answered = said or json.loads(raw.decode().rpartition("data: ")[2])
    return answered.get("result") or {"content": [{"text": str(answered["error"])}]}


def is_question(result: Any) -> bool:
    return bool(result.get("resultType") == "input_required")


def wait_served(at: Site, tool: str = "far__ask") -> Any:
    """Return the first try of a call that is not refused."""
    tries: list[Any] = []

    def is_asked() -> bool:
        tries.append(call(at, tool))
        return is_question(tries[-1])

    assert eventually(is_asked), (tries[-1], at.log())
    return tries[-1]


def is_limited(result: Any) -> bool:
    return text(result).startswith("LIMITED: ")


def test_a_state_goes_on_once_at_all_servers(tmp_path: Path, postgres: Postgres) -> None:
    with far_site(tmp_path, "modern") as far:
        config = write_config(tmp_path, url_mount(far.url, "far", ONCE), url_mount(far.url, "away", ONCE))
        with running_replicas(tmp_path, postgres, *config) as replicas:
            first, second = replicas.sites
            again = respond(wait_served(first))
            assert "Ada" in text(call(second, **again)) and is_limited(call(first))
            wait_served(second)  # so the other try was not counted
            assert is_limited(call(second, **again)) and is_limited(call(first, **again))
            again = respond(wait_served(first, "away__ask"))
            replicas.redis.kill()
            assert is_limited(call(first, "away__ask", **again))


def test_a_state_goes_on_once_whatever_changes_at_its_server(tmp_path: Path) -> None:
    with far_site(tmp_path, "modern") as far, reserved_port() as port:
        options = ("--port", str(port), *write_config(tmp_path, url_mount(far.url, "far", ONCE)))
        folder = tmp_path / "server"
        folder.mkdir()
        at = Site(folder, *options)
        try:
            used = respond(wait_served(at))
            assert "Ada" in text(call(at, **used)) and is_limited(call(at))
            write_config(tmp_path, url_mount(far.url, "far", ONCE, 'timeout = "30s"'))
            unused = respond(wait_served(at))  # it counts from the start again
            assert is_limited(call(at, **used))
            at.kill()
            at = Site(folder, *options)
            wait_served(at)
            assert is_limited(call(at, **used)) and is_limited(call(at, **unused))
        finally:
            at.kill()
