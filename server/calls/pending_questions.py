"""Hold questions that wait for an answer on the server's page, for clients that can't ask.

A question belongs to one call of one principal through one client: to its method, name, exact arguments and wording.
The call waits as long as it may. Then the question waits alone, and the same call, repeated, gets the answer. An answer
is used once; a call that ends with another question returns it. A question is in the memory of the server that asked.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from toolgate.server.calls.question import (
    PageAnswer,
    PendingQuestion,
    QuestionView,
    QuestionWatcher,
    digest_call,
    to_stable_json,
)
from toolgate.server.protocol.session import ApprovalRequest, create_key
from toolgate.tools.api.errors import StillWaitingError, UnansweredError

if TYPE_CHECKING:
    from toolgate.server.base.principals.principal import GrantKey

LIFETIME = 600.0  # seconds a question waits, and then its answer: a person still remembers the conversation
MAX_QUESTIONS = 32  # per principal: one more drops that principal's oldest
MAX_QUESTION_BYTES = 256 * 2**10  # bytes shown to one principal: the page is built again after each change
MAX_DECIDED = 1_000  # questions whose decision a late click learns
ACTIONS = ("accept", "decline", "cancel")
GONE = "This question is closed: it was answered, it expired, or its call ended."


class QuestionStore(Protocol):
    """What the servers of one state know of each other's questions, pages and decisions. No method raises: what can't
    be reached is not there."""

    def serve(self, questions: "PendingQuestions") -> None:
        """Let the other servers see these questions, answer them and take them. Called once, first."""
        ...

    def create_id(self) -> str:
        """Return a new id, which leads to this server."""
        ...

    def note_change(self, principal: str) -> None:
        """Note that the principal's questions here are others, or have other answers."""
        ...

    async def list_waiting(self, principal: str) -> list[QuestionView]:
        """Return the principal's unanswered questions of other servers."""
        ...

    async def send_answer(self, answer: PageAnswer) -> str | None:
        """Have the server that asked take the answer. Return None, or what is wrong in words for the person."""
        ...

    async def fetch(self, principal: str, call: bytes) -> None:
        """Add the questions of the call with this digest here, and remove them where its earlier tries asked them."""
        ...

    async def is_open(self, principal: str) -> bool:
        """Return whether the person has the page open at another server."""
        ...

    def show_page(self, principal: str) -> AbstractContextManager[None]:
        """Return a context in which the person has the page open here."""
        ...

    async def begin_decision(self, principal: str, id: str) -> bool:
        """Return whether the question may be decided now: no tab at another server does. End it soon."""
        ...

    async def end_decision(self, principal: str, id: str, text: str | None) -> None:
        """End a decision, and keep what was decided for late clicks."""
        ...

    async def find_decision(self, principal: str, id: str) -> str | None:
        """Return what was decided, or None."""
        ...


class MemoryQuestionStore:
    """The decisions of a server without others."""

    def __init__(self) -> None:
        self._decided: OrderedDict[tuple[str, str], str] = OrderedDict()  # (principal, id) → what was decided

    def serve(self, questions: "PendingQuestions") -> None:
        self._questions = questions

    def create_id(self) -> str:
        return create_key(18)

    def note_change(self, principal: str) -> None: ...

    async def list_waiting(self, principal: str) -> list[QuestionView]:
        return []

    async def send_answer(self, answer: PageAnswer) -> str | None:
        return await self._questions.take_answer(answer)

    async def fetch(self, principal: str, call: bytes) -> None: ...

    async def is_open(self, principal: str) -> bool:
        return False

    def show_page(self, principal: str) -> AbstractContextManager[None]:
        return nullcontext()

    async def begin_decision(self, principal: str, id: str) -> bool:
        return True

    async def end_decision(self, principal: str, id: str, text: str | None) -> None:
        if text is not None:
            self._decided[principal, id] = text
            while len(self._decided) > MAX_DECIDED:
                self._decided.popitem(last=False)

    async def find_decision(self, principal: str, id: str) -> str | None:
        return self._decided.get((principal, id))


class PendingQuestions:
    """The questions of one server. `url` is the page that shows them, or None if there is none. `store` leads to those
    of other servers, and has the pages' decisions. `on_answer(principal, question, action)` is called when a person has
    answered."""

    def __init__(
        self,
        url: str | None = None,
        now: Callable[[], float] = time.time,
        on_answer: Callable[[str, QuestionView, str], Awaitable[None]] | None = None,
        store: QuestionStore | None = None,
    ) -> None:
        self.url = url
        self.store = MemoryQuestionStore() if store is None else store
        self._now = now
        self._questions: dict[str, dict[str, PendingQuestion]] = {}  # principal → id → question, oldest first
        self._watchers: dict[str, list[QuestionWatcher]] = {}
        self._on_answer = on_answer
        self.store.serve(self)

    # -- for the page, at any server

    async def list_waiting(self, principal: str) -> list[QuestionView]:
        """Return the principal's unanswered questions of all servers, oldest first."""
        views = await self.store.list_waiting(principal)
        return sorted([*self.waiting(principal), *views], key=lambda view: view.asked)

    async def answer_any(
        self, principal: str, id: str, action: str, content: Mapping[str, Any] | None = None
    ) -> str | None:
        """Answer a question of any server, as `answer`."""
        return await self.store.send_answer(PageAnswer(principal, id, action, dict(content or {})))

    async def settle_any(self, principal: str, id: str) -> str | None:
        """Settle a question of any server, as `settle`."""
        return await self.store.send_answer(PageAnswer(principal, id, "accept", {}, settles=True))

    async def is_open(self, principal: str) -> bool:
        """Return whether the person has the page open, at any server."""
        return self.is_watched(principal) or await self.store.is_open(principal)

    # -- for the page

    def waiting(self, principal: str) -> list[QuestionView]:
        """Return the principal's unanswered questions, oldest first."""
        return [each.view for each in self._questions.get(principal, {}).values() if not each.answer.done()]

    def answer(self, principal: str, id: str, action: str, content: Mapping[str, Any] | None = None) -> str | None:
        """Store the person's answer: "accept" with the form's values, "decline" or "cancel". Return None, or what is
        wrong with it in words for the person."""
        from toolgate.server.calls import forms  # start-up: most servers never ask

        asked = self._questions.get(principal, {}).get(id)
        if asked is None or asked.answer.done():
            return GONE
        if action not in ACTIONS:
            return f"An answer is one of {', '.join(ACTIONS)}."
        values = dict(content or {}) if action == "accept" else {}
        wrong = forms.find_error(asked.view.schema, values) if action == "accept" else None
        if wrong is None:
            asked.answer.set_result({"action": action, "content": values} if action == "accept" else {"action": action})
            self._restart_timer(asked)
            self._note_change(principal)
        return wrong

    def settle(self, principal: str, id: str) -> str | None:
        """Accept a question whose approval is remembered elsewhere. Return None, or what is wrong. Without a call that
        waits the question is dropped: its answer would outlive what is remembered."""
        asked = self._questions.get(principal, {}).get(id)
        problem = self.answer(principal, id, "accept")
        if problem is None and asked is not None and not asked.is_held:
            self._remove(asked)
        return problem

    async def take_answer(self, answer: PageAnswer) -> str | None:
        """Answer or settle a question here, and report the answer before the page hears of it."""
        principal, id = answer.principal, answer.id
        asked = self._questions.get(principal, {}).get(id)
        if answer.settles:
            problem = self.settle(principal, id)
        else:
            problem = self.answer(principal, id, answer.action, answer.content)
        if problem is None and asked is not None and self._on_answer is not None:
            await self._on_answer(principal, asked.view, answer.action)
        return problem

    @contextmanager
    def follow(self, principal: str) -> Generator[QuestionWatcher]:
        """Yield the changes for a page that shows the questions; meanwhile `is_watched` is true."""
        watcher = QuestionWatcher(principal)
        with self.store.show_page(principal):
            watchers = self._watchers.setdefault(principal, [])
            watchers.append(watcher)
            try:
                yield watcher
            finally:
                watchers.remove(watcher)
                if not watchers:
                    del self._watchers[principal]

    def is_watched(self, principal: str) -> bool:
        """Return whether the person has the page open here."""
        return principal in self._watchers

    def notify_watchers(self, principal: str | None = None) -> None:
        """Have the pages with this principal's questions here look again, or all pages."""
        for name in list(self._watchers) if principal is None else [principal]:
            for watcher in self._watchers.get(name, ()):
                watcher.notify()

    # -- for calls

    async def fetch(self, principal: str, call: Any) -> None:
        """Bring the questions of this call (any JSON values) here, from the servers of its earlier tries."""
        await self.store.fetch(principal, digest_call(call))

    def leave(self, asked: PendingQuestion, once_results: Mapping[str, Any]) -> None:
        """Leave a question waiting alone, with the `once` results of its call."""
        asked.once_results = once_results
        self.store.note_change(asked.principal)

    def list_all(self, principal: str) -> list[PendingQuestion]:
        """Return the principal's questions here, oldest first."""
        return list(self._questions.get(principal, {}).values())

    def find_or_add(
        self,
        principal: str,
        call: Any,
        question: Any,
        *,
        tool: str,
        client: str,
        message: str,
        schema: Mapping[str, Any],
        approved: ApprovalRequest | None = None,
        right: "GrantKey | None" = None,
    ) -> PendingQuestion:
        """Return the question for this call (any JSON values), held by the caller: one that waits alone, an answered
        one, or a new one. `approved` is what it asks to approve."""
        by, binding = digest_call(call), digest_call([call, question])
        own = self._questions.get(principal, {}).values()
        found = next((each for each in own if each.question == binding and not each.is_held), None)
        if found is not None:
            found.is_held = True
            if not found.answer.done():
                self._restart_timer(found)
            return found
        shown = QuestionView(
            self.store.create_id(),
            tool,
            client,
            asked=self._now(),
            expires=math.inf,
            message=message,
            schema=schema,
            approval=approved,
        )
        size = len(to_stable_json([message, schema, approved]))
        asked = PendingQuestion(principal, by, binding, shown, asyncio.get_running_loop().create_future(), size, right)
        self.add(asked)
        return asked

    def add(self, asked: PendingQuestion) -> None:
        """Keep a question here, and drop the oldest for which there is no room."""
        own = self._questions.setdefault(asked.principal, {})
        own[asked.view.id] = asked
        self._restart_timer(asked)
        while len(own) > MAX_QUESTIONS or sum(each.size for each in own.values()) > MAX_QUESTION_BYTES:
            self.drop(next(iter(own.values())))
        self._note_change(asked.principal)

    async def wait(self, asked: Sequence[PendingQuestion], seconds: float) -> list[dict[str, Any]]:
        """Return the answers, and remove them here. Raises StillWaitingError after `seconds`, which leaves the
        questions waiting, and UnansweredError if one has expired. Cancellation drops the questions."""
        unanswered = [each.answer for each in asked if not each.answer.done()]
        if unanswered and seconds > 0:
            try:
                await asyncio.wait(unanswered, timeout=seconds)
            except asyncio.CancelledError:
                for each in asked:
                    self.drop(each)
                raise
        answers = [each.answer.result() for each in asked if each.answer.done()]
        found = [answer for answer in answers if answer is not None]
        if len(found) < len(asked):
            for each in asked:
                each.is_held = False
            raise self._refusal(asked[0].view, is_gone=len(found) < len(answers))
        for each in asked:
            self._remove(each)
        return found

    def once_results(self, principal: str, call: Callable[[], Any]) -> Mapping[str, Any]:
        """Return the `once` results of earlier tries of that call."""
        own = self._questions.get(principal)
        if own is None:
            return {}
        by = digest_call(call())
        tries = (each for each in own.values() if each.call == by and not each.is_held)
        return next((each.once_results for each in tries if each.once_results), {})

    def hand_back(self, asked: PendingQuestion) -> None:
        """Return the answer, so that the same call can use it again."""
        if self.url is not None:
            asked.is_held = False
            self.add(asked)

    def drop(self, asked: PendingQuestion) -> None:
        """Drop the question without an answer."""
        self._remove(asked)
        if not asked.answer.done():
            asked.answer.set_result(None)

    def drop_all(self, principal: str) -> None:
        """Drop all questions of a principal that is gone."""
        for asked in self.list_all(principal):
            self.drop(asked)

    def rights(self) -> Iterator["GrantKey"]:
        """Yield what the access of each waiting question's call depends on."""
        return (each.right for own in self._questions.values() for each in own.values() if each.right is not None)

    def drop_rights(self, rights: "Collection[GrantKey]") -> None:
        """Drop the questions asked under these."""
        for own in list(self._questions.values()):
            for asked in [each for each in own.values() if each.right in rights]:
                self.drop(asked)

    def close(self) -> None:
        """Take no more questions, and drop those without an answer. Answers are left to the other servers."""
        self.url = None
        for own in list(self._questions.values()):
            for asked in [each for each in own.values() if each.is_held or not each.answer.done()]:
                self.drop(asked)

    def _refusal(self, waiting: QuestionView, *, is_gone: bool) -> UnansweredError:
        required: dict[str, Any] = {"elicitation": {}}
        if is_gone or self.url is None:
            return UnansweredError("the question has expired without an answer", required)
        return StillWaitingError(
            f"no answer yet. The person can answer at {self.url} within {LIFETIME / 60:g} minutes: tell them "
            "that, and make the very same call again when they have",
            required,
        )

    def _restart_timer(self, asked: PendingQuestion) -> None:
        """Restart the question's lifetime."""
        if asked.timer is not None:
            asked.timer.cancel()
        asked.view = replace(asked.view, expires=self._now() + LIFETIME)
        asked.timer = asyncio.get_running_loop().call_later(LIFETIME, self.drop, asked)

    def _remove(self, asked: PendingQuestion) -> None:
        if asked.timer is not None:
            asked.timer.cancel()
        own = self._questions.get(asked.principal, {})
        if own.pop(asked.view.id, None) is not None:
            self._note_change(asked.principal)
        if not own:
            self._questions.pop(asked.principal, None)

    def _note_change(self, principal: str) -> None:
        self.notify_watchers(principal)
        self.store.note_change(principal)
