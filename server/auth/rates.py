"""How often strangers may do what leaves something behind. Counts in memory, by the minute. Knows nothing of what."""

import ipaddress
from collections import Counter
from collections.abc import Callable

MINUTE = 60.0


class Rates:
    """At most `each` a minute for one key, and `all` for all keys together."""

    def __init__(self, each: int, all: int, now: Callable[[], float]) -> None:
        self._each = each
        self._all = all
        self._now = now
        self._minute = 0
        self._counts: Counter[str] = Counter()  # of this minute; never more keys than `all`
        self._total = 0

    def take(self, key: str) -> bool:
        """Count one. False: it is one too many, and not counted."""
        minute = int(self._now() // MINUTE)
        if minute != self._minute:
            self._minute, self._total = minute, 0
            self._counts.clear()
        if self._total >= self._all or self._counts[key] >= self._each:
            return False
        self._counts[key] += 1
        self._total += 1
        return True


def household(address: str) -> str:
    """What one caller has all of: an IPv4 address, or the 64 bits in front of an IPv6 one."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((int(parsed), 64), strict=False))
