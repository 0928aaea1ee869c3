"""Hold one client's session: its principal, its revision and its requests in flight."""

import asyncio
import base64
import hashlib
import os
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from toolgate.server.protocol.errors import RpcError
from toolgate.server.protocol.message_ids import Id
from toolgate.server.protocol.messages import Notification, Outbound, Request, Response
from toolgate.server.protocol.revisions import Revision
from toolgate.tools.api.content import Output
from toolgate.tools.api.context.services import CallerState

if TYPE_CHECKING:
    from toolgate.server.base.principals.principal import GrantKey
    from toolgate.tools.api.registry import Registry

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")  # RFC 5424
DEFAULT_LEVEL = LEVELS.index("info")  # before logging/setLevel; callbacks (notice) pass


class Channel(Protocol):
    """The way for messages to the client. Each inbound message brings its own."""

    @property
    def can_ask(self) -> bool:
        """Return whether a request to the client would reach it."""
        ...

    @property
    def is_full(self) -> bool:
        """Return whether the client has much left to read: what can wait should."""
        ...

    def send(self, message: Outbound) -> None:
        """Queue `message` for delivery. Never blocks; the channel decides what happens to a slow reader."""
        ...

    def pause(self) -> None:
        """Let the client disconnect and come back for the rest, if this channel allows that."""
        ...


class ClientRefusedError(Exception):
    """The client answered our request with an error; the text is the client's."""


class InFlightRequest(msgspec.Struct):
    """A request being answered: its task, and whether the client has cancelled it."""

    task: "asyncio.Task[Any]"
    is_cancelled: bool = False
    on_unsent: Callable[[], None] | None = None  # called if the answer is not sent after all


class Session(msgspec.Struct, eq=False):
    """One client's session, from `initialize` on; in the stateless era one request's, sharing `in_flight`.

    - `principal`: whose rows and folders it uses. `owner`: who alone may use the session; narrower than it.
    - `channel`: for messages that answer no request; None: there is no such stream.
    - `stateless`: the transport has seen that the request is of the stateless era, whatever its body says.
    - `right`: what access depends on; when it ends, all that the session left running ends. None: access has no end.
    - `scopes`: what the client may do, with all implied scopes; None: everything. `granted`: the grant's scopes, if its
      token has fewer; None: the same as `scopes`.
    - `until`: end of this request's subscription, in seconds since 1970; None: no end.
    - `client`: the program that signed in, or its own name for itself; "": unknown.
    - `transport`: a label for metrics; decides nothing.
    - `key`: unguessable, or "" if the state is the principal's. A resumed session gets its old one.
    - `id_prefix`: begins the ids of its requests to the client, so that other replicas know whose the answers are.
    - `revision`: None until `initialize`.
    - `meta`: a request's `_meta` that is known to make an equal session, or None.
    """

    principal: str
    channel: Channel | None = None
    stateless: bool = False
    owner: str = ""  # "" means `principal`
    right: "GrantKey | None" = None
    scopes: frozenset[str] | None = None
    granted: frozenset[str] | None = None
    until: float | None = None
    client: str = ""
    transport: str = ""
    key: str = ""
    id_prefix: str = ""
    revision: Revision | None = None
    meta: dict[str, Any] | None = None
    capabilities: dict[str, Any] = {}
    extensions: Collection[str] = ()  # those that the client declared, if its revision has any
    log_level: int | None = DEFAULT_LEVEL
    ready: bool = False  # after notifications/initialized: may get unasked messages
    in_flight: dict[Id, InFlightRequest] = {}
    place: CallerState = msgspec.field(default_factory=CallerState)
    subscribed: dict[str, frozenset[str]] = {}  # resource URI → scopes needed to read it
    _asked: dict[Id, asyncio.Future[Any]] = {}
    _last_id: int = 0

    def __post_init__(self) -> None:
        self.owner = self.owner or self.principal
        if self.key:  # resumed: the client may still answer a question from before, so no id is used again
            self._last_id = int.from_bytes(os.urandom(5)) << 10
        elif not self.stateless:
            self.key = create_key(24)
        if self.key:
            self.place = CallerState(hash_key(self.key))

    __repr__ = object.__repr__  # the key is a secret

    def for_request(self, revision: Revision, capabilities: dict[str, Any], log_level: int | None) -> "Session":
        """Return the session of one stateless request, cancelled through this one. Over HTTP that is this one: each
        request has its own connection."""
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
        declared = capabilities.get("extensions") if revision.extensions else None
        session.extensions = declared if isinstance(declared, dict) else ()
        session.log_level = log_level
        return session

    def cancel(self, id: Id) -> None:
        """Cancel the request `id`; nothing happens if it is unknown or already answered."""
        flight = self.in_flight.get(id)
        if flight is not None and not flight.is_cancelled:
            flight.is_cancelled = True
            flight.task.cancel()

    async def request(self, method: str, params: dict[str, Any], channel: Channel, timeout: float) -> Any:
        """Send the client a request over `channel` and return its result.

        Raises TimeoutError after `timeout` seconds, and ClientRefusedError for an error. Cancellation is passed on to
        the client (notifications/cancelled).
        """
        self._last_id += 1
        id: Id = f"{self.id_prefix}{self._last_id}" if self.id_prefix else self._last_id
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
            del self._asked[id], answer  # it holds the error, whose traceback holds this frame

    def resolve_response(self, response: Response) -> None:
        """Resolve the request that this answers; an answer to nothing is dropped."""
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
        """Save the session, if its sessions outlive the process."""
        if self.place.save is not None:
            await self.place.save()

    def allows(self, wanted: frozenset[str]) -> bool:
        """Return whether the client may use what needs these scopes."""
        return self.scopes is None or wanted <= self.scopes

    def was_granted(self, wanted: frozenset[str]) -> bool:
        """Return whether the client could get a token for these scopes, even if its present one has fewer."""
        return self.allows(wanted) or (self.granted is not None and wanted <= self.granted)

    def accepts_log(self, rank: int) -> bool:
        """Return whether a log message of level `rank` that answers no request may be sent."""
        return self.ready and self.channel is not None and self.log_level is not None and rank >= self.log_level


def create_key(size: int) -> str:
    """Return `size` random bytes of the system as URL-safe text. The module secrets would do, and load random, which
    takes 0.2 MB."""
    return base64.urlsafe_b64encode(os.urandom(size)).rstrip(b"=").decode()


def hash_key(key: str) -> str:
    """Return the session's name in the database, from which its key can't be found."""
    return hashlib.sha256(key.encode()).hexdigest()


@lru_cache(1024)
def short_hash(key: str) -> str:
    """Return a short name for the log, where the key must not appear."""
    return hash_key(key)[:12]


class ApprovalRequest(msgspec.Struct, frozen=True):
    """What a person is asked to approve.

    `command` is a shell command as shown, or None; `arguments` are the others. `folder` is where it runs, `rule` asks.
    `key` is equal for the same call under the same rule and sandbox level; `session` names the client's session.
    """

    tool: str
    command: str | None
    arguments: str
    folder: str
    rule: str
    key: str
    session: str


class Call(msgspec.Struct):
    """One request on its way to its method."""

    id: Id
    method: str
    params: dict[str, Any]
    session: Session
    channel: Channel
    flight: InFlightRequest | None = None
    is_task: bool = False  # it has become a task, so its request is answered
    decision: str = "allowed"  # why it ran or not: "plan", or a decision of `approval.py`
    is_read_only: bool = False  # a plan was active: the tool could change nothing
    approving: ApprovalRequest | None = None  # while the person is asked to approve
    page_answers: "list[asyncio.Future[Any]] | None" = None  # to its questions on our page, None to one that expired
    approval: "tuple[str, bool, str] | None" = None  # as in requestState: nonce, whether given, where
    output: Output | None = None  # of its tool
    digest: str = ""  # of its arguments, if they are large
    shown: "Registry | None" = None  # to its client, if that was looked for when it began
    valid_for: object = None  # the tool whose schema its arguments fit, if they do
    mounted: tuple[str, str] | None = None  # the mount that its tool is of, and the tool's name there
    observed: tuple[float, list[Any]] | None = None  # start time (monotonic), and each observer's value

    @property
    def revision(self) -> Revision:
        revision = self.session.revision
        if revision is None:
            raise RpcError("no revision before initialize")
        return revision

    @property
    def is_waiting(self) -> bool:
        """Return whether a question of it waits on our page."""
        return self.page_answers is not None and any(not answer.done() for answer in self.page_answers)

    @property
    def can_ask(self) -> bool:
        """Return whether a question would reach the client; in the stateless era the answer carries it."""
        return self.revision.stateless or self.channel.can_ask

    @property
    def meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = self.params.get("_meta") or {}
        return meta
