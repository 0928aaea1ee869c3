"""A connection to a host that may be reached, by an address that was vetted. Knows nothing of who asks, nor of HTTP."""

import asyncio

from toolgate.tools.web.address_policy import Allowed
from toolgate.tools.web.fetch import Resolve, Unreachable

CONNECT = 10.0  # seconds for all addresses of a host
CHUNK = 2**16

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def reached(host: str, port: int, allowed: Allowed, resolve: Resolve) -> Streams:
    """A connection to an address of `host`. Raises Refused and Unreachable."""
    from toolgate.tools.web.http import reason, usable, vetted  # start-up: httpx and httpcore

    if not usable(host):
        raise Unreachable("not a usable host name")
    addresses = await vetted(host, port, allowed, resolve)
    failure: OSError | None = None
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT / len(addresses)):
                return await asyncio.open_connection(address, port, limit=CHUNK)
        except OSError as error:  # TimeoutError is one
            failure = error
    why = "no answer in time" if isinstance(failure, TimeoutError) else reason(failure)
    raise Unreachable(f"could not connect to {host} port {port}: {why}")
