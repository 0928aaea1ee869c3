"""Ask the local server's /ready, for container engines and scripts (`toolgate health`)."""

import asyncio
import ipaddress
import json

from toolgate.server.cli.mcp_client.client import McpClientError
from toolgate.server.cli.mcp_client.http import HttpResponse, open_response, parse_url
from toolgate.server.config.load import Config

DONE, FAULT = 0, 1
TIMEOUT = 5.0  # seconds: an answer takes milliseconds, and engines give up after a few seconds anyway
MAX_BODY = 4096  # bytes; normally a few dozen


async def health(config: Config, *, url: str | None) -> int:
    """Ask the server at `url`, or the local server, and print its status; 0 if it is ready."""
    status = await _ask_server(config, url)
    print(status)
    return DONE if status == "ready" else FAULT


async def _ask_server(config: Config, url: str | None) -> str:
    """Return the status of the server at `url` or, if it is None, of the local one."""
    url = f"{parse_url(url or _local_url(config)).geturl().rstrip('/')}/ready"
    try:
        async with asyncio.timeout(TIMEOUT), open_response("GET", url, {}, b"") as response:
            status = await _read_status(response) or f"{url}: no Toolgate answers"
            if status == "ready" and response.status != 200:
                status = f"{url} answers {response.status}"
    except TimeoutError:
        status = f"{url}: no answer in {TIMEOUT:g} s"
    except McpClientError as error:
        status = str(error)
    return status


async def _read_status(response: HttpResponse) -> str:
    """Return "ready", or another status."""
    body = b""
    async for part in response.body:
        body += part
        if len(body) > MAX_BODY:
            break
    try:
        status = json.loads(body)["status"]
    except (ValueError, TypeError, LookupError, RecursionError):
        status = None
    return status if isinstance(status, str) and status.isascii() and status.isprintable() else ""


def _local_url(config: Config) -> str:
    """Return the URL of a server with these options, as seen from this machine."""
    host = config.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{config.port}"
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://{f'[{address}]' if address.version == 6 else address}:{config.port}"
