"""Share a limited resource between principals: bytes, streams, requests.

A principal may hold `each`, all principals together `all`. When that is used up, the principal that holds most loses
its oldest offered claim. So a principal that holds little is always served.
"""

from collections.abc import Callable

import msgspec


class Claim(msgspec.Struct, eq=False):
    """The part of a budget that one request, body, answer or stream holds."""

    _budget: "Budget"
    _holder: "Holder | None"
    amount: int = 0

    def grow(self, amount: int) -> bool:
        """Add `amount`, and return False if there is no room or the claim has ended."""
        holder = self._holder
        if holder is None or not self._budget.make_room(holder, amount, self):
            return False
        self.amount += amount
        self._budget.add(holder, amount)
        return True

    def shrink(self, amount: int) -> None:
        if self._holder is not None:
            self.amount -= amount
            self._budget.add(self._holder, -amount)

    def offer(self, end: Callable[[], None]) -> None:
        """Let the budget end this claim when others need room; `end` is then called."""
        if self._holder is not None:
            self._holder.offered[self] = end

    def withdraw(self) -> None:
        if self._holder is not None:
            self._holder.offered.pop(self, None)

    def release(self) -> None:
        """Release the whole amount for good."""
        holder = self._holder
        if holder is not None:
            self._holder = None
            if holder.offered:
                holder.offered.pop(self, None)
            self._budget.leave(holder, self.amount)
            self.amount = 0


class Budget:
    """Hold the claims of all principals. With `renews`, a principal at its own limit loses its oldest offered claim
    instead of being refused.

    One claim may be larger than `each` if its principal holds nothing else: the size of a message is not limited twice.
    """

    def __init__(self, all: int, each: int, *, renews: bool = False) -> None:
        self.used = 0
        self.all = all
        self.each = each
        self._renews = renews
        self._holders: dict[str, Holder] = {}
        self._spare: Holder | None = None  # the last one without claims: its principal's next is likely to come soon
        self._waiting: set[Callable[[], None]] = set()

    def claim(self, principal: str) -> Claim:
        return Claim(self, self._hold(principal))

    def take(self, principal: str, amount: int, end: Callable[[], None] | None = None) -> Claim | None:
        """Return a claim of this size, or None if there is no room. With `end` it is offered at once."""
        holder = self._hold(principal)
        if holder.used + amount <= self.each and self.used + amount <= self.all:  # as nearly always
            claim = Claim(self, holder, amount)
            holder.used += amount
            self.used += amount
        else:
            claim = Claim(self, holder)
            if not claim.grow(amount):
                claim.release()
                return None
        if end is not None:
            claim.offer(end)
        return claim

    def enter(self, principal: str) -> "Holder | None":
        """Hold 1 until `leave(holder, 1)`, without a claim to create. Return None if there is no room."""
        holder = self._hold(principal)
        if holder.used >= self.each or self.used >= self.all:
            self.leave(holder, 0)
            return None
        holder.used += 1
        self.used += 1
        return holder

    def has_room(self, principal: str, amount: int, tell: Callable[[], None] | None = None) -> bool:
        """Return whether a principal may hold `amount` more, and end offered claims to make it so. If not, `tell` is
        called when less is held."""
        holder = self._holders.get(principal) or Holder(principal)
        if self.make_room(holder, amount):
            return True
        if tell is not None:
            self._waiting.add(tell)
        return False

    def used_by(self, principal: str) -> int:
        holder = self._holders.get(principal)
        return holder.used if holder is not None else 0

    def make_room(self, holder: "Holder", amount: int, claim: Claim | None = None) -> bool:
        """End claims other than `claim` until `holder` may hold `amount` more, and return whether it may."""
        if amount > self.all:
            return False
        while holder.used and holder.used + amount > self.each:
            if not (self._renews and _end_first(holder, claim)):
                return False
        while self.used + amount > self.all:
            if not self._end_of_largest(holder, amount, claim):
                return False
        return True

    def add(self, holder: "Holder", amount: int) -> None:
        holder.used += amount
        self.used += amount
        if amount < 0 and self._waiting:
            self._tell_waiting()

    def _hold(self, principal: str) -> "Holder":
        """Return the holder of another claim of the principal."""
        holder = self._holders.get(principal)
        if holder is None:
            holder = self._holders[principal] = Holder(principal)
        holder.claims += 1
        return holder

    def leave(self, holder: "Holder", amount: int) -> None:
        holder.claims -= 1
        if not holder.claims and holder is not self._spare:
            if self._spare is not None and not self._spare.claims:
                del self._holders[self._spare.principal]
            self._spare = holder
        holder.used -= amount
        self.used -= amount
        if amount and self._waiting:
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for tell in waiting:
            tell()

    def _end_of_largest(self, holder: "Holder", amount: int, claim: Claim | None) -> bool:
        """End a claim of the principal that holds most, or one of `holder`'s if that is the largest."""
        others = [other for other in self._holders.values() if other.offered and other is not holder]
        largest = max(others, key=lambda other: other.used, default=None)
        if largest is not None and largest.used > holder.used + amount:
            return _end_first(largest, claim)
        return self._renews and _end_first(holder, claim)


class Holder:
    """What a principal holds of a budget."""

    __slots__ = ("claims", "offered", "principal", "used")

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.used = 0
        self.claims = 0
        self.offered: dict[Claim, Callable[[], None]] = {}  # oldest offer first


def _end_first(holder: Holder, spared: Claim | None) -> bool:
    """End the oldest offered claim, and return False if there is none."""
    claim = next((claim for claim in holder.offered if claim is not spared and claim.amount), None)
    if claim is None:
        return False
    end = holder.offered[claim]
    claim.release()
    end()
    return True
