"""How often strangers may do what leaves something behind. Counts in memory. Knows nothing of what."""

import ipaddress
from collections.abc import Callable

from toolgate.server.minute import SPAN, Minute

MINUTE = float(SPAN)


class Rates:
    """At most `each` in any minute for one key, and `all` for all keys together."""

    def __init__(self, each: int, all: int, now: Callable[[], float]) -> None:
        self._each = each
        self._all = all
        self._now = now
        self._total = Minute()
        self._of: dict[str, Minute] = {}  # of this minute and the last: never more than twice `all`

    def take(self, key: str) -> bool:
        """Count one. False: it is one too many, and not counted."""
        now = self._now()
        if self._total.wait(now, self._all):
            return False
        minute = self._of.get(key) or Minute()
        if minute.wait(now, self._each):
            return False
        if len(self._of) >= 2 * self._all:
            self._of = {key: held for key, held in self._of.items() if not held.is_over(now)}
        self._of[key] = minute
        minute.add(now)
        self._total.add(now)
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
