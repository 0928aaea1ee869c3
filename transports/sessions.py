"""The sessions of HTTP clients: found by their unguessable id, bound to their owner, ended when idle.

Knows streams and sessions; knows nothing of requests, headers or tools.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping

from toolgate.server.auth.principals import Principal
from toolgate.server.auth.scopes import reach
from toolgate.server.messages import Outbound
from toolgate.server.session import Session
from toolgate.transports.events import Stream

IDLE = 30 * 60.0  # seconds without a request or an open stream; clients that come later begin anew (404)
MAX_SESSIONS = 10_000  # of one server, about 60 MiB; beyond it the longest idle one gives way
MAX_OWNED = 100  # of one owner: hosts that forget their session open one a message, and must not push others out
MAX_PERSONAL = 300  # of one person, through however many clients: anybody may register more of those
COMING = object()  # a reader that is not there yet
MAX_STREAMS = 64  # kept for resumption, of one session; the oldest finished ones go first
MAX_KEPT = 8 * 2**20  # bytes of finished streams kept for resumption, of one session


class HttpSession:
    """A session and its streams. It is also the session's channel: what no request asked for goes to an open GET
    stream, and waits for one where there is none."""

    def __init__(self, principal: Principal, transport: str = "") -> None:
        self.principal = principal
        self.session = Session(
            principal.name,
            self,
            owner=principal.owner,
            scopes=reach(principal.scopes),
            client=principal.client,
            transport=transport,
        )
        self.streams: OrderedDict[str, Stream] = OrderedDict()
        self.since = time.time()
        self.seen = time.monotonic()
        self.tasks: set[asyncio.Task[None]] = set()
        self._standing: list[Stream] = []  # of GET requests, oldest first
        self._last_stream = 0

    @property
    def id(self) -> str:
        return self.session.key

    @property
    def owner(self) -> str:
        return self.session.owner

    @property
    def busy(self) -> bool:
        """Whether something runs or someone listens: such a session does not expire."""
        return bool(self.tasks) or any(stream.reader is not None for stream in self.streams.values())

    def stream(self) -> Stream:
        """A new stream, kept for resumption."""
        self._last_stream += 1
        made = Stream(f"{self._last_stream:x}", numbered=True)
        self._make_room()
        self.streams[made.id] = made
        return made

    def awaited(self) -> Stream:
        """A new stream whose reader is on its way: many may begin at the same moment, and none makes room for them."""
        made = self.stream()
        made.attach(COMING)
        return made

    def standing(self) -> Stream:
        """The stream of a GET request: one that waits for a reader, or a new one."""
        for stream in self._standing:
            if stream.reader is None and not stream.ended:
                return stream
        stream = self.stream()
        self._standing.append(stream)
        return stream

    def event(self, id: str) -> tuple[Stream, int] | None:
        """The stream and the number that an event id names; None where there is no such event, or no longer."""
        name, _, number = id.partition("-")
        stream = self.streams.get(name)
        if stream is None or not (number.isascii() and number.isdigit() and len(number) < 10):
            return None
        return (stream, int(number)) if int(number) <= stream.last else None

    @property
    def can_ask(self) -> bool:
        """Whether somebody reads what no request asked for."""
        return any(stream.reader is not None for stream in self._standing)

    def send(self, message: Outbound) -> None:
        """Take what no request asked for: on the newest stream that somebody reads, never on two."""
        for stream in reversed(self._standing):
            if stream.reader is not None:
                stream.send(message)
                return
        self.standing().send(message)

    def pause(self) -> None:
        """What no request asked for comes whenever it comes."""

    def end(self) -> None:
        """Call off what runs, and send every reader away."""
        for task in list(self.tasks):
            task.cancel()
        for stream in self.streams.values():
            stream.end()

    def _make_room(self) -> None:
        """Forget streams nobody reads, oldest first: finished ones, and if that is not enough others."""
        finished = [stream for stream in self.streams.values() if stream.ended and stream.reader is None]
        kept = sum(stream.size for stream in finished)
        for stream in finished:
            if len(self.streams) < MAX_STREAMS and kept <= MAX_KEPT:
                return
            kept -= stream.size
            del self.streams[stream.id]
        for stream in list(self.streams.values()):
            if len(self.streams) < MAX_STREAMS:
                return
            if stream.reader is None:
                stream.end()
                del self.streams[stream.id]
                self._standing = [held for held in self._standing if held is not stream]


class Sessions:
    """All of one transport's. `on_end` is told when one has ended, whatever the reason. `each` is the most that one
    owner may have, `personal` the most of one person; None where there is but one. `transport`: what they are on."""

    def __init__(
        self,
        on_end: Callable[[Session], None],
        *,
        idle: float = IDLE,
        most: int = MAX_SESSIONS,
        each: int | None = None,
        personal: int | None = None,
        transport: str = "",
    ) -> None:
        self._on_end = on_end
        self._transport = transport
        self._idle = idle
        self._most = most
        self._each = most if each is None else each
        self._personal = most if personal is None else personal
        self._held: OrderedDict[str, HttpSession] = OrderedDict()  # longest idle first
        self._of_owner: dict[str, OrderedDict[str, HttpSession]] = {}  # the same, by owner
        self._of_person: dict[str, OrderedDict[str, HttpSession]] = {}  # the same, by person
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._held)

    def all(self) -> list[HttpSession]:
        return list(self._held.values())

    def streams(self) -> Iterator[Stream]:
        """Of all sessions, read or not."""
        return (stream for held in self._held.values() for stream in held.streams.values())

    def of_person(self, name: str) -> list[HttpSession]:
        """All of one person's, through whatever clients."""
        return list(self._of_person.get(name, {}).values())

    def open(self, principal: Principal) -> HttpSession | None:
        """A new session; None when there are too many, all in all or of this owner's or person's, and all are busy."""
        own: Mapping[str, HttpSession] = self._of_owner.get(principal.owner, {})
        if len(own) >= self._each and not self._make_room(own):
            return None
        personal: Mapping[str, HttpSession] = self._of_person.get(principal.name, {})
        if len(personal) >= self._personal and not self._make_room(personal):
            return None
        if len(self._held) >= self._most and not self._take_room(principal):
            return None
        made = HttpSession(principal, self._transport)
        self._held[made.id] = made
        self._of_owner.setdefault(made.owner, OrderedDict())[made.id] = made
        self._of_person.setdefault(principal.name, OrderedDict())[made.id] = made
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle, self._expire)
        return made

    def find(self, id: str, principal: Principal) -> HttpSession | None:
        """The open session `id`, if this principal owns it; being asked for keeps it, and it goes on with the scopes
        of the newest token."""
        held = self._held.get(id)
        if held is None or held.owner != principal.owner:
            return None
        if held.principal is not principal:
            held.principal = principal
            held.session.scopes = reach(principal.scopes)
        self._touch(held)
        return held

    def close(self, held: HttpSession) -> None:
        if self._held.pop(held.id, None) is not None:
            for by, key in self._keys(held):
                del by[key][held.id]
                if not by[key]:
                    del by[key]
            held.end()
            self._on_end(held.session)

    def close_of(self, owner: str) -> None:
        """End all of an owner's."""
        for held in list(self._of_owner.get(owner, {}).values()):
            self.close(held)

    def close_all(self) -> None:
        for held in self.all():
            self.close(held)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = time.monotonic()
        wait = self._idle
        for held in self.all():
            if held.busy:
                self._touch(held)
                continue
            left = held.seen + self._idle - now
            if left > 0:
                wait = left
                break
            self.close(held)
        if self._held:
            self._timer = asyncio.get_running_loop().call_later(max(wait, 0.05), self._expire)

    def _touch(self, held: HttpSession) -> None:
        held.seen = time.monotonic()
        self._held.move_to_end(held.id)
        for by, key in self._keys(held):
            by[key].move_to_end(held.id)

    def _keys(self, held: HttpSession) -> tuple[tuple[dict[str, OrderedDict[str, HttpSession]], str], ...]:
        """Where else it is held, and under which key."""
        return (self._of_owner, held.owner), (self._of_person, held.principal.name)

    def _take_room(self, principal: Principal) -> bool:
        """All is taken: whoever has most gives way, and nobody who has less than this principal."""
        own = len(self._of_person.get(principal.name, {}))
        largest = sorted(self._of_person.values(), key=len, reverse=True)
        return any(self._make_room(among) for among in largest if len(among) >= max(own, 1))

    def _make_room(self, among: Mapping[str, HttpSession]) -> bool:
        """End the longest idle one."""
        for held in among.values():
            if not held.busy:
                self.close(held)
                return True
        return False
