"""Store plans: a session's in memory, a principal's in the state database."""

from collections.abc import Callable
from datetime import UTC, datetime

from msgspec.structs import replace

from toolgate.server.state import flags, tables
from toolgate.server.state.store import Store, Subject
from toolgate.tools.api.context.services import CallerState, PlanState

NO_PLAN = PlanState(active=False, goal="", plan_file=None, started_at=None)


class PlanStore:
    """The `Plan` of toolgate.tools.api.context.context.

    With a session (`session` is the place's key) the plan is at its `place` and ends with it. With "" it is the
    principal's, the same for all objects in all processes.
    """

    def __init__(self, store: Store, principal: str, session: str, place: CallerState | None = None) -> None:
        self.store = store
        self.principal = principal
        self.session = session
        self.place = place or CallerState(session)

    async def active(self) -> bool:
        """Return whether tools that change things are refused. Opens no database unless there is an active plan."""
        if self.session:
            return self.place.plan is not None and self.place.plan.active
        return self.store.has_flag(flags.PLAN_ACTIVE, self.principal) and (await self.state()).active

    async def state(self) -> PlanState:
        """Return the plan. Opens no database unless there is one, active or ended."""
        if self.session:
            return self.place.plan or NO_PLAN
        if not self.store.has_flag(flags.PLAN_EXISTS, self.principal):
            return NO_PLAN
        return await self.store.read(self._read)

    async def enter(self, goal: str, plan_file: str | None) -> PlanState:
        entered = PlanState(True, goal, plan_file, datetime.now(UTC))
        return await self._change(lambda _: entered)

    async def exit(self, plan_file: str | None = None) -> PlanState:
        """End the plan; its goal stays readable, with `plan_file` if there is one."""

        def end(state: PlanState) -> PlanState:
            if state.started_at is None:
                return state
            return replace(state, active=False, plan_file=plan_file or state.plan_file)

        return await self._change(end)

    async def reset(self) -> PlanState:
        if not self.session and not self.store.has_flag(flags.PLAN_EXISTS, self.principal):
            return NO_PLAN
        return await self._change(lambda _: NO_PLAN)

    async def _change(self, change: Callable[[PlanState], PlanState]) -> PlanState:
        if self.session:
            state = self.place.plan = change(self.place.plan or NO_PLAN)
            if self.place.save is not None:
                await self.place.save()
            return state

        def write(connection: "tables.Connection") -> PlanState:
            state = change(self._read(connection))
            self._write(connection, state)
            return state

        alone: tuple[Subject, str] = "plans", self.principal
        state, clear = await self.store.transact(write, alone=alone), self.store.clear_flag_unless
        if not state.active:
            await clear(
                flags.PLAN_ACTIVE, self.principal, lambda connection: self._read(connection).active, alone=alone
            )
        if state.started_at is None:
            await clear(
                flags.PLAN_EXISTS, self.principal, lambda connection: self._read(connection) != NO_PLAN, alone=alone
            )
        return state

    def _write(self, connection: "tables.Connection", state: PlanState) -> None:
        plan = tables.plan
        connection.execute(plan.delete().where(plan.c.principal == self.principal))
        if state.started_at is None:
            return
        row = {
            "principal": self.principal,
            "active": state.active,
            "goal": state.goal,
            "plan_file": state.plan_file,
            "started_at": state.started_at.timestamp(),
        }
        connection.execute(plan.insert().values(row))
        self.store.set_flag(flags.PLAN_EXISTS, self.principal, True)
        if state.active:
            self.store.set_flag(flags.PLAN_ACTIVE, self.principal, True)

    def _read(self, connection: "tables.Connection") -> PlanState:
        plan = tables.plan
        row = connection.execute(plan.select().where(plan.c.principal == self.principal)).one_or_none()
        if row is None:
            return NO_PLAN
        return PlanState(row.active, row.goal, row.plan_file, datetime.fromtimestamp(row.started_at, UTC))
