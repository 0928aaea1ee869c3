"""Choose which subscription delivers next, so that no principal, no host and no failing receiver delays the others.

Principals take turns, then the hosts of each, then the subscriptions of a host. A receiver is one principal at one
host. It is failing if its last attempt got no answer: each may take ten seconds. So failing receivers share half of the
slots, and each has one at most. A quarter of the slots is for receivers that answered last. So it is in all, within a
principal and within a host.

A line whose host is full is parked: else each turn would look at all the principals that wait for a popular host.
"""

import enum
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator

import msgspec

from toolgate.server.features.events.webhooks.outbox import PendingSubscription

MAX_REMEMBERED = 10_000  # receivers whose health is remembered

Receiver = tuple[str, str]  # a principal and a host


class Health(enum.Enum):
    """How a receiver behaved last; the best first."""

    ANSWERING = "answering"
    UNKNOWN = "unknown"
    FAILING = "failing"


BETTER_FIRST = tuple(Health)
SHARES = {Health.ANSWERING: 1.0, Health.UNKNOWN: 0.75, Health.FAILING: 0.5}  # of a limit, with what is worse
# Which receivers come first at each turn, so that a constant load of some does not starve the others
ORDER = (Health.ANSWERING, Health.UNKNOWN, Health.ANSWERING, Health.FAILING)


class TurnLimits(msgspec.Struct, frozen=True):
    """How many deliveries run at once: in all, for a principal, for a host, and for a principal at a host."""

    all: int = 64
    principal: int = 16
    host: int = 16
    receiver: int = 4


class Turn(msgspec.Struct, frozen=True):
    """The slot of one delivery. `health` is what was known when it began."""

    pending: PendingSubscription
    health: Health


class ReceiverLine(msgspec.Struct, eq=False):
    """The subscriptions of a receiver that wait for a turn, by id, the first to wait first."""

    principal: str
    host: str
    health: Health
    waiting: dict[str, PendingSubscription] = msgspec.field(default_factory=dict)
    is_parked: bool = False


class Turns:
    """Subscriptions that wait for a turn, and the turns under way. Knows no time and starts nothing."""

    def __init__(self, limits: TurnLimits) -> None:
        self._limits = limits
        self._health: OrderedDict[Receiver, Health] = OrderedDict()  # the latest last
        self._lines: dict[Receiver, ReceiverLine] = {}
        # health → principal → host, and health → host → principal: who is next first
        self._ready: dict[Health, OrderedDict[str, OrderedDict[str, ReceiverLine]]] = {}
        self._parked: dict[Health, OrderedDict[str, OrderedDict[str, ReceiverLine]]] = {}
        for health in Health:
            self._ready[health], self._parked[health] = OrderedDict(), OrderedDict()
        self._reopened: set[str] = set()  # hosts that were full and may have parked lines
        self._running: Counter[Hashable] = Counter()
        self._begun = self._unparked = 0

    @property
    def running(self) -> int:
        return self._running["all"]

    def add(self, pending: PendingSubscription) -> None:
        """Let a subscription wait for its turn, behind the others of its receiver."""
        receiver = pending.principal, pending.host
        line = self._lines.get(receiver)
        if line is None:
            line = self._lines[receiver] = ReceiverLine(*receiver, self._health.get(receiver, Health.UNKNOWN))
            line.is_parked = line.host in self._parked[line.health]
            self._insert(line)
        line.waiting[pending.subscription] = pending

    def discard(self, pending: PendingSubscription) -> None:
        """Remove a subscription, if it waits."""
        line = self._lines.get((pending.principal, pending.host))
        if line is not None and line.waiting.pop(pending.subscription, None) is not None and not line.waiting:
            self._drop(line)

    def begin(self) -> Turn | None:
        """Return the next turn, or None if no waiting subscription may begin one now."""
        while self.running < self._limits.all:
            line = self._next_line()
            if line is not None:
                return self._begin(line)
            if not any(self._unpark(host) for host in tuple(self._reopened)):
                break
        return None

    def end(self, turn: Turn) -> None:
        """Free the slot of a turn."""
        principal, host = turn.pending.principal, turn.pending.host
        for slot in _slots(turn.health, principal, host):
            self._running[slot] -= 1
            if not self._running[slot]:
                del self._running[slot]
        self._reopened.add(host)
        self._unpark(host)

    def set_health(self, pending: PendingSubscription, health: Health) -> None:
        """Note how the receiver of a subscription behaved last."""
        receiver = pending.principal, pending.host
        self._health[receiver] = health
        self._health.move_to_end(receiver)
        self._move(receiver, health)
        if len(self._health) > MAX_REMEMBERED:
            oldest, _ = self._health.popitem(last=False)
            self._move(oldest, Health.UNKNOWN)

    def _next_line(self) -> ReceiverLine | None:
        """Return a line that may begin a turn, and park those at full hosts."""
        full: list[ReceiverLine] = []
        line = next(self._find_lines(full), None)
        for each in full:
            self._remove(each)
            each.is_parked = True
            self._insert(each)
        return line

    def _find_lines(self, full: list[ReceiverLine]) -> Iterator[ReceiverLine]:
        """Yield the lines that may begin a turn, and add those at full hosts to `full`."""
        for health in _in_order(self._begun):
            if self._is_full("all", self._limits.all, health):
                continue
            for principal, hosts in self._ready[health].items():
                if self._is_full(("principal", principal), self._limits.principal, health):
                    continue
                for host, line in hosts.items():
                    if self._is_full(("host", host), self._limits.host, health):
                        full.append(line)
                    elif self._running["receiver", principal, host] < self._most_of_receiver(health):
                        yield line

    def _is_full(self, scope: Hashable, limit: int, health: Health) -> bool:
        """Return whether a share that this health counts in is used up: its own, or that of a better one."""
        running, has_begun = 0, False
        for kind in reversed(BETTER_FIRST):
            running += self._running[scope, kind]
            has_begun = has_begun or kind is health
            if has_begun and running >= max(1, int(limit * SHARES[kind])):
                return True
        return False

    def _most_of_receiver(self, health: Health) -> int:
        return 1 if health is Health.FAILING else self._limits.receiver

    def _begin(self, line: ReceiverLine) -> Turn:
        pending = line.waiting.pop(next(iter(line.waiting)))
        ready = self._ready[line.health]
        ready.move_to_end(line.principal)
        ready[line.principal].move_to_end(line.host)
        if not line.waiting:
            self._drop(line)
        self._running.update(_slots(line.health, line.principal, line.host))
        self._begun += 1
        return Turn(pending, line.health)

    def _unpark(self, host: str) -> bool:
        """Make a parked line of a host ready, and return whether there was one that may have a turn."""
        parked = [health for health in _in_order(self._unparked) if host in self._parked[health]]
        parked = [health for health in parked if not self._is_full(("host", host), self._limits.host, health)]
        if not parked:
            self._reopened.discard(host)
            return False
        health = next((health for health in parked if not self._is_full("all", self._limits.all, health)), None)
        if health is None:
            return False
        line = next(iter(self._parked[health][host].values()))
        self._remove(line)
        line.is_parked = False
        self._insert(line)
        self._unparked += 1
        return True

    def _move(self, receiver: Receiver, health: Health) -> None:
        line = self._lines.get(receiver)
        if line is not None and line.health is not health:
            self._remove(line)
            line.health = health
            self._insert(line)

    def _drop(self, line: ReceiverLine) -> None:
        self._remove(line)
        del self._lines[line.principal, line.host]

    def _insert(self, line: ReceiverLine) -> None:
        if line.is_parked:
            self._parked[line.health].setdefault(line.host, OrderedDict())[line.principal] = line
            self._reopened.add(line.host)
        else:
            self._ready[line.health].setdefault(line.principal, OrderedDict())[line.host] = line

    def _remove(self, line: ReceiverLine) -> None:
        lines, outer, inner = self._ready[line.health], line.principal, line.host
        if line.is_parked:
            lines, outer, inner = self._parked[line.health], line.host, line.principal
        del lines[outer][inner]
        if not lines[outer]:
            del lines[outer]


def _in_order(turn: int) -> tuple[Health, ...]:
    first = ORDER[turn % len(ORDER)]
    return first, *(health for health in BETTER_FIRST if health is not first)


def _slots(health: Health, principal: str, host: str) -> list[Hashable]:
    """Return the keys under which a turn is counted."""
    scopes = "all", ("principal", principal), ("host", host)
    return ["all", ("receiver", principal, host), *((scope, health) for scope in scopes)]
