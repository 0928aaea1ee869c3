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

from toolgate.server.auth.principal_names import itself
from toolgate.server.calls.client import Nobody
from toolgate.server.calls.observers import Observers
from toolgate.server.calls.pending_questions import Questions
from toolgate.server.calls.tasks import Deferrals, Kept
from toolgate.server.policy.nonces import Nonces
from toolgate.server.policy.rate_limit import Calls
from toolgate.server.policy.rules import Rules
from toolgate.server.protocol import serialization
from toolgate.server.protocol.messages import Id, Notification
from toolgate.server.protocol.request_meta import SUBSCRIPTION
from toolgate.server.protocol.resource_updates import Paced, Updates
from toolgate.server.protocol.revisions import Revision
from toolgate.server.protocol.session import LEVELS, Call, Channel, Session
from toolgate.server.state.sealed_state import Seal
from toolgate.tools.api.context import Belongings, Context, Place, Settings
from toolgate.tools.api.notices import Notices
from toolgate.tools.api.registry import Registry

log = logging.getLogger("toolgate.server")

Method = Callable[[Call], Any]

KINDS = ("tools", "prompts", "resources")  # the lists that change


def _nowhere(principal: str) -> Place:
    """Where one begins."""
    return Place()


@dataclass(eq=False, slots=True)
class Listener:
    """An open `subscriptions/listen`: what it wants, where it goes, and the id every notification carries."""

    id: Id
    channel: Channel
    principal: str
    owner: str
    kinds: frozenset[str]
    tasks: frozenset[str]  # ids of deferrals
    ended: "asyncio.Future[None]"  # done when the server ends it
    uris: frozenset[str] = frozenset()

    def end(self) -> None:
        """End it gracefully: its request is answered with a result."""
        if not self.ended.done():
            self.ended.set_result(None)

    def updated(self, uri: str) -> None:
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
    hold: float  # seconds after which any call is ended
    seal: Seal
    lend: Callable[[str, Place, Notices], Belongings]
    deferrals: Deferrals
    patience: float  # seconds after which a call that may become a task by itself does
    observers: Observers = field(default_factory=Observers)  # of each tools/call
    followed: Callable[[Method], Method] | None = None  # each method, as it is when somebody follows its calls
    streaming: bool = True  # progress is sent at all
    full_structure: bool = False  # lean tools have structured content too
    calls: Calls | None = None  # how many a minute; None: any number
    used: Callable[[str], None] | None = None  # told of each call of a principal
    place: Callable[[str], Place] = _nowhere  # of a principal, whatever the session
    rules: Rules = field(default_factory=Rules)
    names: Callable[[str], Awaitable[frozenset[str]]] = itself  # principal → all that rules may call it
    nonces: Nonces = field(default_factory=Nonces)  # of approvals
    questions: Questions = field(default_factory=Questions)  # for who can't be asked through their client
    schemes: Callable[[str], list[dict[str, Any]]] | None = None  # scope → a tool's securitySchemes, where one signs in
    sessions: set[Session] = field(default_factory=set[Session])
    listeners: dict[Listener, None] = field(default_factory=dict[Listener, None])  # the longest open first
    pages: dict[tuple[str, str, int], msgspec.Raw] = field(default_factory=dict[tuple[str, str, int], msgspec.Raw])
    _identities: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    _notices: dict[str, Notices] = field(default_factory=dict[str, Notices])
    _listings: dict[str, Paced] = field(default_factory=dict[str, Paced])
    _shared: dict[str, Belongings] = field(default_factory=dict[str, Belongings])  # of principals, stateless era
    _own: dict[Session, Belongings] = field(default_factory=dict[Session, Belongings])

    def __post_init__(self) -> None:
        self.updates = Updates(self._watch)
        self.deferrals.tell = self._tell_task

    def scopes_of(self, uri: str) -> frozenset[str]:
        """What it takes to read the resource `uri`, or what the template of that text is of."""
        from toolgate.server.auth import scopes  # start-up: nobody asks where nobody signs in

        return scopes.of_uri(self.registry, uri)

    def identity(self, revision: Revision) -> dict[str, Any]:
        """Who we are, as `revision` spells it; the same object each time."""
        held = self._identities.get(revision.name)
        if held is None:
            held = self._identities[revision.name] = serialization.implementation(self.name, self.version, revision)
        return held

    def notices(self, principal: str) -> Notices:
        held = self._notices.get(principal)
        if held is None:
            held = self._notices[principal] = Notices()
        return held

    def belongings(self, session: Session) -> Belongings:
        """What a call of this session may use: bound to the session where there is one, else to the principal."""
        if session.key:
            held = self._own.get(session)
            if held is None:
                held = self._own[session] = self.lend(session.principal, session.place, self.notices(session.principal))
            return held
        return self.of_principal(session.principal)

    def lent(self, session: Session) -> Belongings | None:
        """What this session was lent, if it has used anything yet: to look at it takes nothing into use."""
        return self._own.get(session)

    def of_principal(self, principal: str) -> Belongings:
        """What is the principal's, whatever the session."""
        held = self._shared.get(principal)
        if held is None:
            held = self._shared[principal] = self.lend(principal, self.place(principal), self.notices(principal))
        return held

    def forget(self, principal: str) -> None:
        """Lend anew at the next call."""
        self._shared.pop(principal, None)
        for session in [held for held in self._own if held.principal == principal]:
            del self._own[session]

    def close_session(self, session: Session) -> None:
        for uri in session.subscribed:
            self.updates.unsubscribe(session, session.principal, uri)
        self.sessions.discard(session)
        self._own.pop(session, None)

    def swap(self, registry: Registry) -> None:
        """Serve `registry` from now on, and tell those who want to know which lists have changed. Calls under way end
        on the old one."""
        before, self.registry = self.registry, registry
        self.pages = {}
        for kind in KINDS:
            if serialization.listed(registry.of_kind(kind)) != serialization.listed(before.of_kind(kind)):
                self._announce(kind)
        if registry.of_kind("resources") != before.of_kind("resources"):
            self.updates.renew()

    def listed(self, principal: str) -> None:
        """What resources/list shows this principal has changed."""
        held = self._listings.get(principal)
        if held is None:
            held = self._listings[principal] = Paced(partial(self._announce, "resources", principal))
        held.changed()

    def _announce(self, kind: str, principal: str | None = None) -> None:
        """Tell all who want to know that a list has changed; of one principal, where it is theirs alone."""
        method = f"notifications/{kind}/list_changed"
        for session in self.sessions:
            if session.ready and session.channel is not None and principal in (None, session.principal):
                session.channel.send(Notification(method))
        for listener in self.listeners:
            if kind in listener.kinds and principal in (None, listener.principal):
                listener.send(method)

    def _watch(self, principal: str, uri: str) -> AsyncIterator[object] | None:
        """What finds out when the principal's resource `uri` changes."""
        found = self.registry.resource(uri)
        if found is None:
            return None
        resource, variables = found
        return resource.watch(variables, Context(self.of_principal(principal), Nobody()))

    def _tell_task(self, kept: Kept) -> bool:
        """Whether somebody hears of it."""
        mine = [held for held in self.listeners if kept.id in held.tasks and kept.principal == held.principal]
        for listener in mine:
            listener.send("notifications/tasks", **serialization.detailed_task(kept))
        return bool(mine)

    def tell(self, principal: str, key: str, level: str, text: str, scope: str) -> None:
        """Log `text` to the session whose place is `key` if it is open, else to one open session of the principal, if
        any: one whose client may hear what takes `scope`."""
        rank, wanted = LEVELS.index(level), frozenset((scope,))
        mine = [session for session in self.sessions if session.principal == principal]
        open_ones = [session for session in mine if session.hears(rank) and session.allows(wanted)]
        chosen = next((session for session in open_ones if session.place.key == key), None) or next(
            iter(open_ones), None
        )
        if chosen is None or chosen.channel is None:
            return
        params = {"level": level, "logger": "callback", "data": text}
        chosen.channel.send(Notification("notifications/message", params))

    def end_listeners(self) -> list[Listener]:
        """End all subscriptions gracefully: each answers its request with a result."""
        ended = list(self.listeners)
        for listener in ended:
            listener.end()
        return ended
