"""What all sessions of one server share: the registry, the state, the open sessions and what belongs to whom.

Knows nothing of JSON-RPC methods or transports. `app` builds it, the methods use it.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from toolgate.server import shape
from toolgate.server.envelope import SUBSCRIPTION
from toolgate.server.messages import Id, Notification
from toolgate.server.revisions import Revision
from toolgate.server.seal import Seal
from toolgate.server.session import LEVELS, Channel, Session
from toolgate.tools.context import Belongings, Place, Settings
from toolgate.tools.notices import Notices
from toolgate.tools.registry import Registry

log = logging.getLogger("toolgate.server")

TOOLS = "tools"  # the kinds of list that change


@dataclass(eq=False, slots=True)
class Listener:
    """An open `subscriptions/listen`: what it wants, where it goes, and the id every notification carries."""

    id: Id
    channel: Channel
    kinds: frozenset[str]
    ended: "asyncio.Future[None]"  # done when the server ends it


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
    streaming: bool = True  # progress is sent at all
    sessions: set[Session] = field(default_factory=set[Session])
    listeners: set[Listener] = field(default_factory=set[Listener])
    _identities: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    _lists: dict[str, msgspec.Raw] = field(default_factory=dict[str, msgspec.Raw])
    _notices: dict[str, Notices] = field(default_factory=dict[str, Notices])
    _shared: dict[str, Belongings] = field(default_factory=dict[str, Belongings])  # of principals, stateless era
    _own: dict[Session, Belongings] = field(default_factory=dict[Session, Belongings])

    def identity(self, revision: Revision) -> dict[str, Any]:
        """Who we are, as `revision` spells it; the same object each time."""
        held = self._identities.get(revision.name)
        if held is None:
            held = self._identities[revision.name] = shape.implementation(self.name, self.version, revision)
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
        held = self._shared.get(session.principal)
        if held is None:
            held = self.lend(session.principal, Place(), self.notices(session.principal))
            self._shared[session.principal] = held
        return held

    def close_session(self, session: Session) -> None:
        self.sessions.discard(session)
        self._own.pop(session, None)

    def tool_list(self, revision: Revision) -> msgspec.Raw:
        """The answer to tools/list, encoded once until the registry changes."""
        encoded = self._lists.get(revision.name)
        if encoded is None:
            answer: dict[str, Any] = {"tools": [shape.tool(tool, revision) for tool in self.registry]}
            answer = shape.cached(answer, revision)
            if revision.result_types:
                answer = shape.finish(answer, self.identity(revision))
            encoded = self._lists[revision.name] = msgspec.Raw(msgspec.json.encode(answer))
        return encoded

    def swap(self, registry: Registry) -> None:
        """Serve `registry` from now on, and tell those who want to know. Calls under way end on the old one."""
        self.registry = registry
        self._lists = {}
        self._announce(TOOLS)

    def _announce(self, kind: str) -> None:
        method = f"notifications/{kind}/list_changed"
        for session in self.sessions:
            if session.ready and session.channel is not None:
                session.channel.send(Notification(method))
        for listener in self.listeners:
            if kind in listener.kinds:
                listener.channel.send(Notification(method, {"_meta": {SUBSCRIPTION: listener.id}}))

    def tell(self, principal: str, key: str, level: str, text: str) -> None:
        """Log `text` to the session `key` if it is open, else to one open session of the principal, if any."""
        rank = LEVELS.index(level)
        open_ones = [session for session in self.sessions if session.hears(rank) and session.principal == principal]
        chosen = next((session for session in open_ones if session.key == key), None) or next(iter(open_ones), None)
        if chosen is None or chosen.channel is None:
            return
        params = {"level": level, "logger": "callback", "data": text}
        chosen.channel.send(Notification("notifications/message", params))

    def end_listeners(self) -> list[Listener]:
        """End all subscriptions gracefully: each answers its request with a result."""
        ended = list(self.listeners)
        for listener in ended:
            if not listener.ended.done():
                listener.ended.set_result(None)
        return ended
