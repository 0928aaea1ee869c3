"""What all sessions of one server share: the registry, the state, the open sessions and what belongs to whom.

Knows nothing of JSON-RPC methods or transports. `app` builds it, the methods use it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from toolgate.server.auth.principal_names import own_name_only
from toolgate.server.calls.client import NoClient
from toolgate.server.calls.observers import Observers
from toolgate.server.calls.pending_questions import PendingQuestions
from toolgate.server.calls.tasks import CallTasks, StoredTask
from toolgate.server.policy.nonces import Nonces
from toolgate.server.policy.rate_limit import CallRateLimiter
from toolgate.server.policy.rules import Rules
from toolgate.server.protocol import serialization
from toolgate.server.protocol.messages import Id, Notification
from toolgate.server.protocol.request_meta import SUBSCRIPTION
from toolgate.server.protocol.resource_updates import NotificationThrottle, ResourceUpdates
from toolgate.server.protocol.revisions import Revision
from toolgate.server.protocol.session import LEVELS, Call, Channel, Session
from toolgate.server.state.sealed_state import Sealer
from toolgate.tools.api.context import Context
from toolgate.tools.api.notices import Notices
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.services import CallerState, Services, Settings

log = logging.getLogger("toolgate.server")

Method = Callable[[Call], Any]

KINDS = ("tools", "prompts", "resources")  # the lists that change


def _new_place(principal: str) -> CallerState:
    """Where one begins."""
    return CallerState()


@dataclass(eq=False, slots=True)
class OpenSubscription:
    """An open `subscriptions/listen`: what it wants, where it goes, and the id every notification carries."""

    id: Id
    channel: Channel
    principal: str
    owner: str
    kinds: frozenset[str]
    tasks: frozenset[str]  # ids of deferrals
    end_signal: "asyncio.Future[None]"  # done when the server ends it
    uris: frozenset[str] = frozenset()

    def end(self) -> None:
        """End it gracefully: its request is answered with a result."""
        if not self.end_signal.done():
            self.end_signal.set_result(None)

    def notify_updated(self, uri: str) -> None:
        self.send("notifications/resources/updated", uri=uri)

    def send(self, method: str, **params: Any) -> None:
        self.channel.send(Notification(method, {"_meta": {SUBSCRIPTION: self.id}, **params}))


@dataclass(eq=False)
class Server:
    """`lend(principal, place, notices)` makes Belongings: once a session, or once a principal where there is none."""

    name: str
    version: str
    registry: Registry
    settings: Settings
    call_timeout: float  # seconds after which any call is ended
    seal: Sealer
    make_belongings: Callable[[str, CallerState, Notices], Services]
    call_tasks: CallTasks
    task_after: float  # seconds after which a call that may become a task by itself does
    observers: Observers = field(default_factory=Observers)  # of each tools/call
    trace: Callable[[Method], Method] | None = None  # each method, as it is when somebody follows its calls
    streaming: bool = True  # progress is sent at all
    full_structure: bool = False  # lean tools have structured content too
    call_rate: CallRateLimiter | None = None  # how many a minute; None: any number
    note_use: Callable[[str], None] | None = None  # told of each call of a principal
    place: Callable[[str], CallerState] = _new_place  # of a principal, whatever the session
    rules: Rules = field(default_factory=Rules)
    principal_names: Callable[[str], Awaitable[frozenset[str]]] = (
        own_name_only  # principal → all that rules may call it
    )
    nonces: Nonces = field(default_factory=Nonces)  # of approvals
    questions: PendingQuestions = field(default_factory=PendingQuestions)  # for who can't be asked through their client
    security_schemes: Callable[[str], list[dict[str, Any]]] | None = (
        None  # scope → a tool's securitySchemes, where one signs in
    )
    sessions: set[Session] = field(default_factory=set[Session])
    subscriptions: dict[OpenSubscription, None] = field(
        default_factory=dict[OpenSubscription, None]
    )  # the longest open first
    pages: dict[tuple[str, str, int], msgspec.Raw] = field(default_factory=dict[tuple[str, str, int], msgspec.Raw])
    _identities: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    _notices: dict[str, Notices] = field(default_factory=dict[str, Notices])
    _list_throttles: dict[str, NotificationThrottle] = field(default_factory=dict[str, NotificationThrottle])
    _principal_belongings: dict[str, Services] = field(
        default_factory=dict[str, Services]
    )  # of principals, stateless era
    _session_belongings: dict[Session, Services] = field(default_factory=dict[Session, Services])

    def __post_init__(self) -> None:
        self.updates = ResourceUpdates(self._watch)
        self.call_tasks.notify = self._notify_task

    def identity(self, revision: Revision) -> dict[str, Any]:
        """Who we are, as `revision` spells it; the same object each time."""
        held = self._identities.get(revision.name)
        if held is None:
            held = self._identities[revision.name] = serialization.format_implementation(
                self.name, self.version, revision
            )
        return held

    def notices(self, principal: str) -> Notices:
        held = self._notices.get(principal)
        if held is None:
            held = self._notices[principal] = Notices()
        return held

    def belongings(self, session: Session) -> Services:
        """What a call of this session may use: bound to the session where there is one, else to the principal."""
        if session.key:
            held = self._session_belongings.get(session)
            if held is None:
                held = self._session_belongings[session] = self.make_belongings(
                    session.principal, session.place, self.notices(session.principal)
                )
            return held
        return self.of_principal(session.principal)

    def peek_belongings(self, session: Session) -> Services | None:
        """What this session was lent, if it has used anything yet: to look at it takes nothing into use."""
        return self._session_belongings.get(session)

    def of_principal(self, principal: str) -> Services:
        """What is the principal's, whatever the session."""
        held = self._principal_belongings.get(principal)
        if held is None:
            held = self._principal_belongings[principal] = self.make_belongings(
                principal, self.place(principal), self.notices(principal)
            )
        return held

    def forget_belongings(self, principal: str) -> None:
        """Lend anew at the next call."""
        self._principal_belongings.pop(principal, None)
        for session in [held for held in self._session_belongings if held.principal == principal]:
            del self._session_belongings[session]

    def close_session(self, session: Session) -> None:
        for uri in session.subscribed:
            self.updates.unsubscribe(session, session.principal, uri)
        self.sessions.discard(session)
        self._session_belongings.pop(session, None)

    def swap_registry(self, registry: Registry) -> None:
        """Serve `registry` from now on, and tell those who want to know which lists have changed. Calls under way end
        on the old one."""
        before, self.registry = self.registry, registry
        self.pages = {}
        for kind in KINDS:
            if serialization.fingerprint_list(registry.of_kind(kind)) != serialization.fingerprint_list(
                before.of_kind(kind)
            ):
                self._announce(kind)
        if registry.of_kind("resources") != before.of_kind("resources"):
            self.updates.renew()

    def notify_resource_list(self, principal: str) -> None:
        """What resources/list shows this principal has changed."""
        held = self._list_throttles.get(principal)
        if held is None:
            held = self._list_throttles[principal] = NotificationThrottle(
                partial(self._announce, "resources", principal)
            )
        held.notify()

    def _announce(self, kind: str, principal: str | None = None) -> None:
        """Tell all who want to know that a list has changed; of one principal, where it is theirs alone."""
        method = f"notifications/{kind}/list_changed"
        for session in self.sessions:
            if session.ready and session.channel is not None and principal in (None, session.principal):
                session.channel.send(Notification(method))
        for listener in self.subscriptions:
            if kind in listener.kinds and principal in (None, listener.principal):
                listener.send(method)

    def _watch(self, principal: str, uri: str) -> AsyncIterator[object] | None:
        """What finds out when the principal's resource `uri` changes."""
        found = self.registry.resource(uri)
        if found is None:
            return None
        resource, variables = found
        return resource.watch(variables, Context(self.of_principal(principal), NoClient()))

    def _notify_task(self, kept: StoredTask) -> bool:
        """Whether somebody hears of it."""
        mine = [held for held in self.subscriptions if kept.id in held.tasks and kept.principal == held.principal]
        for listener in mine:
            listener.send("notifications/tasks", **serialization.format_detailed_task(kept))
        return bool(mine)

    def log_to_principal(self, principal: str, key: str, level: str, text: str, scope: str) -> None:
        """Log `text` to the session whose place is `key` if it is open, else to one open session of the principal, if
        any: one whose client may hear what takes `scope`."""
        rank, wanted = LEVELS.index(level), frozenset((scope,))
        mine = [session for session in self.sessions if session.principal == principal]
        open_ones = [session for session in mine if session.accepts_log(rank) and session.allows(wanted)]
        chosen = next((session for session in open_ones if session.place.key == key), None) or next(
            iter(open_ones), None
        )
        if chosen is None or chosen.channel is None:
            return
        params = {"level": level, "logger": "callback", "data": text}
        chosen.channel.send(Notification("notifications/message", params))

    def end_subscriptions(self) -> list[OpenSubscription]:
        """End all subscriptions gracefully: each answers its request with a result."""
        ended = list(self.subscriptions)
        for listener in ended:
            listener.end()
        return ended
