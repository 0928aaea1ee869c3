"""Hold one client's session: who calls, in which revision, and which requests are in flight."""

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from toolgate.server.protocol.errors import RpcError
from toolgate.server.protocol.messages import Id, Notification, Outbound, Request, Response
from toolgate.server.protocol.revisions import Revision
from toolgate.tools.api.content import Output
from toolgate.tools.api.services import CallerState

if TYPE_CHECKING:
    from toolgate.server.principal import GrantKey

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")  # RFC 5424
DEFAULT_LEVEL = LEVELS.index("info")  # before logging/setLevel; lets callbacks (notice) through


class Channel(Protocol):
    """Where messages to the client go. Each inbound message brings its own."""

    @property
    def can_ask(self) -> bool:
        """Whether a request to the client would reach it."""
        ...

    def send(self, message: Outbound) -> None:
        """Take `message` for delivery. Never blocks; what happens to a slow reader is the channel's decision."""
        ...

    def pause(self) -> None:
        """Let the client hang up, and come back later for what is still to come, if this channel allows that."""
        ...


class ClientRefusedError(Exception):
    """The client answered a request of ours with an error; the text is the client's."""


@dataclass(slots=True)
class InFlightRequest:
    """A request being answered: the task that does it, and whether the client has called it off."""

    task: "asyncio.Task[Any]"
    is_cancelled: bool = False
    on_unsent: Callable[[], None] | None = None  # called when the answer does not go out after all


@dataclass(eq=False, repr=False, slots=True)
class Session:
    """One client's session, from `initialize` on; in the stateless era one request's, sharing `in_flight`.

    `revision` is None until `initialize`. `key` is unguessable, or "" where the state is the principal's.
    `principal` names whose rows and folders it uses; `owner` is who alone may use the session itself: narrower, since
    one principal may come through several clients. `channel` takes what no request asked for; None where there is no
    such stream. `stateless` says that the transport has already seen that a request is of the stateless era, whatever
    its body says. `scopes` is what the client was last seen to be allowed, with all that it implies; None is
    everything. `until` is when a subscription of this request has to end, in seconds since 1970; None: no such end.
    `client` is the program at the other end, as it signed in or, where nobody does, as it calls itself; "" is unknown.
    `transport` is a word for those who count: nothing is decided by it. `right` is what lets the client come: what it
    leaves running ends with that; None is for ever. `granted` is what the person granted it, where its token is for
    less; None: no more than `scopes`. A session that was begun by an earlier process
    is made with the `key` it had.
    """

    principal: str
    channel: Channel | None = None
    _: KW_ONLY
    stateless: bool = False
    owner: str = ""  # "" becomes `principal`
    right: "GrantKey | None" = None
    scopes: frozenset[str] | None = None
    granted: frozenset[str] | None = None
    until: float | None = None
    client: str = ""
    transport: str = ""
    key: str = ""
    revision: Revision | None = field(default=None, init=False)
    capabilities: dict[str, Any] = field(init=False)
    log_level: int | None = field(default=DEFAULT_LEVEL, init=False)
    ready: bool = field(
        default=False, init=False
    )  # after notifications/initialized: may be sent what it did not ask for
    in_flight: dict[Id, InFlightRequest] = field(init=False)
    place: CallerState = field(init=False)
    subscribed: dict[str, frozenset[str]] = field(init=False)  # URIs of resources → the scopes it takes to read them
    _asked: dict[Id, asyncio.Future[Any]] = field(init=False)
    _last_id: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.owner = self.owner or self.principal
        if self.key:  # this session may still be answered what an earlier process asked: no id is ever used again
            self._last_id = secrets.randbelow(2**40) << 10
        elif not self.stateless:
            self.key = secrets.token_urlsafe(24)
        self.place = CallerState(hash_key(self.key) if self.key else "")
        self.capabilities, self.in_flight, self.subscribed, self._asked = {}, {}, {}, {}

    def for_request(self, revision: Revision, capabilities: dict[str, Any], log_level: int | None) -> "Session":
        """The session of one request of the stateless era, cancelled through this one; over HTTP this very one, since
        there each request has a connection of its own."""
        session = self
        if not self.stateless:
            session = Session(
                self.principal,
                stateless=True,
                owner=self.owner,
                right=self.right,
                scopes=self.scopes,
                granted=self.granted,
                client=self.client,
                transport=self.transport,
            )
            session.in_flight = self.in_flight
        session.revision = revision
        session.capabilities = capabilities
        session.log_level = log_level
        return session

    def cancel(self, id: Id) -> None:
        """Call off the request `id`; nothing happens when it is unknown or already answered."""
        flight = self.in_flight.get(id)
        if flight is not None and not flight.is_cancelled:
            flight.is_cancelled = True
            flight.task.cancel()

    async def request(self, method: str, params: dict[str, Any], channel: Channel, timeout: float) -> Any:
        """Ask the client something over `channel` and wait for its result.

        Raises TimeoutError after `timeout` seconds, Refused when the client answers with an error. Whoever stops
        waiting tells the client so (notifications/cancelled).
        """
        self._last_id += 1
        id = self._last_id
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[id] = answer
        try:
            channel.send(Request(id, method, params))
            async with asyncio.timeout(timeout):
                return await answer
        except (TimeoutError, asyncio.CancelledError):
            channel.send(Notification("notifications/cancelled", {"requestId": id, "reason": "no longer needed"}))
            raise
        finally:
            del self._asked[id]

    def resolve_response(self, response: Response) -> None:
        """Hand an answer to whoever waits for it; an answer to nothing is dropped."""
        waiting = self._asked.get(response.id) if response.id is not None else None
        if waiting is None or waiting.done():
            return
        if response.error is None:
            waiting.set_result(response.result)
        else:
            said = response.error.get("message") if isinstance(response.error, dict) else None
            waiting.set_exception(ClientRefusedError(str(said)[:500]))

    def notify_updated(self, uri: str) -> None:
        """Tell the client that a resource it subscribed to has changed."""
        if self.ready and self.channel is not None and self.allows(self.subscribed.get(uri, frozenset())):
            self.channel.send(Notification("notifications/resources/updated", {"uri": uri}))

    async def save(self) -> None:
        """Write down what of this session outlives the process, where anything does."""
        if self.place.save is not None:
            await self.place.save()

    def allows(self, wanted: frozenset[str]) -> bool:
        """Whether the client may have what takes these scopes."""
        return self.scopes is None or wanted <= self.scopes

    def was_granted(self, wanted: frozenset[str]) -> bool:
        """Whether the client could have a token for these scopes, though the one it shows be for less."""
        return self.allows(wanted) or (self.granted is not None and wanted <= self.granted)

    def accepts_log(self, rank: int) -> bool:
        """Whether a log message of level `rank` that no request asked for may be sent."""
        return self.ready and self.channel is not None and self.log_level is not None and rank >= self.log_level

    def has_capability(self, capability: str) -> bool:
        """Whether the client declared `capability`."""
        return capability in self.capabilities

    def has_extension(self, extension: str) -> bool:
        """Whether the client declared `extension`, where its revision has extensions."""
        declared = self.capabilities.get("extensions")
        has_any = self.revision is not None and self.revision.extensions and isinstance(declared, dict)
        return has_any and extension in declared  # type: ignore[operator]  # an object: looked at just now


def hash_key(key: str) -> str:
    """What a session is called in the state: whoever reads that can't name the session."""
    return hashlib.sha256(key.encode()).hexdigest()


@lru_cache(1024)
def short_hash(key: str) -> str:
    """What a session is called where its key, which is a secret, must not be."""
    return hash_key(key)[:12]


@dataclass(slots=True)
class Call:
    """One request on its way to its method: what was asked, by whom, and where answers to it go."""

    id: Id
    method: str
    params: dict[str, Any]
    session: Session
    channel: Channel
    flight: InFlightRequest | None = None
    is_task: bool = False  # it has become a task: its request is answered
    decision: str = "allowed"  # why it ran or did not: "plan", or a word of `approval.py`
    approving: str | None = None  # the arguments as the person sees them who is asked to approve, as long as that is
    approval: "tuple[str, bool, str] | None" = None  # of one, as requestState carries it: nonce, whether given, where
    output: Output | None = None  # what its tool gave
    digest: str = ""  # of its arguments, where they are large
    observed: tuple[float, list[Any]] | None = None  # when it began (monotonic), and what each observer made of that

    @property
    def revision(self) -> Revision:
        revision = self.session.revision
        if revision is None:
            raise RpcError("no revision before initialize")
        return revision

    @property
    def can_ask(self) -> bool:
        """Whether a question would reach the client: in the stateless era it is an answer, and always does."""
        return self.revision.stateless or self.channel.can_ask

    @property
    def meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = self.params.get("_meta") or {}
        return meta
