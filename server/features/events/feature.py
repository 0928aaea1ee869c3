"""Plug events into the server: record what happens in the core, and add methods, a part of the page and gauges."""

import contextlib
from collections.abc import AsyncGenerator, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING

from toolgate.server.app.host import AppHost, Job
from toolgate.server.app.slot import Slot
from toolgate.server.features.events.log.errors import EXTENSION
from toolgate.server.features.events.log.rows import EventLimits
from toolgate.server.features.events.method_rows import list_methods
from toolgate.server.features.events.service import EventService
from toolgate.server.features.events.sources.types import EVENTS
from toolgate.server.methods.server import Capability
from toolgate.tools.api.registry import Registry
from toolgate.tools.workspace.output.run_record import TaskEnd

if TYPE_CHECKING:
    from toolgate.server.base.principals.principal import GrantKey
    from toolgate.server.base.reports.metric_rows import MetricRow
    from toolgate.server.base.reports.page_part import PagePart
    from toolgate.server.base.task import StoredTask
    from toolgate.server.calls.policy.rules import Rule
    from toolgate.server.calls.question import QuestionView
    from toolgate.server.state.rows.callback_timer import Firing
    from toolgate.server.state.store import Connection
    from toolgate.tools.api.context.services import Todo

SWEEP_AFTER = 3.0  # seconds after the start that what is due at intervals begins


class EventsFeature:
    """The events of one server. `service()` returns them; they are made when the first registry is served."""

    def build(self, host: AppHost) -> None:
        self.service = Slot("events", partial(_create_service, host))
        host.parts += EVENTS
        host.capabilities.append(Capability("events", EXTENSION, {"listChanged": True}))
        host.methods.append(partial(list_methods, self.service))
        host.report_end.take(lambda _: self._report_end)
        host.on.firing.append(self._record_firing)
        host.on.task_end.append(self._record_task_end)
        host.on.todo_change.append(self._record_todo_change)
        host.on.answer.append(self._emit_answer)
        host.on.refusal.append(self._emit_refusal)
        host.on.registry.append(self._bind_types)
        host.on.swap.append(self._follow_registry)
        host.on.removal.append(self._forget)
        host.on.replicas_change.append(self._note_living)
        host.on.ending.append(self._end_streams)
        host.on.close.append(self._close)
        host.grant_holders.append(self)
        host.page_parts.append(partial(self._create_page_part, host))
        host.metric_rows.append(self._list_metric_rows)

    async def connect(self, host: AppHost) -> None:
        pass

    @contextlib.asynccontextmanager
    async def run(self, host: AppHost) -> AsyncGenerator[None]:
        service = self.service()
        service.log.start()
        host.jobs += [Job(service.run_deliveries, 0.0), Job(service.run, SWEEP_AFTER)]
        yield

    # -- what happens in the core

    def _record_firing(self, connection: "Connection", firing: "Firing", number: int) -> None:
        self.service().sources.record_firing(connection, firing, number)

    def _record_task_end(self, connection: "Connection", task: "StoredTask") -> None:
        self.service().sources.record_task_end(connection, task)

    def _record_todo_change(
        self, connection: "Connection", principal: str, todo: "Todo", change: str, step: int | None
    ) -> None:
        self.service().sources.record_todo_change(connection, principal, todo, change, step)

    async def _emit_answer(self, principal: str, question: "QuestionView", action: str) -> None:
        await self.service().sources.emit_answer(principal, question, action)

    async def _emit_refusal(self, principal: str, tool: str, rule: "Rule | None") -> None:
        await self.service().sources.emit_refusal(principal, tool, rule)

    def _report_end(self, principal: str, end: TaskEnd) -> None:
        self.service().ends.report(principal, end)

    def _bind_types(self, registry: Registry) -> None:
        self.service().bind_types(registry)

    def _follow_registry(self, before: Registry, after: Registry) -> None:
        self.service().follow_registry(before, after)

    async def _forget(self, principal: str) -> None:
        await self.service().forget(principal)

    def _note_living(self, names: frozenset[str]) -> None:
        if (shared := self.service().shared) is not None:
            shared.note_living(names)

    def _end_streams(self) -> None:
        self.service().streams.end_all()

    async def _close(self) -> None:
        if self.service.is_made:
            await self.service().close()

    # -- what grants allow

    def rights(self) -> "Iterable[GrantKey]":
        """Yield what the access of each stream and subscription depends on."""
        return self.service().rights()

    async def terminate_rights(self, rights: "Collection[GrantKey]") -> None:
        """End the streams and subscriptions of revoked grants."""
        await self.service().terminate_rights(rights)

    # -- what people and Prometheus see

    def _create_page_part(self, host: AppHost) -> "PagePart":
        from toolgate.server.features.events.page import SubscriptionsPart  # start-up: stdio has no page

        return SubscriptionsPart(self.service(), lambda: host.server().registry.events)

    def _list_metric_rows(self) -> "list[MetricRow]":
        from toolgate.server.features.events.gauges import webhook_rows  # start-up, as above

        subscriptions = self.service().subscriptions
        return [] if subscriptions is None else webhook_rows(subscriptions)


def _create_service(host: AppHost) -> EventService:
    config = host.config
    limits = EventLimits(config.event_count, config.event_size, float(config.event_age))
    service = EventService(host.store(), host.keys(), host.workspaces(), host.serves, limits, prepare=host.prepare())
    if host.signs_in:
        # start-up: stdio has no webhooks
        from toolgate.server.features.events.delivery.subscription_request import SubscriptionLimits
        from toolgate.server.features.events.webhook_sender import create_sender

        subscribed = SubscriptionLimits(config.webhook_count, longest=float(config.webhook_age))
        service.open_webhooks(create_sender(config), host.find_valid_grants, subscribed)
    if host.is_shared and (bus := host.bus()) is not None:
        service.share(bus)
    return service
