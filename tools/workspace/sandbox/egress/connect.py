"""Open a connection to a vetted address of a host."""

import asyncio

from toolgate.tools.api.errors import drop_tracebacks
from toolgate.tools.api.outbound.address_policy import AddressPolicy
from toolgate.tools.api.outbound.dns import is_usable_host, resolve_vetted
from toolgate.tools.api.outbound.errors import PageUnreachableError, Resolve

CONNECT = 10.0  # seconds for all addresses of a host
CHUNK = 2**16

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def open_connection(host: str, port: int, allowed: AddressPolicy, resolve: Resolve) -> Streams:
    """Return a connection to an address of `host`. Raises AddressRefusedError and PageUnreachableError."""
    from toolgate.tools.api.outbound.vetted_client import describe_error  # start-up: httpx and httpcore

    if not is_usable_host(host):
        raise PageUnreachableError("not a usable host name")
    addresses = await resolve_vetted(host, port, allowed, resolve)
    failure: OSError | None = None
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT / len(addresses)):
                return await asyncio.open_connection(address, port, limit=CHUNK)
        except OSError as error:  # TimeoutError is one
            drop_tracebacks(error)  # they hold this frame
            failure = error
    why = "no answer in time" if isinstance(failure, TimeoutError) else describe_error(failure)
    raise PageUnreachableError(f"could not connect to {host} port {port}: {why}")
