"""Run one server: build its features, start its parts, serve, and end all of it in order."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from toolgate.server.app import build
from toolgate.server.app.features import Feature, build_feature, build_host, check_options, list_unused_tables
from toolgate.server.app.first_table import wait_for_table
from toolgate.server.app.slot import Slot
from toolgate.server.base import progress, run_loop
from toolgate.server.base.asyncio_tasks import DelayedTasks
from toolgate.server.base.errors import StateError
from toolgate.server.base.merged_rows import merge_rows
from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.server.config.feature_rows import FeatureRow
from toolgate.server.config.load import CLASSIC_FILE, Config
from toolgate.server.protocol.messages import Notification
from toolgate.server.protocol.session import Session
from toolgate.transports import stdio

if TYPE_CHECKING:
    from toolgate.server.app.http_app import HttpApp
    from toolgate.server.calls.dashboard import Dashboard

log = logging.getLogger("toolgate")

WATCH_AFTER = 1.0  # seconds after the start: what the first answer does not need waits for it
CLEAN_AFTER = 3.0  # seconds after the start that workspaces are first looked at
HURRY = 3.0  # seconds that an end has after a further signal: longer than any that does not hang

Announce = Callable[[str, str, str], None]


class App:
    """One server with all that belongs to it. `serve_stdio` and `serve_http` serve; everything that they started has
    ended when they return."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.host, self.features = build_host(config)
        # over stdio standard error may be the terminal of the client, which draws on it itself
        self._progress = progress.terminal_progress(config.environment if config.is_remote else {})
        self._jobs = DelayedTasks()
        self._end_by = 0.0  # loop time: what is deferred may run until then
        self._ends = contextlib.AsyncExitStack()
        self._push_ends()

    async def serve_stdio(self, source: int, sink: int) -> None:
        """Serve the client at the other end of two descriptors until it ends or a signal comes."""
        try:
            await self.connect()
            dispatcher = self.host.dispatcher()
            run_loop.settle_memory()
            session = Session(LOCAL_NAME, transport="stdio")
            with run_loop.ending_on_signal():
                await self.start()
                await stdio.serve(dispatcher, session, source, sink, self.config.grace, self._begin_end)
        finally:
            with run_loop.hurrying_on_signal(HURRY):
                await self.close()

    async def serve_http(self, announce: Announce | None = None) -> None:
        """Serve HTTP clients until a signal comes. It begins with `announce(sandbox, public_url, pairing_link)`."""
        try:
            await self.connect()
            site = self._create_site(announce)
            run_loop.settle_memory()
            with run_loop.ending_on_signal():
                if (bus := self.host.bus()) is not None:
                    await bus.start()
                site.listen()
                await self.start()
                self._jobs.start(self._open_state, 0.0)
                await site.serve()
        finally:
            with run_loop.hurrying_on_signal(HURRY):
                await self.close()

    async def connect(self) -> None:
        """Learn what the first decision needs, and make the parts. Raises UsageError, StateError."""
        check_options(self.config)
        self.host.folder()
        self.host.lock()
        for feature in self.features:
            await feature.connect(self.host)
        with self._progress.show("reading skills"):
            self.host.skills()
        self.host.server()
        self.host.page_reader()  # the first calls make these two: what is wrong with their options is said now
        self.host.search()
        unknown = self.config.classic.unknown_keys
        if unknown:
            log.info("%s: ignored %s", CLASSIC_FILE, ", ".join(map(repr, unknown)))

    async def start(self) -> None:
        """Upgrade the state if it has to be, load the plugins, and start what runs beside the requests."""
        host, start = self.host, self._jobs.start
        await host.store().prepare()
        await host.keys().load(signs_in=host.signs_in)
        start(host.keys().follow, 0.0)
        if (directories := host.directories()) is not None:
            await directories.load()
        served = host.served()
        if self.config.plugins:
            with self._progress.show("loading plugins"):
                await served.load_plugins()
        callers = await build.list_callers(self.config, host.store(), host.rules())
        served.check_rules(host.rules(), callers, host.mount_names)
        served.follow(self._jobs)
        start(host.clock().start, WATCH_AFTER)
        start(host.call_tasks().resume_soon, WATCH_AFTER)
        for job in host.workspaces().list_jobs():
            start(job, WATCH_AFTER)
        if (cleaner := host.cleaner()) is not None:
            start(cleaner.run, CLEAN_AFTER)
        await self._enter(self.features, 0)
        if unused := list_unused_tables(self.config):
            start(partial(self._turn_on, unused), WATCH_AFTER)

    async def _turn_on(self, unused: Sequence[FeatureRow]) -> None:
        """Turn a feature on when the config file gets its first table."""
        row = await wait_for_table(self.config.config_path, unused)
        before = len(self.host.jobs)
        feature = build_feature(row, self.host)
        self.features.append(feature)
        await feature.connect(self.host)
        await self._enter([feature], before)
        if rest := [each for each in unused if each is not row]:
            self._jobs.start(partial(self._turn_on, rest), 0.0)

    async def _enter(self, features: Sequence[Feature], first: int) -> None:
        """Enter features, and start the work in `host.jobs` from number `first` on. It ends before they are left."""
        for feature in features:
            await self._ends.enter_async_context(feature.run(self.host))
        self._ends.push_async_callback(self._jobs.close)
        for each in self.host.jobs[first:]:
            self._jobs.start(each.work, each.after)

    async def close(self) -> None:
        """End all that was started: background work first, then every process, then the state."""
        await self._ends.aclose()

    def create_dashboard(self) -> "Dashboard":
        """Return what the first page reads."""
        from toolgate.server.calls.dashboard import Dashboard  # start-up: stdio does without

        host, server = self.host, self.host.server()
        calls, trail = host.shown_calls(), host.own_entries()
        assert calls is not None  # HTTP is served
        return Dashboard(
            server.services.peek,
            server.policy,
            host.store(),
            host.clock(),
            host.workspaces(),
            calls,
            trail,
            host.health_parts,
            [create_part() for create_part in host.page_parts],
        )

    def _create_site(self, announce: Announce | None) -> "HttpApp":
        from toolgate.server.app.http_app import HttpApp  # start-up: stdio does without all of HTTP

        host, workspaces = self.host, self.host.workspaces()
        return HttpApp(
            self.config,
            host.server(),
            host.dispatcher(),
            host.open_access if host.signs_in else None,
            end_background=host.end_principal,
            release_calls=workspaces.release_calls,
            count_running=lambda: 0 if workspaces.outlive_server else sum(workspaces.count_running()),
            overview=self.create_dashboard(),
            sandbox=workspaces.level,
            documents=merge_rows("documents", (open_document() for open_document in host.documents)),
            on_serving=host.on.serving,
            open_sessions=host.open_sessions(),
            grant_holders=host.grant_holders,
            begin_end=host.on.ending,
            list_clients=host.list_clients(),
            page_routes=host.page_routes,
            announce=partial(announce, workspaces.describe()) if announce is not None else None,
        )

    async def _open_state(self) -> None:
        """The first session is written down at once: its client must not wait until a library is loaded."""
        with contextlib.suppress(StateError):  # the log has it, and each call that needs the state fails with it
            await self.host.store().read(lambda _: None)

    def _begin_end(self) -> None:
        """The end has begun: subscriptions are not waited for, they are told, here by a cancellation as well
        (MCP 2026-07-28 basic/patterns/cancellation)."""
        self._end_by = asyncio.get_running_loop().time() + self.config.grace
        server = self.host.server()
        for listener in server.notifications.end_subscriptions():
            listener.channel.send(Notification("notifications/cancelled", {"requestId": listener.id}))
        self.host.on.ending()

    def _push_ends(self) -> None:
        """Push the end of each part. What is pushed last ends first, and a part that was never made needs no end."""
        host, push = self.host, self._ends.push_async_callback
        push(_end, host.bus, lambda bus: bus.close() if bus is not None else None)
        push(host.on.end)
        push(_end, host.lock, os.close)
        push(_end, host.store, lambda store: store.aclose())
        push(_end, host.web, lambda web: web.close())
        push(_end, host.page_reader, lambda reader: reader.close())
        push(host.on.close)
        push(_end, host.workspaces, lambda workspaces: workspaces.close())
        push(_end, host.clock, lambda clock: clock.stop())
        push(_end, host.served, lambda served: served.close())
        push(_end, host.file_changes, lambda changes: changes.close())
        push(_end, host.server, lambda server: server.updates.close())
        self._ends.callback(host.on.calls_end)
        push(_end, host.call_tasks, self._end_tasks)
        push(_end, host.questions, lambda questions: questions.close())
        push(self._jobs.close)

    async def _end_tasks(self, tasks: Any) -> None:
        await tasks.close(max(0.0, self._end_by - asyncio.get_running_loop().time()))


async def _end(slot: Slot[Any], end: Callable[[Any], Awaitable[None] | None]) -> None:
    if slot.is_made:
        ending = end(slot())
        if ending is not None:
            await ending
