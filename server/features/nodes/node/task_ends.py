"""Send the ends of background tasks to gateways until one has reported each."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import msgspec

from toolgate.server.features.nodes.messages import TaskEnded
from toolgate.server.features.nodes.node.people import MAX_PRINCIPALS, GatewayPeople
from toolgate.tools.workspace.output.run_record import TaskEnd

MAX_ENDS = 1_000  # of a principal: a spool has no more ended runs that are not reported
MAX_UNDER_WAY = 1_000  # that one gateway has and has not reported: the others are sent as it reports these


class EndReceiver(Protocol):
    """A gateway, as far as ends are sent to it."""

    people: GatewayPeople

    @property
    def is_attached(self) -> bool: ...

    def send(self, message: Any) -> None: ...


class PendingEnd(msgspec.Struct, eq=False):
    """An end that no gateway has reported yet. `receivers`: those that it was sent to, the last one last."""

    message: TaskEnded
    confirm: Callable[[], None]
    receivers: list[EndReceiver] = msgspec.field(default_factory=list)

    @property
    def is_under_way(self) -> bool:
        return bool(self.receivers) and self.receivers[-1].is_attached


class TaskEnds:
    """The ends that no gateway has reported yet, of each principal the newest. The spool has them, too: after a restart
    the node sends them again. `list_gateways()` returns the gateways.

    An end goes to the gateway of the principal's last call. If that is away, it goes to one that serves the principal,
    or else to one with the same database.
    """

    def __init__(self) -> None:
        self.list_gateways: Callable[[], Collection[EndReceiver]] = tuple
        self._pending: dict[str, dict[int, PendingEnd]] = {}  # by principal and sequence
        self._by_sequence: dict[int, PendingEnd] = {}
        self._callers: dict[str, EndReceiver] = {}  # the gateway of each principal's last call
        self._under_way: Counter[EndReceiver] = Counter()
        self._sequence = 0

    def add(self, principal: str, end: TaskEnd) -> None:
        """Keep an end until a gateway has reported it."""
        self._sequence += 1
        pending = PendingEnd(TaskEnded(self._sequence, principal, end.run), end.confirm)
        own = self._pending.setdefault(principal, {})
        own[self._sequence] = self._by_sequence[self._sequence] = pending
        if len(own) > MAX_ENDS:
            self._remove(next(iter(own.values())))
        while len(self._pending) > MAX_PRINCIPALS:
            for oldest in list(next(iter(self._pending.values())).values()):
                self._remove(oldest)
        self._send(principal, [pending])

    def note_call(self, principal: str, gateway: EndReceiver) -> None:
        """Note that the principal calls through a gateway, which then gets what is pending."""
        self._callers.pop(principal, None)
        self._callers[principal] = gateway
        if len(self._callers) > MAX_PRINCIPALS:
            del self._callers[next(iter(self._callers))]
        if principal in self._pending:
            self._send(principal, self._pending[principal].values())

    def note_attached(self, gateway: EndReceiver) -> None:
        """Send to a gateway with a new connection what it may have missed, and what waits for a gateway."""
        for pending in self._by_sequence.values():
            if gateway in pending.receivers and pending.receivers[-1] is gateway:
                gateway.send(pending.message)
        self.send_again()

    def send_again(self) -> None:
        """Send the ends of gateways that are away to others."""
        for principal, own in self._pending.items():
            self._send(principal, own.values())

    def confirm(self, sequences: Iterable[int], gateway: EndReceiver) -> None:
        """Forget ends that a gateway has reported, if they were sent to it."""
        for sequence in sequences:
            pending = self._by_sequence.get(sequence)
            if pending is not None and gateway in pending.receivers:
                self._remove(pending)
                pending.confirm()
        has_more = len(self._by_sequence) > self._under_way.total()
        if has_more and self._under_way[gateway] < MAX_UNDER_WAY // 2:
            self.send_again()

    def _send(self, principal: str, ends: Iterable[PendingEnd]) -> None:
        waiting = [each for each in ends if not each.is_under_way]
        gateway = self._choose_gateway(principal) if waiting else None
        for pending in waiting if gateway is not None else ():
            assert gateway is not None
            if self._under_way[gateway] >= MAX_UNDER_WAY:
                return
            if pending.receivers:
                self._drop_load(pending.receivers[-1])
            pending.receivers.append(gateway)
            self._under_way[gateway] += 1
            gateway.send(pending.message)

    def _choose_gateway(self, principal: str) -> EndReceiver | None:
        attached = [each for each in self.list_gateways() if each.is_attached]
        caller = self._callers.get(principal)
        if caller in attached:
            return caller
        serving = [each for each in attached if principal in each.people.served]
        database = "" if caller is None else caller.people.database
        related = [each for each in attached if database and each.people.database == database]
        return next(reversed([*related, *serving]), None)

    def _remove(self, pending: PendingEnd) -> None:
        principal, sequence = pending.message.principal, pending.message.sequence
        if pending.receivers:
            self._drop_load(pending.receivers[-1])
        del self._by_sequence[sequence]
        own = self._pending[principal]
        del own[sequence]
        if not own:
            del self._pending[principal]

    def _drop_load(self, gateway: EndReceiver) -> None:
        self._under_way[gateway] -= 1
        if not self._under_way[gateway]:
            del self._under_way[gateway]
