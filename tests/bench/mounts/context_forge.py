"""Set up ContextForge with the server that is mounted, by its API."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.clients.raw_client import eventually

PATIENCE = 60.0  # seconds until the tools of a registered server are listed


def write_environment(folder: Path) -> dict[str, str]:
    """Return the variables of a gateway for one person on this machine: it asks nobody to sign in, and logs little."""
    folder.mkdir(exist_ok=True)
    return {
        "DATABASE_URL": f"sqlite:///{folder}/mcp.db",
        "AUTH_REQUIRED": "false",
        "ALLOW_UNAUTHENTICATED_ADMIN": "true",
        "MCP_REQUIRE_AUTH": "false",
        "JWT_SECRET_KEY": "a-key-for-one-run-of-the-benchmark-only",
        "AUTH_ENCRYPTION_SECRET": "another-key-for-one-run-of-the-benchmark",
        "SSRF_ALLOW_LOCALHOST": "true",
        "MCPGATEWAY_UI_ENABLED": "false",
        "MCPGATEWAY_ADMIN_API_ENABLED": "false",
        "CACHE_TYPE": "memory",
        "USE_STATEFUL_SESSIONS": "true",
        "RATE_LIMITING_ENABLED": "false",
        "TOOL_RATE_LIMIT": "1000000",
        "LOG_LEVEL": "ERROR",
    }


def register(port: int, servers: Mapping[str, str]) -> list[str]:
    """Register servers (name → URL), and return the names of their tools. Raises RuntimeError for a refusal."""
    for name, url in servers.items():
        _ask(port, "/gateways", {"name": name, "url": url, "transport": "STREAMABLEHTTP", "visibility": "public"})
    tools: list[str] = []

    def are_listed() -> bool:
        tools[:] = [tool["name"] for tool in _ask(port, "/tools")]
        return len(tools) >= len(servers)

    if not eventually(are_listed, PATIENCE):
        raise RuntimeError(f"ContextForge lists {tools}")
    return tools


def protect(port: int, issuer: str) -> str:
    """Serve all tools at one URL that takes the tokens of an issuer, and return its path."""
    config = {"authorization_servers": [issuer]}
    tools = [tool["id"] for tool in _ask(port, "/tools")]
    server = {"name": "protected", "associated_tools": tools, "oauth_enabled": True, "oauth_config": config}
    made = _ask(port, "/servers", {"server": server, "visibility": "public"})
    return f"/servers/{made['id']}/mcp"


def _ask(port: int, path: str, body: Mapping[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"ContextForge refused {path}: {error.read().decode()[:500]}") from None
