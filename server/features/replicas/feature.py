"""Plug replicas into the server: a bus on Redis, and what they share by it."""

import contextlib
import logging
from collections.abc import AsyncGenerator
from functools import partial

from toolgate.server.app.host import AppHost, Job
from toolgate.server.base import run_loop
from toolgate.server.base.bus.bus import Bus
from toolgate.server.base.bus.settings import BusSettings, name_prefix
from toolgate.server.base.errors import UsageError
from toolgate.server.base.reports.health import describe_backend
from toolgate.server.calls.notifier import Notifier
from toolgate.server.features.replicas.deployment import find_deployment
from toolgate.server.features.replicas.gauges import bus_rows
from toolgate.server.features.replicas.open_bus import create_bus
from toolgate.server.features.replicas.processes import ReplicaProcesses
from toolgate.server.features.replicas.services.call_counts import RedisCallCounts
from toolgate.server.features.replicas.services.engine_health import share_engine_health
from toolgate.server.features.replicas.services.fallback import FallbackCallCounts, FallbackCounters
from toolgate.server.features.replicas.services.notices import SharedNotices
from toolgate.server.features.replicas.services.notifications import SharedNotifications
from toolgate.server.features.replicas.services.questions import RedisQuestionStore
from toolgate.server.features.replicas.services.recent_calls import SharedCalls
from toolgate.server.features.replicas.services.remote_tasks import RemoteTasks
from toolgate.server.features.replicas.sessions.opener import SharedSessionOpener

FOLLOW_AFTER = 1.0  # seconds after the start: what the first answer does not need waits for it

log = logging.getLogger("toolgate")


class ReplicasFeature:
    """The replicas that share one database and one Redis. They differ from others on that Redis by the deployment."""

    def __init__(self) -> None:
        self._deployment = ""  # what the database says, from `connect` on
        self._living: ReplicaProcesses | None = None

    def build(self, host: AppHost) -> None:
        host.is_shared = True
        host.bus.take(lambda _: self._create_bus(host))
        host.create_counters.take(lambda default: lambda: FallbackCounters(self._get_bus(host).keys, default()()))
        host.processes.take(lambda _: self._get_processes(host))
        host.notifier.take(lambda _: self._share_notifications(host))
        host.shared_notices.take(lambda _: SharedNotices(self._get_bus(host)))
        host.question_store.take(lambda _: self._create_question_store(host))
        host.remote_tasks.take(lambda _: self._create_remote_tasks(host))
        host.call_counts.take(lambda local: FallbackCallCounts(RedisCallCounts(self._get_bus(host)), local()))
        host.shown_calls.take(lambda _: self._share_calls(host))
        host.open_sessions.take(lambda _: self._create_session_opener(host))
        host.health_parts.append(lambda: describe_backend("Redis", self._get_bus(host).health()))
        host.metric_rows.append(lambda: bus_rows(self._get_bus(host).health))

    async def connect(self, host: AppHost) -> None:
        self._deployment = await find_deployment(host.store())
        host.bus()  # its package may be missing

    @contextlib.asynccontextmanager
    async def run(self, host: AppHost) -> AsyncGenerator[None]:
        share_engine_health(self._get_bus(host), host.search().load().health)
        host.jobs.append(Job(partial(self._get_processes(host).follow, host.resume_dead), FOLLOW_AFTER))
        yield

    def _create_bus(self, host: AppHost) -> Bus:
        settings = BusSettings(prefix=name_prefix(self._deployment), meets_earlier=True)
        try:
            return create_bus(host.config.redis, settings, on_lost=_end_process)
        except (ValueError, ModuleNotFoundError) as error:
            raise UsageError(f"--redis: {error}") from None

    def _get_bus(self, host: AppHost) -> Bus:
        bus = host.bus()
        assert bus is not None  # it is this feature's
        return bus

    def _get_processes(self, host: AppHost) -> ReplicaProcesses:
        if self._living is None:
            replica, create_lock = self._get_bus(host).replica, host.locks()
            locks = create_lock(replica.name) if create_lock is not None else None
            self._living = ReplicaProcesses(replica, locks, host.on.replicas_change)
        return self._living

    def _share_notifications(self, host: AppHost) -> Notifier:
        return SharedNotifications(self._get_bus(host), host.notifications(), host.server().updates)

    def _create_question_store(self, host: AppHost) -> RedisQuestionStore:
        return RedisQuestionStore(self._get_bus(host), self._get_processes(host).recent_names)

    def _create_remote_tasks(self, host: AppHost) -> RemoteTasks:
        return RemoteTasks(self._get_bus(host), host.call_tasks(), host.notifications())

    def _share_calls(self, host: AppHost) -> SharedCalls | None:
        local = host.recent_calls()
        return None if local is None else SharedCalls(self._get_bus(host), local)

    def _create_session_opener(self, host: AppHost) -> SharedSessionOpener:
        server = host.server()
        return SharedSessionOpener(
            self._get_bus(host),
            host.dispatcher(),
            close=server.close_session,
            share=host.share_session,
            find_tool=lambda name: server.registry.tools.get(name),
            now=server.now,
        )


def _end_process() -> None:
    """End at once, and change nothing any more: another server may have taken over this one's work."""
    log.critical("this server ends: another one found it dead, and may have taken over its work")
    run_loop.exit_now(1)
