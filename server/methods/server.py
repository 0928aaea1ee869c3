"""Hold the parts that all sessions of one server share: the registry, the policy, the notifications and the limits.

`app` builds it. The methods use its parts.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from toolgate.server.base.asyncio_tasks import DeadlineTimer
from toolgate.server.base.hooks import AsyncHook, Hook
from toolgate.server.base.principals.scopes import needed_scopes
from toolgate.server.calls.client import NoClient
from toolgate.server.calls.observers import Observers
from toolgate.server.calls.pending_questions import PendingQuestions
from toolgate.server.calls.policy.call_policy import CallPolicy
from toolgate.server.calls.sharing import NoticeSharing, TaskSharing
from toolgate.server.calls.tasks import CallTasks
from toolgate.server.protocol import serialization
from toolgate.server.protocol.errors import InvalidRequest
from toolgate.server.protocol.notifications import LISTS, Notifications
from toolgate.server.protocol.resource_updates import ResourceUpdates
from toolgate.server.protocol.revisions import Revision
from toolgate.server.protocol.session import Call, Session
from toolgate.server.state.keys.sealed_state import Sealer
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.context.notices import Notices
from toolgate.tools.api.context.services import CallerState, Services, Settings
from toolgate.tools.api.registry import Part, Registry
from toolgate.tools.api.resource import Resource
from toolgate.tools.workspace.workspace import WorkspaceUnreachableError

if TYPE_CHECKING:
    from toolgate.server.calls.policy.rules import Rule
    from toolgate.server.protocol.dispatcher import Method
    from toolgate.server.protocol.registry_views import RegistryViews, WithheldPart

MethodFunction = Callable[[Call], Any]
ListMethods = Callable[["Server"], "Mapping[str, Method]"]  # the methods that a feature adds, by their names

MAX_PRINCIPALS = 1_000  # whose services are held without a call: a server meets any number of people
MAX_TRIMMED = 8  # services that one call may drop: those that can't be dropped must not cost each call a search
EVERY_CLIENT = "*"


class ServicePool:
    """Lend each session, or each principal without one, the services its tool calls use.

    `create(principal, state, notices)` makes Services: one per session, or one per principal without a session.
    `find_state(principal)` returns the state of a principal's commands, as it was stored.
    `create_notices(principal)` makes a principal's notices, which other servers may share.

    The principals that called last keep their services. Others keep them while a call or a watch uses them, or their
    working directory is not stored.
    """

    def __init__(
        self,
        create: Callable[[str, CallerState, Notices], Services],
        find_state: Callable[[str], CallerState] = lambda principal: CallerState(),
        create_notices: Callable[[str], Notices] = lambda _: Notices(),
    ) -> None:
        self._create = create
        self._find_state = find_state
        self._create_notices = create_notices
        self._notices: dict[str, Notices] = {}
        self._max_notices = 2 * MAX_PRINCIPALS  # before those that are not used are dropped
        self._of_principals: dict[str, Services] = {}  # of the stateless era, the latest call last
        self._in_use: WeakValueDictionary[str, Services] = WeakValueDictionary()  # of principals whom others pushed out
        self._of_sessions: dict[Session, Services] = {}

    def notices(self, principal: str) -> Notices:
        held = self._notices.get(principal)
        if held is None:
            held = self._notices[principal] = self._create_notices(principal)
            if len(self._notices) > self._max_notices:
                self._trim_notices(principal)
        return held

    def of_session(self, session: Session) -> Services:
        """Return the services for a call: the session's own if it has a key, else the principal's."""
        if not session.key:
            return self.of_principal(session.principal)
        held = self._of_sessions.get(session)
        if held is None:
            principal = session.principal
            held = self._of_sessions[session] = self._create(principal, session.place, self.notices(principal))
        return held

    def peek(self, session: Session) -> Services | None:
        """Return the session's services, or None if it has used none yet. Creates nothing."""
        return self._of_sessions.get(session)

    def of_principal(self, principal: str) -> Services:
        """Return the principal's own services."""
        held = self._of_principals.pop(principal, None) or self._in_use.pop(principal, None)
        if held is None:
            held = self._create(principal, self._find_state(principal), self.notices(principal))
        self._of_principals[principal] = held
        if len(self._of_principals) > MAX_PRINCIPALS:
            self._trim_principals()
        return held

    def forget(self, principal: str) -> None:
        """Drop the principal's services; the next call creates new ones."""
        self._of_principals.pop(principal, None)
        self._in_use.pop(principal, None)
        for session in [session for session in self._of_sessions if session.principal == principal]:
            del self._of_sessions[session]

    def forget_session(self, session: Session) -> None:
        self._of_sessions.pop(session, None)

    def _trim_principals(self) -> None:
        """Drop the services of those who called longest ago, if the next call can create the same ones."""
        excess = min(len(self._of_principals) - MAX_PRINCIPALS, MAX_TRIMMED)
        for principal in list(islice(self._of_principals, excess)):
            services = self._of_principals.pop(principal)
            if services.caller_state.is_saved:
                self._in_use[principal] = services
            else:
                self._of_principals[principal] = services

    def _trim_notices(self, principal: str) -> None:
        """Drop the empty notices that no services use. Those of `principal` are about to be used."""
        sessions = {session.principal for session in self._of_sessions}
        self._notices = {
            name: notices
            for name, notices in self._notices.items()
            if notices.by_key
            or name == principal
            or name in sessions
            or name in self._of_principals
            or name in self._in_use
        }
        self._max_notices = 2 * max(len(self._notices), MAX_PRINCIPALS)


class ReadableResources(msgspec.Struct, frozen=True):
    """The fixed resources that some callers may read, and their URIs."""

    resources: Sequence[Resource]
    uris: Sequence[str]


class ListCache(msgspec.Struct, eq=False):
    """The lists of one registry: encoded pages by list, revision and position, and what may be read by scopes and
    hidden schemes."""

    pages: dict[tuple[str, str, int], msgspec.Raw] = {}
    readable: dict[tuple[frozenset[str] | None, frozenset[str]], ReadableResources] = {}


class Capability(msgspec.Struct, frozen=True):
    """A capability that a feature adds by an extension of the protocol.

    name: that of the capability, and of the kind of parts whose list can change
    settings: declared at the extension, and where the revision has extensions at the capability, too
    """

    name: str
    extension: str
    settings: dict[str, Any]


class Server(msgspec.Struct, eq=False, dict=True):
    name: str
    version: str
    registry: Registry
    settings: Settings
    call_timeout: float  # seconds after which any call is ended
    task_after: float  # seconds after which a call becomes a task, if it may
    wake_clients: frozenset[str]  # names of clients that go on during a task and wake their model at its end
    seal: Sealer
    services: ServicePool
    call_tasks: CallTasks
    policy: CallPolicy = msgspec.field(default_factory=CallPolicy)
    shared_notices: NoticeSharing | None = None  # where other servers answer for this one
    remote_tasks: TaskSharing | None = None
    observers: Observers = msgspec.field(default_factory=Observers)  # of each tools/call
    questions: PendingQuestions = msgspec.field(default_factory=PendingQuestions)  # on the server's page
    notifications: Notifications = msgspec.field(default_factory=Notifications)
    streaming: bool = True  # whether progress is sent
    full_structure: bool = False  # structured content also for lean tools
    now: Callable[[], float] = time.time  # the clock by which tokens end, in seconds since the epoch
    trace: Callable[[MethodFunction], MethodFunction] | None = None  # wraps each method, if calls are traced
    note_use: Callable[[str], None] | None = None  # called with the principal at each call
    prepare: Callable[[str], Awaitable[None]] | None = None  # the same, where workspaces are elsewhere
    security_schemes: Callable[[str], list[dict[str, Any]]] | None = None  # scope → securitySchemes, with sign-in
    capabilities: Sequence[Capability] = ()  # beside those of the core
    views: "RegistryViews | None" = None  # None: every client is shown the same; a feature may set it later
    on_refusal: "AsyncHook[[str, str, Rule | None]]" = msgspec.field(default_factory=AsyncHook)
    on_swap: Hook[[Registry, Registry]] = msgspec.field(default_factory=Hook)
    caches: "WeakKeyDictionary[Registry, ListCache]" = msgspec.field(default_factory=WeakKeyDictionary)
    _identities: dict[str, dict[str, Any]] = {}
    _needed_scopes: tuple[Registry | None, frozenset[str]] = None, frozenset()

    def __post_init__(self) -> None:
        self.deadlines = DeadlineTimer(self.call_timeout)
        self.updates = ResourceUpdates(self._watch, WorkspaceUnreachableError)

    def identity(self, revision: Revision) -> dict[str, Any]:
        """Return the server's `Implementation` for `revision`: the same object each time."""
        found = self._identities.get(revision.name)
        if found is None:
            found = serialization.format_implementation(self.name, self.version, revision)
            self._identities[revision.name] = found
        return found

    def registry_for(self, session: Session) -> Registry:
        """Return what this client is shown."""
        return self.registry if self.views is None else self.views.view(session, self.registry)

    def registry_of(self, principal: str) -> Registry:
        """Return what any client of a principal may be shown."""
        return self.registry if self.views is None else self.views.list_own(principal, self.registry)

    def find_resource(self, session: Session, uri: str) -> tuple[Resource, dict[str, str]] | None:
        """Return the resource that serves `uri` to this client, and the values of its variables, or None."""
        found = self.registry_for(session).resource(uri)
        return None if found is None or self._withholds(session.principal, found[0], uri) else found

    def find_watchable(self, principal: str, uri: str) -> tuple[Resource, dict[str, str]] | None:
        """Return the resource that serves `uri` to some client of the principal, or None, also if the principal has
        switched it off."""
        found = self.registry_of(principal).resource(uri)
        if found is None or (self.views is not None and self.views.hides(principal, found[0])):
            return None
        return None if self._withholds(principal, found[0], uri) else found

    def _withholds(self, principal: str, resource: Resource, uri: str) -> bool:
        is_far = resource.is_template and resource.relay is not None
        return is_far and self.views is not None and self.views.withholds(principal, resource, uri)

    def find_withheld(self, session: Session, kind: str, key: Any) -> "WithheldPart | None":
        """Return a part of this name or URI that another server lists and that is not served, or None."""
        if self.views is None or not isinstance(key, str):
            return None
        return self.views.find_withheld(session, self.registry, kind, key)

    def list_cache(self, registry: Registry) -> ListCache:
        """Return the lists of a registry: what is kept of them as long as it is."""
        found = self.caches.get(registry)
        if found is None:
            found = self.caches[registry] = ListCache()
        return found

    def needed_scopes(self) -> frozenset[str]:
        """Return every scope that a request may need: the same object until another registry is served."""
        if self._needed_scopes[0] is not self.registry:
            self._needed_scopes = self.registry, needed_scopes(self.registry)
        return self._needed_scopes[1]

    def list_kinds(self) -> tuple[str, ...]:
        """Return the kinds of lists that can change."""
        return (*LISTS, *(each.name for each in self.capabilities))

    def close_session(self, session: Session) -> None:
        for uri in session.subscribed:
            self.updates.unsubscribe(session, session.principal, uri)
        self.notifications.sessions.discard(session)
        self.services.forget_session(session)
        if self.views is not None:
            self.views.end_session(session)

    def is_woken(self, client: str) -> bool:
        """Return whether the client goes on during a task, and wakes its model at its end."""
        return client in self.wake_clients or EVERY_CLIENT in self.wake_clients

    def swap_registry(self, registry: Registry) -> None:
        """Serve `registry`, and announce the lists that have changed. Calls in flight finish with the old one."""
        before, self.registry = self.registry, registry
        self._needed_scopes = None, frozenset()
        for kind in self.list_kinds():
            new, old = registry.of_kind(kind), before.of_kind(kind)
            if serialization.fingerprint_list(new) != serialization.fingerprint_list(old):
                self.notifications.announce_list(kind)
        self.on_swap(before, registry)
        if registry.of_kind("resources") != before.of_kind("resources"):
            self.updates.renew()

    def _watch(self, principal: str, uri: str) -> AsyncIterator[object] | None:
        """Return a watch for changes of the principal's resource `uri`, or None if there is none."""
        found = self.find_watchable(principal, uri)
        if found is None:
            return None
        resource, variables = found
        context = Context(self.services.of_principal(principal), NoClient(), time.time())
        if resource.relay is not None:
            return resource.relay.watch(uri, context)
        return resource.watch(variables, context)


def with_prepared_views(server: Server, answer: MethodFunction) -> MethodFunction:
    """Return `answer` for what depends on the parts of other servers."""

    async def prepare_and_answer(views: "RegistryViews", call: Call) -> Any:
        await views.prepare(call.session)
        answered = answer(call)
        return await answered if isawaitable(answered) else answered

    return lambda call: answer(call) if server.views is None else prepare_and_answer(server.views, call)


def with_named_part(
    server: Server,
    parameter: str,
    find: Callable[[Registry, str], Part | tuple[Part, object] | None],
    answer: MethodFunction,
) -> MethodFunction:
    """Return `answer` for requests that name a part. One that this client is not shown may be another server's, of
    which nothing is known yet for a client that can do what this one can. Its scope was not known before, either."""

    def answer_allowed(call: Call) -> Any:
        name = call.params.get(parameter)
        if isinstance(name, str):
            _require_scope(call.session, find(server.registry_for(call.session), name))
        return answer(call)

    prepared = with_prepared_views(server, answer_allowed)

    def answer_named(call: Call) -> Any:
        if server.views is None:
            return answer(call)
        name = call.params.get(parameter)
        registry = server.registry_for(call.session)
        if isinstance(name, str):
            found = find(registry, name)
            if found is None:
                return prepared(call)
            _require_scope(call.session, found)
        call.shown = registry
        return answer(call)

    return answer_named


def _require_scope(session: Session, found: Part | tuple[Part, object] | None) -> None:
    """Raise InvalidRequest if the client lacks the scope of a part."""
    part = found[0] if isinstance(found, tuple) else found
    if part is not None and session.scopes is not None and not session.allows(frozenset((part.scope,))):
        raise InvalidRequest("the access token lacks the scope of this", {"scope": part.scope})
