"""Hold how a mount is: what everybody sees, what each principal was told, and when it may be tried again."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TypeVar

import msgspec

from toolgate.server.features.mounts.mount.backoff import RestartDelay
from toolgate.server.features.mounts.upstream.errors import UpstreamFault

MAX_PRINCIPALS = 1_000
MAX_TURNS = 200

T = TypeVar("T")

log = logging.getLogger("toolgate.mounts")


class MountState(msgspec.Struct, frozen=True):
    """How a mount is: "configured" (nothing is known of it yet), "known" (its lists are), "running" or "failed".
    `since` is in seconds since 1970. `code` and `error` are of the last failure, or ""."""

    status: str
    since: float
    code: str = ""
    error: str = ""


class MountTurn(msgspec.Struct, frozen=True):
    """What happened to a mount: `time` in seconds since 1970, and for whom, or "" for all."""

    time: float
    principal: str
    text: str


class RunningMount(msgspec.Struct, frozen=True):
    """One open conversation: `said` are the last lines of its program's standard error, `rubbish` counts the messages
    that could not be read."""

    principal: str
    said: str
    rubbish: int


class MountRecord(msgspec.Struct, frozen=True):
    """What has happened to a mount, the latest last, and what runs."""

    turns: list[MountTurn]
    running: list[RunningMount]


class MountStanding:
    """How one mount is. `on_change()` is called when its state differs; `on_turn(principal, fault)` when it fails for a
    principal for whom it worked, and with None when it works again."""

    def __init__(
        self,
        name: str,
        status: str,
        on_change: Callable[[], None],
        on_turn: Callable[[str, UpstreamFault | None], None],
    ) -> None:
        self.state = MountState(status, time.time())
        self.failures: Counter[str] = Counter()  # by code, since the start
        self.turns: deque[MountTurn] = deque(maxlen=MAX_TURNS)
        self._name = name
        self._on_change = on_change
        self._on_turn = on_turn
        self._delays: dict[str, RestartDelay] = {}  # by principal: one who can't open it holds up no other
        self._failing: dict[str, None] = {}  # principals who were told that it fails
        self._sharers: dict[str, None] = {}  # principals who share one conversation
        self._own: dict[str, MountState] = {}  # of principals for whom it fails, since their last try

    def seconds_left(self, principal: str) -> float:
        """Return the time until the mount may be opened for a principal again."""
        delay = self._delays.get(principal)
        return delay.seconds_left if delay is not None else 0.0

    def find_state(self, principal: str) -> MountState:
        """Return how it is for a principal, or with "" for those who share one conversation: it may fail for one alone.

        A sentence may quote what a program or server said of one person, so that no other principal gets it.
        """
        own = self._own.get(principal)
        if own is not None or not principal:
            return own or self.state
        return msgspec.structs.replace(self.state, error="")

    def note_sharer(self, principal: str) -> None:
        """Take a principal who is to hear of a conversation that nobody owns."""
        _keep(self._sharers, principal, None)

    def note_open(self, principal: str) -> None:
        """A conversation with it was opened for a principal."""
        self._add_turn(principal, "opened")
        self.note_success(principal)

    def note_success(self, principal: str) -> None:
        """It did what it may have failed in."""
        self._set_state(MountState("running", time.time()))
        self._own.pop(principal, None)
        if principal in self._failing:
            del self._failing[principal]
            self._tell(principal, None)

    def note_failure(
        self, principal: str, fault: UpstreamFault, *, is_theirs: bool = False, waits: bool = True
    ) -> None:
        """It can't be opened for a principal: the next try waits. `is_theirs`: with secrets
        of their own, so that it says nothing of the mount, and what the server says is theirs alone."""
        if waits:
            self._delay_of(principal).note_failure()
        self._note(principal, fault, is_theirs=is_theirs)

    def note_end(self, principal: str, fault: UpstreamFault, lived: float, *, is_theirs: bool = False) -> None:
        """A conversation of a principal has broken after `lived` seconds. `is_theirs` as in `note_failure`."""
        self._delay_of(principal).note_end(lived)
        self._note(principal, fault, is_theirs=is_theirs)

    def forgive(self, principal: str | None = None) -> None:
        """Have the next try wait no more, of one principal or of all."""
        if principal is None:
            self._delays.clear()
            self._own.clear()
        else:
            self._delays.pop(principal, None)
            self._own.pop(principal, None)

    def _note(self, principal: str, fault: UpstreamFault, *, is_theirs: bool = False) -> None:
        self.failures[fault.code] += 1
        self._add_turn(principal, f"{fault.code}: {fault.sentence}")
        failed = MountState("failed", time.time(), fault.code, fault.sentence)
        own = self._own.get(principal)
        if own is None or not _is_same(own, failed):
            _keep(self._own, principal, failed)
        if not is_theirs:
            if self.state.error != fault.sentence:
                log.warning("mount %s: %s: %s", self._name, fault.code, fault.sentence)
            self._set_state(failed)
        if principal not in self._failing:
            _keep(self._failing, principal, None)
            self._tell(principal, fault)

    def _add_turn(self, principal: str, text: str) -> None:
        self.turns.append(MountTurn(time.time(), principal, text))

    def _tell(self, principal: str, fault: UpstreamFault | None) -> None:
        for each in [principal] if principal else list(self._sharers):
            self._on_turn(each, fault)

    def _delay_of(self, principal: str) -> RestartDelay:
        if principal not in self._delays:
            if len(self._delays) >= MAX_PRINCIPALS:
                del self._delays[next(iter(self._delays))]
            self._delays[principal] = RestartDelay()
        return self._delays[principal]

    def _set_state(self, state: MountState) -> None:
        """Take a state; one that lasts has begun before."""
        if not _is_same(self.state, state):
            self.state = state
            self._on_change()


def _is_same(one: MountState, other: MountState) -> bool:
    """Return whether two states differ in their time alone."""
    return (one.status, one.code, one.error) == (other.status, other.code, other.error)


def _keep(principals: dict[str, T], principal: str, value: T) -> None:
    """Add a principal, in the place of the first if there are too many."""
    if len(principals) >= MAX_PRINCIPALS and principal not in principals:
        del principals[next(iter(principals))]
    principals[principal] = value
