"""Limit how often strangers do what costs or leaves something, by their address and the blocks around it.

One rented machine has a /64 of IPv6 addresses, and often a /48: a count by address alone limits nothing there. So each
try counts for the address and for every block in `prefixes`. No count can use up the total: a block may
have no more than a fixed part of what is left of it, so the fuller the minute is, the less the greedy get, and a block
that has had nothing gets its turn until thousands of blocks take part.
Source: Choudhury and Hahne, Dynamic Queue Length Thresholds for Shared-Memory Packet Switches (1998).
"""

import ipaddress
from collections.abc import Callable

from toolgate.server.policy.rate_limit import SlidingWindow

V4 = (32, 24)  # an address; the smallest block that is routed alone
V6 = (64, 56, 48)  # a host or a link; what a home gets; what a company or a tunnel gets
BLOCK_FACTOR = 2  # times as many for a block as for the next narrower one: customers of one provider are neighbours
BLOCK_SHARE = 8  # the widest block may have an eighth of what is left of the total


def prefixes(address: str) -> tuple[str, ...]:
    """The blocks that an address is in, the narrowest first; what is no address is its own only one."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return (address,)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return tuple(str(ipaddress.IPv6Network((int(parsed), width), strict=False)) for width in V6)
    plain = parsed if isinstance(parsed, ipaddress.IPv4Address) else parsed.ipv4_mapped
    return tuple(str(ipaddress.IPv4Network((int(plain or 0), width), strict=False)) for width in V4)


class AddressLimiter:
    """At most `each` in any minute for one address (IPv6: one /64), twice that for each wider block, and `all` for
    everybody; of those the widest block gets no more than a `BLOCK_SHARE`-th of what is left."""

    def __init__(self, each: int, all: int, now: Callable[[], float]) -> None:
        self._each = each
        self._all = all
        self._now = now
        self._total = SlidingWindow()
        self._of: dict[str, SlidingWindow] = {}  # of this minute and the last: a few for each of `all`

    def take(self, address: str) -> bool:
        """Count one. False: it is one too many, and not counted."""
        now, blocks = self._now(), prefixes(address)
        if self._total.wait(now, self._all):
            return False
        fair = max(1, (self._all - self._total.count) // BLOCK_SHARE)
        minutes = [self._of.get(block) or SlidingWindow() for block in blocks]
        limits = [self._each * BLOCK_FACTOR**step for step in range(len(blocks))]
        limits[-1] = min(limits[-1], fair)
        if any(minute.wait(now, limit) for minute, limit in zip(minutes, limits, strict=True)):
            return False
        self._forget(now)
        for block, minute in zip(blocks, minutes, strict=True):
            self._of[block] = minute
            minute.add(now)
        self._total.add(now)
        return True

    def _forget(self, now: float) -> None:
        """Drop the blocks of minutes ago, before there are more than two minutes of them."""
        if len(self._of) >= 2 * len(V6) * self._all:
            self._of = {block: minute for block, minute in self._of.items() if not minute.is_over(now)}
