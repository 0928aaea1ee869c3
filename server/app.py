"""The composition root: builds a server out of a configuration, runs it, and takes it down. It alone knows all."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgate.server import VERSION, build, builtin_tools, methods, progress
from toolgate.server.auth.principal_names import Callers, itself
from toolgate.server.calls.tasks import Deferrals
from toolgate.server.config.load import CLASSIC_FILE, Config
from toolgate.server.file_changes import Changes
from toolgate.server.plugins.loader import Loaded, Modules
from toolgate.server.plugins.reload import Plugins
from toolgate.server.protocol.messages import Notification
from toolgate.server.protocol.session import Session
from toolgate.server.server import Server
from toolgate.server.state.callback_timer import Clock, Firing
from toolgate.server.state.callbacks import Callbacks
from toolgate.server.state.plans import Plan
from toolgate.server.state.sealed_state import Seal
from toolgate.server.state.store import StateError, Store
from toolgate.server.state.tasks import Tasks
from toolgate.server.telemetry.setup import Observation
from toolgate.server.workspaces.sandboxing import Confinement
from toolgate.server.workspaces.workspaces import Workspaces
from toolgate.tools.api.context import Belongings, Place, Settings
from toolgate.tools.api.notices import Notices
from toolgate.tools.api.registry import Registry
from toolgate.tools.builtin.callbacks import INBOX
from toolgate.tools.builtin.skills import skills
from toolgate.tools.workspace.zygote import Processes
from toolgate.transports import stdio

if TYPE_CHECKING:
    from toolgate.server.auth.oauth_server import Authorization
    from toolgate.server.auth.setup import Access
    from toolgate.server.dashboard import Overview
    from toolgate.server.plugins.isolation.plugin import Isolation
    from toolgate.server.state.places import Places
    from toolgate.server.telemetry.metrics import Metrics
    from toolgate.server.workspaces.retention import Cleaner

log = logging.getLogger("toolgate")

LOCAL = "local"  # the one principal over stdio
READ = "tools:read"  # the scope of what is told of a workspace
WORKFLOW = "tools:workflow"  # the scope of what callbacks say, as of SetCallback and the inbox
PATIENCE = 5.0  # seconds a call may take before it becomes a task, where it may: most end sooner, and need no polling
MARGIN = 2.0  # seconds before the hold at which a tool ends by itself with what it has, as the shell does
WATCH_AFTER = 1.0  # seconds after the start: what the first answer does not need waits for it
CLEAN_AFTER = 3.0  # seconds after the start that workspaces are first looked at
PLUGINS_AFTER = 0.1  # seconds after the start that plugins are watched: an edit is to be seen within a second
PLUGINS_DEBOUNCE = 240  # ms that changes of plugins are gathered for while they keep coming
PLUGINS_LOAD = 5.0  # seconds the first request may have to wait for plugins: clients give up on a slow start


class App:
    """One server with all that belongs to it. `run` serves; everything it started has ended when it returns."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.state = build.state_folder(config)
        self._use = build.used(self.state)
        self.root = build.workspace_root(config)
        self.settings = Settings(
            hold=config.hold - min(MARGIN, config.hold / 4),
            any_file=not config.remote,
        )
        self.store = Store(self.state)
        self.clock = Clock(self.store, self._fire)
        self.deferrals = Deferrals(
            self.store, self.clock.processes, self._serves, server=build.digest(config, self.root)
        )
        self._where = "" if self.root is None else str(self.root)
        self.places = self._places()
        self.rules = build.ruled(config)
        self.processes = Processes()
        self.changes = Changes()
        self.web = build.web(config)
        self.confinement = Confinement(config, self.state, self.processes, public=config.public)
        self.workspaces = Workspaces(self.state, self.root, config.children_environment, self.confinement)
        self.search = build.search_engines(config, self.web)
        self.skills = skills.Skills(build.skill_folders(config), self.state / "cache" / "skills.json")
        self.modules = Modules()
        self.isolation: Isolation | None = None
        self.plugins = Plugins(
            config.plugins,
            self.modules.load,
            self._isolated,
            isolate=config.isolate_plugins,
            changed=self._registry_changed,
        )
        # over stdio standard error may be the terminal of the client, which draws on it itself
        self.progress = progress.shown(config.environment) if config.remote else progress.Progress(None)
        with self.progress.doing("reading skills"):
            self._take_skills()
        self.observation = Observation(
            config,
            self.state,
            self.workspaces,
            kept_apart=self.confinement.level != "none",
            registry=lambda: self.server.registry,
        )
        self.server = self._server()
        self.cleaner = self._cleaner()
        if self.places is not None:
            self.server.place = self.places.of
        if self.cleaner is not None:
            self.server.used = partial(self._used, self.cleaner)
        self.deferrals.lost = self.server.observers.lost
        self.dispatcher = methods.dispatcher(self.server)
        if config.classic.unknown:
            log.info("%s: ignored %s", CLASSIC_FILE, ", ".join(map(repr, config.classic.unknown)))
        self._authorization: Authorization | None = None
        self._later: set[asyncio.Task[Any]] = set()
        self._end_by = 0.0  # loop time: what is deferred may run until then

    async def serve_stdio(self, source: int, sink: int) -> None:
        """Serve the client at the other end of two descriptors until it ends or a signal comes."""
        gc.freeze()
        gc.set_threshold(50_000, 50, 100)  # what is loaded stays; a call leaves little garbage, and pauses cost latency
        session = Session(LOCAL, transport="stdio")
        try:
            await self.start()
            await stdio.serve(self.dispatcher, session, source, sink, self.config.grace, self._ending)
        finally:
            await self.close()

    async def serve_http(self) -> None:
        """Serve HTTP clients until a signal comes."""
        from toolgate.server.http_app import Site  # start-up: stdio does without all of HTTP
        from toolgate.server.state.sessions import SessionRecords

        access = self._access if self._signs_in else None
        site = Site(
            self.config,
            self.server,
            self.dispatcher,
            access,
            leave=self._leave,
            overview=self._overview(),
            sandbox=self.confinement.level,
            metrics=self._measured(),
            records=SessionRecords(self.store, self.clock.processes, self._where),
        )
        gc.freeze()
        gc.set_threshold(50_000, 50, 100)
        told = self._end_when_told()
        try:
            site.listen()
            await self.start()
            self._start_later(self._open_state, 0.0)
            await site.serve()
        except asyncio.CancelledError:
            if not told.is_set():
                raise
            log.info("ended before it served")
        finally:
            await self.close()

    @staticmethod
    def _end_when_told() -> asyncio.Event:
        """Have a signal that comes before the transports listen for signals end the start, in order."""
        loop, task, told = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
        assert task is not None

        def hear() -> None:
            if not told.is_set():
                told.set()
                task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, hear)
        return told

    def _server(self) -> Server:
        return Server(
            name=self.config.name,
            version=VERSION,
            registry=self._registry(),
            settings=self.settings,
            hold=self.config.hold,
            seal=Seal(self.state / "keys" / "request-state"),
            lend=self._lend,
            deferrals=self.deferrals,
            patience=min(PATIENCE, self.settings.hold / 2),
            observers=self.observation.observers(),
            followed=self.observation.traces.followed if self.observation.traces is not None else None,
            streaming=self.config.classic.streaming,
            full_structure=self.config.structured_output == "full",
            schemes=self._schemes(),
            calls=build.calls(self.config),
            rules=self.rules,
            names=Callers(self.store).names if self.rules.about_people else itself,
        )

    def _overview(self) -> "Overview":
        from toolgate.server.dashboard import Overview  # start-up: stdio does without

        feed, trail = self.observation.feed, self.observation.trail()
        assert feed is not None  # HTTP is served
        return Overview(self.server, self.store, self.clock, self.workspaces, feed, trail)

    async def start(self) -> None:
        """Upgrade the state if it has to be, load the plugins, and start what runs beside the requests."""
        await self.store.ready()
        if self.places is not None:
            await self._recall_places(self.places)
        if self.config.plugins:
            try:
                with self.progress.doing("loading plugins"):
                    await self.plugins.look(PLUGINS_LOAD)
            except Exception:  # what is built in is served all the same
                log.exception("the plugin folders can't be looked at")
            self._start_later(self._watch_plugins, PLUGINS_AFTER)
        for rule in self.rules.idle(self.server.registry.tools):
            log.warning("the rule %s is about no tool that there is now", rule)
        self._start_later(self._watch_skills, WATCH_AFTER)
        self._start_later(self.confinement.sweep, WATCH_AFTER)
        self._start_later(self.confinement.follow, WATCH_AFTER)
        self._start_later(self.clock.start, WATCH_AFTER)
        self._start_later(self.deferrals.resume, WATCH_AFTER)
        if self.cleaner is not None:
            self._start_later(self.cleaner.follow, CLEAN_AFTER)

    def _places(self) -> "Places | None":
        if not self.config.remote:
            return None  # a client over stdio begins anew
        from toolgate.server.state.places import Places  # start-up: stdio does without

        return Places(self.store, self._where)

    async def _recall_places(self, places: "Places") -> None:
        try:
            await places.recall()
        except StateError as error:
            log.warning("where principals stood before this start is forgotten: %s", error)

    async def _open_state(self) -> None:
        """The first session is written down at once: its client must not wait until a library is loaded."""
        with contextlib.suppress(StateError):  # the log has it, and whoever needs the state hears of it
            await self.store.transact(lambda _: None)

    @property
    def _signs_in(self) -> bool:
        """Whether callers have to say who they are."""
        return bool(self.config.remote and self.config.auth != "none")

    def _access(self, public_url: str) -> "Access":
        from toolgate.server.auth import scopes
        from toolgate.server.auth import setup as access  # start-up: stdio does without all of OAuth

        opened = access.opened(
            self.config, public_url, self.state, self.store, lambda: scopes.served(self.server.registry), self.web
        )
        self._authorization = opened.authorization
        return opened

    def _schemes(self) -> Callable[[str], list[dict[str, Any]]] | None:
        if not self._signs_in:
            return None
        from toolgate.server.auth import scopes  # start-up, as above

        return scopes.schemes

    def _ending(self) -> None:
        """The end has begun: subscriptions are not waited for, they are told, here by a cancellation as well
        (MCP 2026-07-28 basic/patterns/cancellation)."""
        self._end_by = asyncio.get_running_loop().time() + self.config.grace
        for listener in self.server.end_listeners():
            listener.channel.send(Notification("notifications/cancelled", {"requestId": listener.id}))

    async def close(self) -> None:
        """End all that was started: background work first, then every process, then the state."""
        for task in self._later:
            task.cancel()
        if self._later:
            await asyncio.wait(self._later, timeout=1.0)
        self.server.questions.close()
        await self.deferrals.close(max(0.0, self._end_by - asyncio.get_running_loop().time()))
        sent = asyncio.ensure_future(self.observation.send())
        self.server.updates.close()
        await self.changes.close()
        self.plugins.close()
        self.modules.close()
        if self.isolation is not None:
            await self.isolation.close()
        await self.clock.stop()
        await self.workspaces.close()
        await self.processes.close()
        await self.confinement.close()
        await self.web.close()
        self.observation.close()
        self.store.close()
        os.close(self._use)
        await sent

    def _measured(self) -> "Metrics":
        """The metrics, with all that is behind the transports."""
        from toolgate.server.telemetry.metrics.gauges import of_server  # start-up, as above

        metrics = self.observation.metrics
        assert metrics is not None  # HTTP is served
        metrics.read(of_server(self.server, self.workspaces, self.search, self.web, self.confinement.level))
        return metrics

    def _registry(self) -> Registry:
        return self.plugins.registry(self.built_in, self.skill_parts).without(self.config.classic.hidden)

    async def _isolated(self, file: Path) -> Loaded:
        """Load a plugin in a process of its own."""
        from toolgate.server.plugins.isolation.plugin import Isolation  # start-up: most plugins are not isolated

        if self.isolation is None:
            self.isolation = Isolation(
                self.config.children_environment, verbose=self.config.verbose, style=self.config.log_format
            )
        return await self.isolation.load(file)

    def _registry_changed(self) -> None:
        self.server.swap(self._registry())

    def _skills_changed(self) -> None:
        self._take_skills()
        self._registry_changed()

    def _take_skills(self) -> None:
        self.built_in = Registry(
            builtin_tools.parts(self.skills)
        )  # first: what comes later is a change, and seen as one
        self.skill_parts = builtin_tools.skill_parts(self.skills)

    def _lend(self, principal: str, place: Place, notices: Notices) -> Belongings:
        workspace = self.workspaces.of(principal, notices)
        return Belongings(
            principal=principal,
            place=place,
            workspace=workspace,
            tasks=Tasks(self.store, principal, place.key),
            plan=Plan(self.store, principal, place.key, place),
            callbacks=Callbacks(self.store, self.clock, principal, place.key),
            skills=self.skills,
            web=self.web,
            settings=self.settings,
            updated=partial(self.server.updates.changed, principal),
            listed=partial(self.server.listed, principal),
            changes=partial(self.changes.of, root=workspace.root),
            search=self.search,
        )

    def _serves(self, principal: str) -> bool:
        """Whose work may be taken over here: remote callers' must not run under the local user's options, nor theirs
        where callers are told apart. Without that there is nobody else, over HTTP either."""
        return (principal == LOCAL) == (not self.config.remote or self.config.auth == "none")

    async def _leave(self, principal: str) -> None:
        """Somebody is gone for good: end what goes on without them."""
        await Callbacks(self.store, self.clock, principal, "").cancel(None)
        await self.deferrals.cancel_all(principal)
        self.server.questions.leave(principal)
        await self.workspaces.kill(principal)

    def _cleaner(self) -> "Cleaner | None":
        """Where each principal has a workspace of its own; one that was given is nobody's to put away."""
        if not self.config.remote or self.root is not None:
            return None
        from toolgate.server.workspaces.retention import Cleaner, Policy  # start-up: stdio does without

        config = self.config
        return Cleaner(
            self.state,
            idle=Policy(config.idle_workspaces, config.idle_after),
            gone=Policy(config.gone_workspaces, config.gone_after),
            who_is_gone=self._who_is_gone,
            end=self._let_go,
        )

    async def _who_is_gone(self) -> set[str] | None:
        if self._authorization is None:
            return None
        from toolgate.server import principal as principals  # start-up, as above
        from toolgate.server.auth.tokens import access_tokens

        subjects = await self._authorization.see_off()
        return {principals.Principal(access_tokens.OURS, subject, "").name for subject in subjects}

    async def _let_go(self, principal: str) -> None:
        """End all that a principal has running, and forget where it worked: at its next call that is made anew."""
        if await self.workspaces.forget(principal):
            self.server.forget(principal)
            if self.places is not None:
                await self.places.forget(principal)

    def _used(self, cleaner: "Cleaner", principal: str) -> None:
        word = cleaner.note(principal)
        if word is not None:
            self.server.notices(principal).add("workspace", word, READ)

    def _fire(self, firing: Firing) -> None:
        """A callback fired: to the session that set it, onto the principal's next result, and in the inbox."""
        text = f"callback {firing.slot} fired: {firing.message}"
        self.server.notices(firing.principal).add(f"callback-{firing.slot}", text, WORKFLOW)
        self.server.tell(firing.principal, firing.session, "notice", text, WORKFLOW)
        self.server.updates.changed(firing.principal, INBOX)

    async def _watch_skills(self) -> None:
        from toolgate.server import watch  # start-up: the library it needs is not small

        await watch.watch(self.skills, self._skills_changed)

    async def _watch_plugins(self) -> None:
        from toolgate.server import watch  # start-up: the library it needs is not small

        await watch.follow("plugin", self.plugins.roots, self.plugins.look, PLUGINS_DEBOUNCE)

    def _start_later(self, work: Callable[[], Coroutine[Any, Any, None]], seconds: float) -> None:
        """Start `work` when the first answers are out; its failure is logged and costs nothing else."""

        async def later() -> None:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Exception:
                log.exception("background work failed")

        task = asyncio.get_running_loop().create_task(later())
        self._later.add(task)
        task.add_done_callback(self._later.discard)
