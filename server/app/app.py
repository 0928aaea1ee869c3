"""Put the parts of a server together, run it, and take it down: the composition root."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgate.server import VERSION, methods
from toolgate.server.app import build, builtin_tools
from toolgate.server.base import progress, run_loop, watch
from toolgate.server.calls.tasks import CallTasks, key_of
from toolgate.server.config.load import CLASSIC_FILE, Config
from toolgate.server.config.secret_file import read_secret
from toolgate.server.events.service import EventService
from toolgate.server.methods.server import Server, ServicePool
from toolgate.server.plugins.loader import LoadedPlugin, PluginLoader
from toolgate.server.plugins.reload import PluginReloader
from toolgate.server.policy.rule_check import RuleCheck
from toolgate.server.protocol.asyncio_tasks import DelayedTasks
from toolgate.server.protocol.errors import UsageError
from toolgate.server.protocol.messages import Notification
from toolgate.server.protocol.session import Session
from toolgate.server.protocol.task import StoredTask
from toolgate.server.state.callback_timer import CallbackTimer, Firing
from toolgate.server.state.callbacks import CallbackStore
from toolgate.server.state.plans import PlanStore
from toolgate.server.state.sealed_state import Sealer
from toolgate.server.state.store import StateError
from toolgate.server.state.stores import open_keys, open_store
from toolgate.server.state.todos import TodoStore
from toolgate.server.telemetry.setup import Telemetry
from toolgate.server.workspaces.workspaces import Workspaces
from toolgate.tools.api.notices import Notices
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.services import CallerState, Services, Settings
from toolgate.tools.builtin import callbacks
from toolgate.tools.builtin.callbacks import INBOX_URI, Firings
from toolgate.tools.builtin.skills import skills
from toolgate.tools.pages.page_reader import PageReader
from toolgate.tools.search.lazy_search import LazySearch
from toolgate.tools.workspace import end_notice
from toolgate.tools.workspace.run_record import TaskEnd
from toolgate.tools.workspace.workspace import Workspace
from toolgate.transports import stdio

if TYPE_CHECKING:
    from toolgate.server.auth.oauth_server.service import AuthorizationService
    from toolgate.server.auth.setup import Access
    from toolgate.server.base.bus.bus import Bus
    from toolgate.server.base.principal import GrantKey
    from toolgate.server.overview.dashboard import Dashboard
    from toolgate.server.overview.health import BackendReport
    from toolgate.server.plugins.isolation.plugin import Isolation
    from toolgate.server.state.working_directories import WorkingDirectories
    from toolgate.server.telemetry.metrics.collector import Metrics
    from toolgate.server.workspaces.retention import WorkspaceCleaner

log = logging.getLogger("toolgate")

LOCAL = "local"  # the one principal over stdio
READ = "tools:read"  # the scope of what is told of a workspace
WORKFLOW = "tools:workflow"  # the scope of what callbacks say, as of SetCallback and the inbox
WAKE_CLIENTS = frozenset(("claude-code",))  # where Claude Code would wait for a task, it declares none
MARGIN = 2.0  # seconds before the hold at which a tool ends by itself with what it has, as the shell does
WATCH_AFTER = 1.0  # seconds after the start: what the first answer does not need waits for it
CLEAN_AFTER = 3.0  # seconds after the start that workspaces are first looked at
PLUGINS_AFTER = 0.1  # seconds after the start that plugins are watched: an edit is to be seen within a second
PLUGINS_DEBOUNCE = 240  # ms that changes of plugins are gathered for while they keep coming
PLUGINS_LOAD = 5.0  # seconds the first request may have to wait for plugins: clients give up on a slow start


class App:
    """One server with all that belongs to it. `run` serves; everything it started has ended when it returns.

    `deployment` is the id of the servers that share --redis, or "" without it.
    """

    def __init__(self, config: Config, deployment: str = "") -> None:
        self.config = config
        self.state = build.state_folder(config)
        self._use = build.lock_state(self.state)
        self.root = build.workspace_root(config)
        self.settings = Settings(hold=config.hold - min(MARGIN, config.hold / 4), any_file=not config.is_remote)
        self.bus = self._create_bus(deployment)
        self.store = open_store(self.state, config.database)
        self.keys = open_keys(self.store, read_secret(config))
        self.replicas = build.build_replicas(config, self.bus)
        self.database_monitor = build.build_database_monitor(self.store) if config.is_remote else None
        self.processes = self.replicas or self.store.open_processes()
        self.clock = CallbackTimer(self.store, self._fire, processes=self.processes)
        options = build.hash_options(config, self.root)
        self.call_tasks = CallTasks(self.store, self.processes, self._serves, server=options)
        self._root_name = "at nodes" if config.node else "" if self.root is None else str(self.root)
        self.places = self._build_places()
        self.rules = build.build_rules(config)
        self.rule_check: RuleCheck | None = None  # from the start on
        self.file_changes = watch.FileChanges()
        self.web = build.build_web(config)
        open_workspaces = build.build_remote_workspaces if config.node else build.build_workspaces
        self.workspaces: Workspaces = open_workspaces(
            config, self.state, self.root, self.file_changes, self._note_task_end, self._who_is_gone, self.store
        )
        limits = build.event_limits(config)
        self.events = EventService(self.store, self.keys, self.workspaces, self._serves, limits)
        if self._signs_in:
            subscribed = build.subscription_limits(config)
            self.events.open_webhooks(build.build_webhook_sender(config), self._find_valid_grants, subscribed)
        self.clock.record = self.events.sources.record_firing
        self.call_tasks.rows.record_end = self.events.sources.record_task_end
        self.page_reader: PageReader = build.build_page_reader(config, self.web, self.workspaces)
        self.search = build.build_search(config, self.web, self.page_reader)
        self.skills = skills.Skills(build.skill_folders(config), self.state / "cache" / "skills.json")
        self._built_in_services: dict[type, Any] = {
            skills.Skills: self.skills,
            PageReader: self.page_reader,
            LazySearch: self.search,
        }
        self.modules = PluginLoader()
        self.isolation: Isolation | None = None
        self.plugins = PluginReloader(
            build.plugin_folders(config),
            self.modules.load,
            self._load_isolated,
            isolate=config.isolate_plugins,
            on_change=self._registry_changed,
        )
        # over stdio standard error may be the terminal of the client, which draws on it itself
        self.progress = progress.terminal_progress(config.environment if config.is_remote else {})
        with self.progress.show("reading skills"):
            self._take_skills()
        self.observation = Telemetry(
            config,
            self.state,
            self.workspaces,
            sandboxed=self.workspaces.level != "none",
            registry=lambda: self.server.registry,
            shared=(self.store, self.keys) if config.database is not None else None,
            bus=self.bus if config.redis is not None else None,
        )
        self.server = self._build_server()
        self._share()
        self.cleaner = build.build_cleaner(config, self.state, self.root, self._who_is_gone, self._let_go)
        if self.places is not None:
            self.server.services.find_state = self.places.get_place
        if self.cleaner is not None:
            self.server.note_use = partial(self._note_use, self.cleaner)
        elif config.node:
            self.server.prepare = partial(self.workspaces.prepare, on_message=self._note_workspace)
            self.events.watchers.prepare = self.server.prepare
        self.server.questions.on_answer = self.events.sources.emit_answer
        self.server.now = self.store.now
        self.call_tasks.on_read = self._note_task_read
        self.call_tasks.on_lost = self.server.observers.task_lost
        self.dispatcher = methods.build_dispatcher(self.server)
        if config.classic.unknown_keys:
            log.info("%s: ignored %s", CLASSIC_FILE, ", ".join(map(repr, config.classic.unknown_keys)))
        self._authorization: AuthorizationService | None = None
        self._later = DelayedTasks()
        self._end_by = 0.0  # loop time: what is deferred may run until then

    async def serve_stdio(self, source: int, sink: int) -> None:
        """Serve the client at the other end of two descriptors until it ends or a signal comes."""
        run_loop.settle_memory()
        session = Session(LOCAL, transport="stdio")
        try:
            await self.start()
            await stdio.serve(self.dispatcher, session, source, sink, self.config.grace, self._ending)
        finally:
            await self.close()

    async def serve_http(self, announce: Callable[[str, str, str], None] | None = None) -> None:
        """Serve HTTP clients until a signal comes. It begins with `announce(sandbox, public_url, pairing_link)`."""
        from toolgate.server.app.http_app import HttpApp  # start-up: stdio does without all of HTTP
        from toolgate.server.state.sessions import SessionRecords

        access = self._access if self._signs_in else None
        records = None
        if self.replicas is None:
            records = SessionRecords(self.store, self.processes, self._root_name)
        site = HttpApp(
            self.config,
            self.server,
            self.dispatcher,
            access,
            end_background=self._end_principal,
            release_calls=self.workspaces.release_calls,
            overview=self._build_overview(),
            sandbox=self.workspaces.level,
            metrics=self._build_metrics(),
            records=records,
            bus=self.bus if self.config.redis is not None else None,
            announce=partial(announce, self.workspaces.describe()) if announce is not None else None,
        )
        run_loop.settle_memory()
        interrupted, _ = run_loop.cancel_on_signal()  # until the transports listen for signals themselves
        try:
            if self.bus is not None:
                await self.bus.start()
            site.listen()
            await self.start()
            self._later.start(self._open_state, 0.0)
            if self.database_monitor is not None:
                self._later.start(self.database_monitor.run, 0.0)
            await site.serve()
        except asyncio.CancelledError:
            if not interrupted.is_set():
                raise
            log.info("ended before it served")
        finally:
            await self.close()

    def _build_server(self) -> Server:
        return Server(
            name=self.config.name,
            version=VERSION,
            registry=self._build_registry(),
            settings=self.settings,
            call_timeout=self.config.hold,
            seal=Sealer(self.keys.find("request-state"), now=self.store.now),
            services=ServicePool(self._create_services),
            call_tasks=self.call_tasks,
            events=self.events,
            task_after=min(self.config.task_after, self.settings.hold / 2),
            wake_clients=frozenset(self.config.wake_client) or WAKE_CLIENTS,
            observers=self.observation.observers(),
            trace=self.observation.traces.trace_method if self.observation.traces is not None else None,
            streaming=self.config.classic.streaming,
            full_structure=self.config.structured_output == "full",
            security_schemes=self._security_schemes(),
            policy=build.build_policy(self.config, self.rules, self.store, self.bus),
        )

    def _share(self) -> None:
        """Notify the clients of all replicas, and share tasks and questions, with --redis; else of this process."""
        if self.bus is None or self.replicas is None:
            notifications, updates = self.server.notifications, self.server.updates
            self._notify_updated: Callable[[str, str], None] = updates.notify
            self._notify_list_changed: Callable[[str], None] = notifications.notify_resource_list
            self._log_to_principal: Callable[[str, str, str, str, str], object] = notifications.log_to_principal
            return
        from toolgate.server.calls.remote_tasks import RemoteTasks  # start-up: only replicas have it
        from toolgate.server.calls.shared_engine_health import share_engine_health
        from toolgate.server.calls.shared_notices import SharedNotices
        from toolgate.server.calls.shared_questions import SharedQuestions
        from toolgate.server.protocol.shared_notifications import SharedNotifications

        shared = SharedNotifications(self.bus, self.server.notifications, self.server.updates)
        self._notify_updated = shared.notify_updated
        self._notify_list_changed = shared.notify_resource_list
        self._log_to_principal = shared.log_to_principal
        self.server.shared_notices = SharedNotices(self.bus)
        self.server.services.share_notices = self.server.shared_notices.attach
        self.server.questions = SharedQuestions(self.bus, self.replicas.recent_names)
        share_engine_health(self.bus, self.search.load().health)
        self.server.remote_tasks = RemoteTasks(self.bus, self.call_tasks, self.server.notifications)
        self.replicas.on_living = self.events.share(self.bus).note_living

    def _note_task_read(self, kept: StoredTask) -> None:
        """A client has read the end of a task: its notice is needless."""
        key = key_of(kept.id)
        if key is not None:
            self.server.services.notices(kept.principal).drop(key)

    def _note_task_end(self, principal: str, end: TaskEnd) -> None:
        run = end.run
        if (run.status != "killed" or run.reason is not None) and not end.is_earlier:  # what the model does not know
            end_notice.add(self.server.services.notices(principal), run)
        self.events.ends.report(principal, end)

    def _build_overview(self) -> "Dashboard":
        from toolgate.server.overview.dashboard import Dashboard  # start-up: stdio does without

        feed, trail = self.observation.recent_calls, self.observation.own_entries()
        assert feed is not None  # HTTP is served
        backends: dict[str, Callable[[], BackendReport]] = {}
        if self.database_monitor is not None:
            backends["PostgreSQL"] = self.database_monitor.health
        if self.bus is not None and self.config.redis is not None:
            backends["Redis"] = self.bus.health
        return Dashboard(self.server, self.store, self.clock, self.workspaces, feed, trail, backends)

    async def start(self) -> None:
        """Upgrade the state if it has to be, load the plugins, and start what runs beside the requests."""
        await self.store.prepare()
        await self.keys.load(signs_in=self._signs_in)
        self._later.start(self.keys.follow, 0.0)
        if self.places is not None:
            await self.places.load()
        if self.config.plugins:
            try:
                with self.progress.show("loading plugins"):
                    await self.plugins.reload(PLUGINS_LOAD)
            except Exception:  # what is built in is served all the same
                log.exception("the plugin folders can't be looked at")
            follow = partial(watch.watch_folders, "plugin", self.plugins.roots, self.plugins.reload, PLUGINS_DEBOUNCE)
            self._later.start(follow, PLUGINS_AFTER)
        callers = await build.list_callers(self.config, self.store, self.rules)
        self.rule_check = RuleCheck(self.rules, partial(build.find_rule_names, self.config, callers, self.plugins))
        self.rule_check.refuse(self.server.registry)
        self._later.start(partial(watch.watch_skills, self.skills, self._skills_changed), WATCH_AFTER)
        for job in self.workspaces.list_jobs():
            self._later.start(job, WATCH_AFTER)
        self.events.log.start()
        self._later.start(self.events.run_deliveries, 0.0)
        self._later.start(self.events.run, CLEAN_AFTER)
        self._later.start(self.clock.start, WATCH_AFTER)
        self._later.start(self.call_tasks.resume_soon, WATCH_AFTER)
        if self.replicas is not None:
            self._later.start(partial(self.replicas.follow, self._take_over), WATCH_AFTER)
        if self.cleaner is not None:
            self._later.start(self.cleaner.run, CLEAN_AFTER)

    async def _take_over(self) -> None:
        """Take over what dead replicas had to do."""
        self.clock.wake()
        await self.call_tasks.resume()

    def _create_bus(self, deployment: str) -> "Bus | None":
        """Return the bus of this server and its replicas, or None over stdio. Raises UsageError."""
        if not self.config.is_remote:
            return None
        from toolgate.server.base.bus.open_bus import create_bus  # start-up: stdio does without
        from toolgate.server.base.bus.settings import BusSettings, name_prefix

        try:
            settings = BusSettings(prefix=name_prefix(deployment), meets_earlier=True)
            return create_bus(self.config.redis, settings, on_lost=self._note_lost)
        except (ValueError, ModuleNotFoundError) as error:
            raise UsageError(f"--redis: {error}") from None

    def _note_lost(self) -> None:
        """End at once, and change nothing any more: another server may have taken over this one's work."""
        log.critical("this server ends: another one found it dead, and may have taken over its work")
        run_loop.exit_now(1)

    def _build_places(self) -> "WorkingDirectories | None":
        if not self.config.is_remote:
            return None  # a client over stdio starts fresh
        from toolgate.server.state.working_directories import WorkingDirectories  # start-up: stdio does without

        return WorkingDirectories(self.store, self._root_name, is_shared=self.replicas is not None)

    async def _open_state(self) -> None:
        """The first session is written down at once: its client must not wait until a library is loaded."""
        with contextlib.suppress(StateError):  # the log has it, and each call that needs the state fails with it
            await self.store.read(lambda _: None)

    @property
    def _signs_in(self) -> bool:
        """Whether callers have to say who they are."""
        return bool(self.config.is_remote and self.config.auth != "none")

    def _access(self, public_url: str) -> "Access":
        from toolgate.server.auth import scopes
        from toolgate.server.auth import setup as access  # start-up: stdio does without all of OAuth

        assert self.bus is not None  # HTTP is served
        opened = access.open_access(
            self.config,
            public_url,
            self.keys,
            self.store,
            lambda: scopes.list_served_scopes(self.server.registry),
            self.web,
            self.bus,
        )
        self._authorization = opened.authorization
        return opened

    async def _find_valid_grants(self, grants: "Collection[GrantKey]") -> "Collection[GrantKey]":
        """Return the grants that still allow access. Of an external issuer's revocations the server learns nothing."""
        if self._authorization is None:
            return grants
        return await self._authorization.find_valid_keys(grants)

    def _security_schemes(self) -> Callable[[str], list[dict[str, Any]]] | None:
        if not self._signs_in:
            return None
        from toolgate.server.auth import scopes  # start-up, as above

        return scopes.security_schemes

    def _ending(self) -> None:
        """The end has begun: subscriptions are not waited for, they are told, here by a cancellation as well
        (MCP 2026-07-28 basic/patterns/cancellation)."""
        self._end_by = asyncio.get_running_loop().time() + self.config.grace
        for listener in self.server.notifications.end_subscriptions():
            listener.channel.send(Notification("notifications/cancelled", {"requestId": listener.id}))
        self.events.streams.end_all()

    async def close(self) -> None:
        """End all that was started: background work first, then every process, then the state."""
        await self._later.close()
        self.server.questions.close()
        await self.call_tasks.close(max(0.0, self._end_by - asyncio.get_running_loop().time()))
        sent = asyncio.ensure_future(self.observation.flush_traces())
        self.server.updates.close()
        await self.file_changes.close()
        self.plugins.close()
        self.modules.close()
        if self.isolation is not None:
            await self.isolation.close()
        await self.clock.stop()
        await self.workspaces.close()
        await self.events.close()
        await self.page_reader.close()
        await self.web.close()
        await self.observation.aclose()
        await self.store.aclose()
        os.close(self._use)
        await sent
        if self.bus is not None:
            await self.bus.close()

    def _build_metrics(self) -> "Metrics":
        """The metrics, with all that is behind the transports."""
        from toolgate.server.telemetry.metrics import gauges  # start-up, as above

        metrics = self.observation.metrics
        assert metrics is not None  # HTTP is served
        metrics.add_rows(
            gauges.server_rows(
                self.server.notifications.subscriptions,
                self.server.call_tasks.work,
                self.workspaces,
                self.search.load(),
                self.page_reader,
                self.workspaces.level,
            )
        )
        if self.events.subscriptions is not None:
            metrics.add_rows(gauges.webhook_rows(self.events.subscriptions))
        if self.bus is not None and self.replicas is not None:
            metrics.add_rows(gauges.bus_rows(self.bus.health))
        if self.database_monitor is not None:
            metrics.add_rows(gauges.database_rows(self.database_monitor.health))
        return metrics

    def _build_registry(self) -> Registry:
        registry = self.plugins.registry(self.built_in, self.skill_parts).without(self.config.classic.hidden_tools)
        self.events.bind_types(registry)
        return registry

    async def _load_isolated(self, file: Path) -> LoadedPlugin:
        """Load a plugin in a process of its own."""
        from toolgate.server.plugins.isolation.plugin import Isolation  # start-up: most plugins are not isolated

        if self.isolation is None:
            config = self.config
            self.isolation = Isolation(config.command_environment, verbose=config.verbose, style=config.log_format)
        return await self.isolation.load(file)

    def _registry_changed(self) -> None:
        self.server.swap_registry(self._build_registry())
        if self.rule_check is not None:
            self.rule_check.warn(self.server.registry)

    def _skills_changed(self) -> None:
        self._take_skills()
        self._registry_changed()

    def _take_skills(self) -> None:
        # first: what comes later is a change, and seen as one
        self.built_in = Registry(builtin_tools.builtin_parts(self.skills))
        self.skill_parts = builtin_tools.skill_parts(self.skills)

    def _create_services(self, principal: str, place: CallerState, notices: Notices) -> Services:
        workspace = self.workspaces.get_or_open(principal)
        firings = CallbackStore(self.store, self.clock, principal, place.key)
        return Services(
            principal=principal,
            caller_state=place,
            workspace=workspace,
            todos=TodoStore(self.store, principal, place.key, self.events.sources.record_todo_change),
            plan=PlanStore(self.store, principal, place.key, place),
            callbacks=firings,
            web=self.page_reader.get_fetcher(principal),
            settings=self.settings,
            notify_updated=partial(self._notify_updated, principal),
            notify_list_changed=partial(self._notify_list_changed, principal),
            watch_path=partial(self.workspaces.watch_path, principal),
            built_in=self._built_in_services | {Workspace: workspace, Notices: notices, Firings: firings},
        )

    def _serves(self, principal: str) -> bool:
        """Return whether this process may resume a principal's work. Remote callers' work must not run under the local
        user's options, nor the local user's where callers sign in. With `--auth none` the local user calls alone."""
        return (principal == LOCAL) == (not self.config.is_remote or self.config.auth == "none")

    async def _end_principal(self, principal: str) -> None:
        """End the callbacks, tasks, questions, approvals and commands of a principal who was removed."""
        from toolgate.server.policy.remembered_approvals import RememberedApprovals  # start-up: people rarely leave

        await CallbackStore(self.store, self.clock, principal, "").cancel(None)
        await self.call_tasks.cancel_all(principal)
        self.server.questions.drop_all(principal)
        await self.events.forget(principal)
        approvals = self.server.policy.remembered or RememberedApprovals(self.store)  # of a start with --approve
        await approvals.end_all(principal)
        await self.workspaces.kill(principal)

    async def _who_is_gone(self) -> set[str] | None:
        if self._authorization is None:
            return None
        return await self._authorization.revoke_barred_people()

    async def _let_go(self, principal: str) -> None:
        """End all that a principal has running, and forget where it worked: its next call starts fresh."""
        if await self.workspaces.forget(principal):
            self.server.services.forget(principal)
            if self.places is not None:
                await self.places.forget(principal)

    def _note_use(self, cleaner: "WorkspaceCleaner", principal: str) -> None:
        word = cleaner.note_call(principal)
        if word is not None:
            self._note_workspace(principal, word)

    def _note_workspace(self, principal: str, word: str) -> None:
        self.server.services.notices(principal).add("workspace", word, READ)

    def _fire(self, firing: Firing) -> None:
        """A callback fired: to the session that set it, onto the principal's next result, and in the inbox."""
        text = callbacks.fired_text(firing.slot, firing.message)
        self.server.services.notices(firing.principal).add(callbacks.notice_key(firing.slot), text, WORKFLOW)
        self._log_to_principal(firing.principal, firing.session, "notice", text, WORKFLOW)
        self._notify_updated(firing.principal, INBOX_URI)
