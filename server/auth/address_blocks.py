"""Limit how often strangers cause work or stored rows, by their address and the blocks around it.

One rented machine has a /64 of IPv6 addresses, and often a /48: a count by address alone limits nothing there. So each
try counts for the address and for every block in `prefixes`. A block may use only a fixed part of what is left of the
total. So no block can use it all up, and thousands of other blocks still get their turn. Source: Choudhury and Hahne,
Dynamic Queue Length Thresholds for Shared-Memory Packet Switches (1998).
"""

import ipaddress

from toolgate.server.base.bus.bus import Counters, KeyLimit
from toolgate.server.base.limits.rate_limit import SPAN

V4 = (32, 24)  # an address; the smallest block routed alone
V6 = (64, 56, 48)  # a host or link; a home's block; a company's or tunnel's block
BLOCK_FACTOR = 2  # limit of a block, compared with the next narrower one: customers of one provider are neighbours
MAX_BLOCK = 64  # characters of a block in a key: a malformed address may be longer
BLOCK_SHARE = 8  # the widest block may use an eighth of what is left of the total


def prefixes(address: str) -> tuple[str, ...]:
    """Return the blocks that contain an address, the narrowest first; a malformed address is its own only block."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return (address,)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return tuple(str(ipaddress.IPv6Network((int(parsed), width), strict=False)) for width in V6)
    plain = parsed if isinstance(parsed, ipaddress.IPv4Address) else parsed.ipv4_mapped
    return tuple(str(ipaddress.IPv4Network((int(plain or 0), width), strict=False)) for width in V4)


def block_limits(each: int, all: int, total: int, count: int) -> list[int]:
    """Return the limits of so many blocks, the narrowest first, when `total` tries of `all` are used."""
    limits = [each * BLOCK_FACTOR**step for step in range(count)]
    limits[-1] = min(limits[-1], max(1, (all - total) // BLOCK_SHARE))
    return limits


class AddressLimiter:
    """Allow at most `each` a minute for one address (IPv6: one /64), twice that for each wider block, and `all` in
    total. Of what is left of the total, the widest block gets one part in `BLOCK_SHARE`. A minute begins with its first
    try. `name` tells the limits from others at the same `counters`."""

    def __init__(self, name: str, each: int, all: int, counters: Counters) -> None:
        self._name = name
        self._each = each
        self._all = all
        self._counters = counters

    async def take(self, address: str) -> bool:
        """Count one try, and return whether it is allowed. A refused one is not counted."""
        whole, blocks = f"{self._name} all", prefixes(address)
        total = int(await self._counters.get(whole) or 0)
        limits = block_limits(self._each, self._all, total, len(blocks))
        names = [f"{self._name} {block[:MAX_BLOCK]}" for block in blocks]
        of_blocks = [KeyLimit(name, limit, SPAN) for name, limit in zip(names, limits, strict=True)]
        return await self._counters.count([KeyLimit(whole, self._all, SPAN), *of_blocks]) == 0
