"""Decide a question of the first page once: the first click or tab counts, and others learn what it decided."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import msgspec

from toolgate.server.base.reports.page_part import ActionResult
from toolgate.server.calls.dashboard import Dashboard
from toolgate.server.calls.pending_questions import GONE, PendingQuestions
from toolgate.server.calls.question import QuestionView
from toolgate.transports.web import elicitation_form

if TYPE_CHECKING:
    from toolgate.server.calls.policy.remembered_approvals import Duration

ANSWERED, DECLINED = "Your answer was sent.", "You declined to answer."  # for people
ALLOWED, REFUSED = "You allowed this call.", "You refused this call."
REMEMBERED = {
    "session": "You allowed this for the session.",
    "always": "You allowed this for good, until you end that.",
}
CALL_ENDED = "The call that asked has ended meanwhile."
TRIES, PAUSE = 100, 0.1  # seconds in all as long as a tab at another replica may take to decide


class Decisions:
    """What people decide about the questions that wait for them."""

    def __init__(self, questions: PendingQuestions, dashboard: Dashboard) -> None:
        self._questions = questions
        self._dashboard = dashboard
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by principal

    async def answer(self, principal: str, id: str, action: str, fields: Mapping[str, str]) -> ActionResult:
        """Accept or decline a question, with the fields of its form. Raises StateError."""
        async with self._deciding(principal, id) as decision:
            question = await self._find(principal, id)
            if question is None:
                return await self._explain_end(principal, id)
            content: dict[str, Any] = {}
            problem = None
            if action == "accept":
                content = elicitation_form.read_answer(question.schema, fields)
                problem = elicitation_form.find_missing_words(question.schema, fields)
            problem = problem or await self._questions.answer_any(principal, id, action, content)
            if problem is not None:
                return ActionResult(problem, 400)
            accepted, declined = (ANSWERED, DECLINED) if question.approval is None else (ALLOWED, REFUSED)
            decision.text = accepted if action == "accept" else declined
            return ActionResult(decision.text)

    async def allow(self, principal: str, id: str, duration: "Duration") -> ActionResult:
        """Approve the call, and remember that before it runs. Raises StateError."""
        async with self._deciding(principal, id) as decision:
            question = await self._find(principal, id)
            if question is None or question.approval is None:
                return await self._explain_end(principal, id)
            await self._dashboard.remember_approval(principal, question.approval, question.client, duration)
            text = decision.text = REMEMBERED[duration]
            is_settled = await self._questions.settle_any(principal, id) is None
            return ActionResult(text if is_settled else f"{text} {CALL_ENDED}")

    @contextlib.asynccontextmanager
    async def _deciding(self, principal: str, id: str) -> AsyncGenerator["_Decision"]:
        """Hold the lock under which a person decides: another tab must not decide while this is being stored."""
        decision = _Decision()
        async with self._locks.setdefault(principal, asyncio.Lock()):
            for _ in range(TRIES):
                if await self._questions.store.begin_decision(principal, id):
                    break
                await asyncio.sleep(PAUSE)
            try:
                yield decision
            finally:
                await self._questions.store.end_decision(principal, id, decision.text)

    async def _find(self, principal: str, id: str) -> QuestionView | None:
        return next((each for each in await self._questions.list_waiting(principal) if each.id == id), None)

    async def _explain_end(self, principal: str, id: str) -> ActionResult:
        """Return why a question can't be decided any more."""
        made = await self._questions.store.find_decision(principal, id)
        return ActionResult(GONE, 404) if made is None else ActionResult(f"This was decided before: {made}", 409)


class _Decision(msgspec.Struct):
    """What was decided, or None."""

    text: str | None = None
