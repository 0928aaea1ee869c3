"""Check the URLs that a server names, before they are asked or opened, and find public addresses to connect to.

A server on a public address must not choose addresses inside this network.
"""

import asyncio
from urllib.parse import urlsplit

from toolgate.server.cli.mcp_client.client import McpClientError
from toolgate.server.config.types import is_loopback
from toolgate.tools.api.outbound.address_policy import AddressPolicy, check_host

MAX_URL = 2_048  # characters: a terminal and a browser take these


class HostUnknownError(McpClientError):
    """A host has no address."""


class PrivateAddressError(McpClientError):
    """A host has `address`, which is not a public one but of this `kind`."""

    def __init__(self, url: str, address: str, kind: str) -> None:
        super().__init__(f"{url} is not asked: {address} is not a public address")
        self.address = address
        self.kind = kind


def is_secure_url(value: object) -> bool:
    """Return whether it is an https URL, or http on this machine, without a password and a fragment."""
    if not isinstance(value, str) or len(value) > MAX_URL or not value.isascii() or not value.isprintable():
        return False
    try:
        parts = urlsplit(value)
        is_whole = bool(parts.hostname) and parts.port != 0 and not any(sign in value for sign in " #\\")
    except ValueError:
        return False
    is_encrypted = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    return is_whole and is_encrypted and "@" not in parts.netloc


async def resolve_host(host: str) -> list[str]:
    """Return the addresses of a host, IPv4 first. Raises HostUnknownError."""
    try:
        rows = await asyncio.get_running_loop().getaddrinfo(host, None)
    except (OSError, UnicodeError):
        raise HostUnknownError(f"{host} has no address: check the URL") from None
    return sorted({str(row[4][0]) for row in rows}, key=lambda address: (":" in address, address))


async def is_public_url(url: str) -> bool:
    """Return whether the host of the URL has public addresses only. Raises HostUnknownError."""
    if is_loopback(urlsplit(url).hostname or ""):
        return False
    try:
        await find_public_address(url)
    except PrivateAddressError:
        return False
    return True


async def find_public_address(url: str) -> str:
    """Return the address to connect to. The host is looked up once: another answer could name another address. Raises
    HostUnknownError, PrivateAddressError."""
    host = urlsplit(url).hostname or ""
    addresses = await resolve_host(host)
    if refused := check_host(host, addresses, AddressPolicy()):
        raise PrivateAddressError(url, *refused)
    return addresses[0]
