"""List the hooks of the core: what features can hear of. A feature appends functions, and the core calls them all.

The hooks that get a connection are called in the transaction that makes it happen, in the store's thread: what is
written then is stored exactly if it happens. If a function fails there, nothing happens.
"""

from typing import TYPE_CHECKING

import msgspec

from toolgate.server.base.hooks import AsyncHook, EndHook, Hook, SyncEndHook

if TYPE_CHECKING:
    from toolgate.server.base.reports.http_gauges import HttpGauges
    from toolgate.server.base.task import StoredTask
    from toolgate.server.calls.policy.rules import Rule
    from toolgate.server.calls.question import QuestionView
    from toolgate.server.state.rows.callback_timer import Firing
    from toolgate.server.state.store import Connection
    from toolgate.tools.api.context.services import Todo
    from toolgate.tools.api.registry import Registry


class HostHooks(msgspec.Struct, frozen=True, eq=False):
    """The hooks of one server.

    firing: a callback fires; with the firing's number
    task_end: a call that became a task has ended
    todo_change: a to-do has changed, as `RecordTodoChange`
    answer: a person has answered a question on the server's page: principal, question, action
    refusal: a rule has refused a call: principal, tool, rule
    registry: a registry is about to be served
    swap: another registry is served: the one before, and the one now
    removal: a principal was removed
    replicas_change: these replicas live now
    serving: HTTP is served; with what can be measured of it
    ending: the end has begun: end what waits for no answer
    calls_end: no call runs any more
    close: the workspaces are closed, and the state is still open
    end: the state is closed
    """

    firing: "Hook[[Connection, Firing, int]]" = msgspec.field(default_factory=Hook)
    task_end: "Hook[[Connection, StoredTask]]" = msgspec.field(default_factory=Hook)
    todo_change: "Hook[[Connection, str, Todo, str, int | None]]" = msgspec.field(default_factory=Hook)
    answer: "AsyncHook[[str, QuestionView, str]]" = msgspec.field(default_factory=AsyncHook)
    refusal: "AsyncHook[[str, str, Rule | None]]" = msgspec.field(default_factory=AsyncHook)
    registry: "Hook[[Registry]]" = msgspec.field(default_factory=Hook)
    swap: "Hook[[Registry, Registry]]" = msgspec.field(default_factory=Hook)
    removal: "AsyncHook[[str]]" = msgspec.field(default_factory=AsyncHook)
    replicas_change: "Hook[[frozenset[str]]]" = msgspec.field(default_factory=Hook)
    serving: "Hook[[HttpGauges]]" = msgspec.field(default_factory=Hook)
    ending: SyncEndHook = msgspec.field(default_factory=SyncEndHook)
    calls_end: SyncEndHook = msgspec.field(default_factory=SyncEndHook)
    close: EndHook = msgspec.field(default_factory=EndHook)
    end: EndHook = msgspec.field(default_factory=EndHook)
