"""Hold the parts of one server: each is made when it is first used, and a feature may replace or wrap it before.

A part comes by calling its slot. What a part needs comes by its constructor, from other slots, so their order in this
file means nothing. A callback of a part is a method here, since it uses parts that may be made later.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from toolgate.server import methods
from toolgate.server.app import build
from toolgate.server.app.hooks import HostHooks
from toolgate.server.app.served_parts import ServedParts
from toolgate.server.app.slot import Slot
from toolgate.server.app.state_host import StateHost
from toolgate.server.base.limits.rate_limit import CallCounts, CallRateLimiter, MemoryCallCounts
from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.server.base.task import StoredTask
from toolgate.server.base.version import VERSION
from toolgate.server.base.watch import FileChanges
from toolgate.server.calls.notifier import LocalNotifier, Notifier
from toolgate.server.calls.observers import Observers
from toolgate.server.calls.pending_questions import MemoryQuestionStore, PendingQuestions, QuestionStore
from toolgate.server.calls.recent_calls import CallFeed, RecentCalls
from toolgate.server.calls.sharing import NoticeSharing, TaskSharing
from toolgate.server.calls.tasks import CallTasks, key_of
from toolgate.server.config.load import Config
from toolgate.server.methods import lifecycle
from toolgate.server.methods.server import Capability, ListMethods, Server, ServicePool
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.notifications import Notifications
from toolgate.server.state.keys.sealed_state import Sealer
from toolgate.server.state.rows.callback_timer import CallbackTimer, Firing
from toolgate.server.state.rows.callbacks import CallbackStore
from toolgate.server.state.rows.plans import PlanStore
from toolgate.server.state.rows.todos import TodoStore
from toolgate.tools.api.context.notices import Notices
from toolgate.tools.api.context.services import CallerState, Services, Settings
from toolgate.tools.builtin import callbacks
from toolgate.tools.builtin.callbacks import INBOX_URI, Firings
from toolgate.tools.builtin.skills.skills import Skills
from toolgate.tools.reading.pages.page_reader import PageReader
from toolgate.tools.reading.search.lazy_search import LazySearch
from toolgate.tools.workspace.commands import end_notice
from toolgate.tools.workspace.output.run_record import TaskEnd
from toolgate.tools.workspace.workspace import Workspace
from toolgate.tools.workspace.workspaces import Workspaces

if TYPE_CHECKING:
    from collections.abc import Iterable

    from toolgate.server.app.session_opener import OpenSessions
    from toolgate.server.auth.login.providers import IdentityProvider
    from toolgate.server.auth.oauth_server.service import AuthorizationService
    from toolgate.server.auth.revocation_watch import GrantHolder
    from toolgate.server.auth.setup import Access
    from toolgate.server.base.principals.principal import GrantKey
    from toolgate.server.base.reports.client_settings import ClientSettings
    from toolgate.server.base.reports.health import PartHealth
    from toolgate.server.base.reports.metric_rows import MetricRow
    from toolgate.server.base.reports.page_part import PagePart
    from toolgate.server.calls.observers import Observer
    from toolgate.server.protocol.registry_views import RegistryViews
    from toolgate.server.protocol.session import Session
    from toolgate.server.state.audit.store import AuditStore, EntryReader
    from toolgate.server.state.rows.working_directories import WorkingDirectories
    from toolgate.server.workspaces.retention import WorkspaceCleaner
    from toolgate.tools.api.registry import Part, Registry
    from toolgate.transports.http.wire.request import Handler
    from toolgate.transports.web.http import Request, WebEndpoint
    from toolgate.transports.web.page_context import PageContext, Visitor

READ = "tools:read"  # the scope of what is told of a workspace
WORKFLOW = "tools:workflow"  # the scope of what callbacks say, as of SetCallback and the inbox
WAKE_CLIENTS = frozenset(("claude-code",))  # where Claude Code would wait for a task, it declares none
MARGIN = 2.0  # seconds before the hold at which a tool ends by itself with what it has, as the shell does

log = logging.getLogger("toolgate")


class Job(msgspec.Struct, frozen=True):
    """Work beside the requests, which begins so many seconds after the start."""

    work: Callable[[], Coroutine[Any, Any, None]]
    after: float


class AddRoutes(Protocol):
    """Adds pages for people. It is called once, when it is known where they are served."""

    def __call__(
        self, pages: "PageContext", identify: "Callable[[Request], Awaitable[Visitor | None]]"
    ) -> "Iterable[tuple[str, WebEndpoint]]":
        """Return each path with its endpoint. `identify` returns who sent a request, or None for a stranger."""
        ...


class AppHost(StateHost):
    """The parts of one server. Features take slots and add to the lists before the first part is made.

    where: what names the folder of all principals, or the machines that have theirs; "" if each has its own
    """

    def __init__(self, config: Config, *, upgrades: bool = True, within: float | None = None) -> None:
        super().__init__(config, upgrades=upgrades, within=within)
        # -- the lists
        self.jobs: list[Job] = []
        self.health_parts: list[Callable[[], PartHealth]] = []  # what /ready and the page name
        self.metric_rows: list[Callable[[], list[MetricRow]]] = []
        self.observers: list[Callable[[], Sequence[Observer]]] = []  # of each call
        self.documents: list[Callable[[], tuple[str, Handler]]] = []  # paths that HTTP answers beside the transports
        self.parts: list[Part] = []  # built-in parts, beside those of the core
        self.part_sources: list[Callable[[Registry], Sequence[Part]]] = []  # parts that change, beside the registry's
        self.methods: list[ListMethods] = []
        self.capabilities: list[Capability] = []
        self.page_parts: list[Callable[[], PagePart]] = []
        self.page_routes: list[AddRoutes] = []
        self.grant_holders: list[GrantHolder] = []  # what a revoked grant may leave open
        self.on = HostHooks()  # what features can hear of
        # -- workspaces
        self.root = Slot("root", partial(build.workspace_root, config))
        self.where = Slot("where", lambda: str(self.root() or ""))
        self.file_changes = Slot("file_changes", FileChanges)
        self.workspaces: Slot[Workspaces] = Slot("workspaces", self._open_workspaces)
        self.prepare: Slot[Callable[[str], Awaitable[None]] | None] = Slot("prepare", lambda: None)
        self.directories = Slot("directories", self._create_directories)
        self.cleaner = Slot("cleaner", self._create_cleaner)
        self.report_end: Slot[Callable[[str, TaskEnd], None]] = Slot("report_end", lambda: _confirm_end)
        # -- tools
        self.web = Slot("web", partial(build.build_web, config))
        self.page_reader: Slot[PageReader] = Slot("page_reader", lambda: build.build_page_reader(config, self.web()))
        self.search = Slot("search", lambda: build.build_search(config, self.web(), self.page_reader()))
        self.skills = Slot("skills", lambda: Skills(build.skill_folders(config), self.folder() / "cache/skills.json"))
        self.mount_names: list[str] = []  # of the servers whose tools come later, for rules
        self.views: Slot[RegistryViews | None] = Slot("views", lambda: None)
        self.served = Slot("served", self._create_served)
        # -- calls
        self.rules = Slot("rules", partial(build.build_rules, config))
        self.call_counts: Slot[CallCounts] = Slot("call_counts", MemoryCallCounts)
        self.limiter = Slot("limiter", self._create_limiter)
        self.clock = Slot("clock", self._create_clock)
        self.call_tasks = Slot("call_tasks", self._create_call_tasks)
        self.remote_tasks: Slot[TaskSharing | None] = Slot("remote_tasks", lambda: None)
        self.question_store: Slot[QuestionStore] = Slot("question_store", MemoryQuestionStore)
        self.questions = Slot("questions", self._create_questions)
        self.shared_notices: Slot[NoticeSharing | None] = Slot("shared_notices", lambda: None)
        self.notifications = Slot("notifications", Notifications)
        self.notifier: Slot[Notifier] = Slot("notifier", self._create_notifier)
        # -- what observes them
        self.audit_rows: Slot[AuditStore | None] = Slot("audit_rows", lambda: None)  # PostgreSQL fills it
        self.own_entries: Slot[EntryReader | None] = Slot("own_entries", lambda: None)  # a person's, for the first page
        self.trace: Slot[Callable[[Any], Any] | None] = Slot("trace", lambda: None)  # wraps each method
        self.recent_calls = Slot("recent_calls", lambda: RecentCalls() if config.is_remote else None)
        self.shown_calls: Slot[CallFeed | None] = Slot("shown_calls", self.recent_calls)
        # -- the server
        self.list_clients: Slot[Callable[[str], ClientSettings]] = Slot("list_clients", build.find_clients)
        self.settings = Settings(hold=config.hold - min(MARGIN, config.hold / 4), any_file=not config.is_remote)
        self.server = Slot("server", self._create_server)
        self.dispatcher: Slot[Dispatcher] = Slot("dispatcher", self._create_dispatcher)
        self.open_sessions: Slot[OpenSessions] = Slot("open_sessions", self._create_session_opener)
        self._authorization: AuthorizationService | None = None  # from the first page's address on
        self.identity_providers: Sequence[IdentityProvider] = ()  # likewise

    @property
    def signs_in(self) -> bool:
        """Whether callers have to say who they are."""
        return bool(self.config.is_remote and self.config.auth != "none")

    @property
    def has_sign_in_page(self) -> bool:
        """Whether people reach the first page: with an outside issuer they have no way to sign in there."""
        return not self.signs_in or self._authorization is not None

    def open_access(self, public_url: str) -> "Access":
        """Open what people sign in with."""
        from toolgate.server.auth import setup as access  # start-up: stdio does without all of OAuth
        from toolgate.server.base.principals import scopes

        bus = self.bus()
        assert bus is not None  # HTTP is served
        opened = access.open_access(
            self.config,
            public_url,
            self.keys(),
            self.store(),
            lambda: scopes.list_served_scopes(self.server().registry),
            self.web(),
            bus,
            self.create_counters(),
        )
        self._authorization = opened.authorization
        self.identity_providers = list(opened.sign_in.providers.values()) if opened.sign_in is not None else []
        return opened

    async def end_principal(self, principal: str) -> None:
        """End the callbacks, tasks, questions, approvals and commands of a principal who was removed."""
        from toolgate.server.calls.policy.remembered_approvals import (
            RememberedApprovals,  # start-up: people rarely leave
        )

        await CallbackStore(self.store(), self.clock(), principal, "").cancel(None)
        await self.call_tasks().cancel_all(principal)
        self.questions().drop_all(principal)
        await self.on.removal(principal)
        approvals = self.server().policy.remembered or RememberedApprovals(self.store())  # of a start with --approve
        await approvals.end_all(principal)
        await self.workspaces().kill(principal)

    async def find_gone(self) -> set[str] | None:
        """Return the principals who were removed, or None if that is not known here."""
        return None if self._authorization is None else await self._authorization.revoke_barred_people()

    async def find_valid_grants(self, grants: "Collection[GrantKey]") -> "Collection[GrantKey]":
        """Return the grants that still allow access. Of an external issuer's revocations the server learns nothing."""
        if self._authorization is None:
            return grants
        return await self._authorization.find_valid_keys(grants)

    def note_workspace(self, principal: str, word: str) -> None:
        """Tell the principal's model of its workspace."""
        self.server().services.notices(principal).add("workspace", word, READ)

    def serves(self, principal: str) -> bool:
        """Return whether this process may resume a principal's work. Remote callers' work must not run under the local
        user's options, nor the local user's where callers sign in. With `--auth none` the local user calls alone."""
        return (principal == LOCAL_NAME) == (not self.signs_in)

    async def resume_dead(self) -> None:
        """Take over what dead processes had to do."""
        self.clock().wake()
        await self.call_tasks().resume()

    def note_task_end(self, principal: str, end: TaskEnd) -> None:
        """Tell the principal's model of the end of a background task, and report it."""
        run = end.run
        if (run.status != "killed" or run.reason is not None) and not end.is_earlier:  # what the model does not know
            end_notice.add(self.server().services.notices(principal), run)
        self.report_end()(principal, end)

    async def share_session(self, session: "Session", uris: "Iterable[str]") -> None:
        """Let this process notify a session of other replicas, whose subscriptions are now these."""
        await lifecycle.share_session(self.server(), session, uris)

    # -- the defaults

    def _create_session_opener(self) -> "OpenSessions":
        from toolgate.server.app.session_opener import LocalSessionOpener  # start-up: stdio does without
        from toolgate.server.state.rows.sessions import SessionRecords

        return LocalSessionOpener(self.server(), SessionRecords(self.store(), self.processes(), self.where()))

    def _open_workspaces(self) -> Workspaces:
        return build.build_workspaces(self.config, self.folder(), self.root(), self.file_changes(), self.note_task_end)

    def _create_directories(self) -> "WorkingDirectories | None":
        if not self.config.is_remote:
            return None  # a client over stdio starts fresh
        from toolgate.server.state.rows.working_directories import WorkingDirectories  # start-up: stdio does without

        return WorkingDirectories(self.store(), self.where(), is_shared=self.is_shared)

    def _create_cleaner(self) -> "WorkspaceCleaner | None":
        return build.build_cleaner(self.config, self.folder(), self.root(), self.find_gone, self._let_go)

    def _create_served(self) -> ServedParts:
        return ServedParts(
            self.config,
            self.skills(),
            self.parts,
            self.part_sources,
            self.on.registry,
            lambda registry: self.server().swap_registry(registry),
        )

    def _create_limiter(self) -> "CallRateLimiter | None":
        most = build.call_limits(self.config)
        return CallRateLimiter(most, self.call_counts()) if most is not None and any(most.values()) else None

    def _create_clock(self) -> CallbackTimer:
        return CallbackTimer(self.store(), self._fire, processes=self.processes(), record=self.on.firing)

    def _create_call_tasks(self) -> CallTasks:
        return CallTasks(
            self.store(),
            self.processes(),
            self.serves,
            server=build.hash_options(self.config, self.where()),
            notify=self._notify_task,
            record_end=self.on.task_end,
            on_read=self._note_task_read,
            on_lost=lambda kept: self.server().observers.task_lost(kept),
        )

    def _create_questions(self) -> PendingQuestions:
        return PendingQuestions(on_answer=self.on.answer, store=self.question_store())

    def _create_notifier(self) -> Notifier:
        return LocalNotifier(self.notifications(), self.server().updates)

    def _create_observers(self) -> Observers:
        observers = [observer for list_observers in self.observers for observer in list_observers()]
        calls = self.recent_calls()
        return Observers([*observers, calls] if calls is not None else observers)

    def _create_server(self) -> Server:
        config, cleaner = self.config, self.cleaner()
        directories, shared_notices = self.directories(), self.shared_notices()
        return Server(
            name=config.name,
            version=VERSION,
            registry=self.served().registry,
            settings=self.settings,
            call_timeout=config.hold,
            seal=Sealer(self.keys().find("request-state"), now=self.store().now),
            services=ServicePool(
                self._create_services,
                directories.get_place if directories is not None else lambda principal: CallerState(),
                (lambda _: Notices()) if shared_notices is None else shared_notices.create_notices,
            ),
            call_tasks=self.call_tasks(),
            capabilities=self.capabilities,
            views=self.views(),
            on_refusal=self.on.refusal,
            on_swap=self.on.swap,
            task_after=min(config.task_after, self.settings.hold / 2),
            wake_clients=frozenset(config.wake_client) or WAKE_CLIENTS,
            observers=self._create_observers(),
            trace=self.trace(),
            streaming=config.classic.streaming,
            full_structure=config.structured_output == "full",
            security_schemes=self._find_security_schemes(),
            policy=build.build_policy(config, self.rules(), self.store(), self.bus(), self.limiter()),
            shared_notices=shared_notices,
            remote_tasks=self.remote_tasks(),
            questions=self.questions(),
            notifications=self.notifications(),
            now=self.store().now,
            note_use=partial(self._note_use, cleaner) if cleaner is not None else None,
            prepare=self.prepare(),
        )

    def _create_dispatcher(self) -> Dispatcher:
        server = self.server()
        return methods.build_dispatcher(server, [list_methods(server) for list_methods in self.methods])

    def _create_services(self, principal: str, place: CallerState, notices: Notices) -> Services:
        workspace, notifier = self.workspaces().get_or_open(principal), self.notifier()
        firings = CallbackStore(self.store(), self.clock(), principal, place.key)
        built_in: dict[type, Any] = {
            Skills: self.skills(),
            PageReader: self.page_reader(),
            LazySearch: self.search(),
            Workspace: workspace,
            Notices: notices,
            Firings: firings,
        }
        return Services(
            principal=principal,
            caller_state=place,
            workspace=workspace,
            todos=TodoStore(self.store(), principal, place.key, self.on.todo_change),
            plan=PlanStore(self.store(), principal, place.key, place),
            callbacks=firings,
            web=self.page_reader().get_fetcher(principal),
            settings=self.settings,
            notify_updated=partial(notifier.notify_updated, principal),
            notify_list_changed=partial(notifier.notify_resource_list, principal),
            watch_path=partial(self.workspaces().watch_path, principal),
            built_in=built_in,
        )

    def _find_security_schemes(self) -> "Callable[[str], list[dict[str, Any]]] | None":
        if not self.signs_in:
            return None
        from toolgate.server.base.principals import scopes  # start-up: stdio does without

        return scopes.security_schemes

    # -- what parts call

    def _notify_task(self, kept: StoredTask) -> bool:
        remote = self.remote_tasks()
        return (self.notifications().notify_task if remote is None else remote.notify)(kept)

    def _note_task_read(self, kept: StoredTask) -> None:
        """A client has read the end of a task: its notice is needless."""
        key = key_of(kept.id)
        if key is not None:
            self.server().services.notices(kept.principal).drop(key)

    async def _let_go(self, principal: str) -> None:
        """End all that a principal has running, and forget where it worked: its next call starts fresh."""
        if await self.workspaces().forget(principal):
            self.server().services.forget(principal)
            if (directories := self.directories()) is not None:
                await directories.forget(principal)

    def _note_use(self, cleaner: "WorkspaceCleaner", principal: str) -> None:
        word = cleaner.note_call(principal)
        if word is not None:
            self.note_workspace(principal, word)

    def _fire(self, firing: Firing) -> None:
        """A callback fired: to the session that set it, onto the principal's next result, and in the inbox."""
        text, notifier = callbacks.fired_text(firing.slot, firing.message), self.notifier()
        self.server().services.notices(firing.principal).add(callbacks.notice_key(firing.slot), text, WORKFLOW)
        notifier.log_to_principal(firing.principal, firing.session, "notice", text, WORKFLOW)
        notifier.notify_updated(firing.principal, INBOX_URI)


def _confirm_end(_principal: str, end: TaskEnd) -> None:
    """Nobody waits for the end of a background task."""
    end.confirm()
