"""Decide a question of the first page once: the first click or tab counts, and others learn what it decided."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from toolgate.server.calls.pending_questions import GONE, PendingQuestions, QuestionView
from toolgate.server.dashboard import Dashboard
from toolgate.transports.web import elicitation_form

if TYPE_CHECKING:
    from toolgate.server.policy.remembered_approvals import Duration

ANSWERED, DECLINED = "Your answer was sent.", "You declined to answer."  # for people
ALLOWED, REFUSED = "You allowed this call.", "You refused this call."
REMEMBERED = {
    "session": "You allowed this for the session.",
    "always": "You allowed this for good, until you end that.",
}
CALL_ENDED = "The call that asked has ended meanwhile."
MAX_DECISIONS = 1_000  # questions whose decision a late click learns


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What a form did, in a sentence for the person."""

    text: str
    status: int = 200


class Decisions:
    """What people decide about the questions that wait for them."""

    def __init__(self, questions: PendingQuestions, dashboard: Dashboard) -> None:
        self._questions = questions
        self._dashboard = dashboard
        self._made: OrderedDict[tuple[str, str], str] = OrderedDict()  # (principal, question) → what was decided
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by principal

    async def answer(self, principal: str, id: str, action: str, fields: Mapping[str, str]) -> ActionResult:
        """Accept or decline a question, with the fields of its form. Raises StateError."""
        async with self._lock(principal):
            question = self._find(principal, id)
            if question is None:
                return self._explain_end(principal, id)
            content: dict[str, Any] = {}
            problem = None
            if action == "accept":
                content = elicitation_form.read_answer(question.schema, fields)
                problem = elicitation_form.find_missing_words(question.schema, fields)
            problem = problem or self._questions.answer(principal, id, action, content)
            if problem is not None:
                return ActionResult(problem, 400)
            accepted, declined = (ANSWERED, DECLINED) if question.approval is None else (ALLOWED, REFUSED)
            return self._note(principal, id, accepted if action == "accept" else declined)

    async def allow(self, principal: str, id: str, duration: "Duration") -> ActionResult:
        """Approve the call, and remember that before it runs. Raises StateError."""
        async with self._lock(principal):
            question = self._find(principal, id)
            if question is None or question.approval is None:
                return self._explain_end(principal, id)
            await self._dashboard.remember_approval(principal, question.approval, question.client, duration)
            result = self._note(principal, id, REMEMBERED[duration])
            is_settled = self._questions.settle(principal, id) is None
            return result if is_settled else ActionResult(f"{result.text} {CALL_ENDED}")

    def _lock(self, principal: str) -> asyncio.Lock:
        """Return the lock under which a person decides: another tab must not decide while this is being stored."""
        return self._locks.setdefault(principal, asyncio.Lock())

    def _find(self, principal: str, id: str) -> QuestionView | None:
        return next((each for each in self._questions.waiting(principal) if each.id == id), None)

    def _note(self, principal: str, id: str, text: str) -> ActionResult:
        self._made[principal, id] = text
        while len(self._made) > MAX_DECISIONS:
            self._made.popitem(last=False)
        return ActionResult(text)

    def _explain_end(self, principal: str, id: str) -> ActionResult:
        """Return why a question can't be decided any more."""
        made = self._made.get((principal, id))
        return ActionResult(GONE, 404) if made is None else ActionResult(f"This was decided before: {made}", 409)
