"""Hold questions that wait for an answer on the server's page, for clients that can't ask.

A question belongs to one call of one principal through one client: to its method, name, exact arguments and wording.
The call waits as long as it may. Then the question waits alone, and the same call, repeated, gets the answer. An answer
is used once; a call that ends with another question returns it. All of it is in memory and ends with the server.
`shared_questions.py` shares it between replicas.
"""

import asyncio
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from toolgate.server.protocol.session import ApprovalRequest, create_key
from toolgate.tools.api.errors import StillWaitingError, UnansweredError

if TYPE_CHECKING:
    from toolgate.server.base.principal import GrantKey

LIFETIME = 600.0  # seconds a question waits, and then its answer: a person still remembers the conversation
MAX_QUESTIONS = 32  # per principal: one more drops that principal's oldest
MAX_QUESTION_BYTES = 256 * 2**10  # bytes shown to one principal: the page is built again after each change
MAX_DECIDED = 1_000  # questions whose decision a late click learns
ACTIONS = ("accept", "decline", "cancel")
GONE = "This question is closed: it was answered, it expired, or its call ended."


class QuestionView(msgspec.Struct, frozen=True):
    """A question as the page shows it.

    - `tool`: name of the tool or prompt, or the URI of a resource.
    - `schema`: a flat one, as in elicitation/create.
    - `approval`: what is to be approved, if it asks whether the tool may run at all.
    - `asked`, `expires`: seconds since 1970.
    """

    id: str
    tool: str
    client: str  # as in `Session.client`
    asked: float
    expires: float
    message: str
    schema: Mapping[str, Any]
    approval: ApprovalRequest | None


class PendingQuestion(msgspec.Struct, eq=False):
    """A question and its answer, bound to `call` and to the wording in `question`. `is_held`: a running call waits for
    it. `once_results`: results that earlier tries of the call stored by `once`."""

    principal: str
    call: bytes
    question: bytes
    view: QuestionView
    answer: "asyncio.Future[dict[str, Any] | None]"  # None: it was dropped
    size: int  # bytes of what the page shows
    right: "GrantKey | None" = None  # what the access of its call depends on
    is_held: bool = True
    once_results: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    timer: asyncio.TimerHandle | None = None


class QuestionWatcher(msgspec.Struct, eq=False):
    """An open page with a principal's questions, while the context lasts: `async for` yields after each change."""

    principal: str
    _all: dict[str, "list[QuestionWatcher]"]
    _change: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    signs: Callable[[], Coroutine[Any, Any, None]] | None = None  # shown to other replicas while it lasts
    _showing: "asyncio.Task[None] | None" = None

    def __enter__(self) -> "QuestionWatcher":
        self._all.setdefault(self.principal, []).append(self)
        if self.signs is not None:
            self._showing = asyncio.get_running_loop().create_task(self.signs())
        return self

    def __exit__(self, *_: object) -> None:
        mine = self._all[self.principal]
        mine.remove(self)
        if not mine:
            del self._all[self.principal]
        if self._showing is not None:
            self._showing.cancel()

    def __aiter__(self) -> AsyncIterator[None]:
        return self

    async def __anext__(self) -> None:
        await self._change.wait()
        self._change.clear()

    def notify(self) -> None:
        self._change.set()


class PendingQuestions:
    """The questions of one server. `url` is the page that shows them, or None if there is none.
    `on_answer(principal, question, action)` is called when a person has answered."""

    def __init__(
        self,
        url: str | None = None,
        now: Callable[[], float] = time.time,
        on_answer: Callable[[str, QuestionView, str], Awaitable[None]] | None = None,
    ) -> None:
        self.url = url
        self._now = now
        self._questions: dict[str, dict[str, PendingQuestion]] = {}  # principal → id → question, oldest first
        self._watchers: dict[str, list[QuestionWatcher]] = {}
        self._on_answer = on_answer
        self._decided: OrderedDict[tuple[str, str], str] = OrderedDict()  # (principal, id) → what was decided

    # -- for the page, at any replica

    async def list_waiting(self, principal: str) -> list[QuestionView]:
        """Return the principal's unanswered questions of all replicas, oldest first."""
        return self.waiting(principal)

    async def answer_any(
        self, principal: str, id: str, action: str, content: Mapping[str, Any] | None = None
    ) -> str | None:
        """Answer a question of any replica, as `answer`."""
        return await self._report(principal, id, action, partial(self.answer, principal, id, action, content))

    async def settle_any(self, principal: str, id: str) -> str | None:
        """Settle a question of any replica, as `settle`."""
        return await self._report(principal, id, "accept", partial(self.settle, principal, id))

    async def is_open(self, principal: str) -> bool:
        """Return whether the person has the page open, at any replica."""
        return self.is_watched(principal)

    async def begin_decision(self, principal: str, id: str) -> bool:
        """Return whether the question may be decided now: no tab at another replica does. End it soon."""
        return True

    async def end_decision(self, principal: str, id: str, text: str | None) -> None:
        """End a decision, and keep what was decided for late clicks."""
        if text is not None:
            self._decided[principal, id] = text
            while len(self._decided) > MAX_DECIDED:
                self._decided.popitem(last=False)

    async def find_decision(self, principal: str, id: str) -> str | None:
        """Return what was decided, or None."""
        return self._decided.get((principal, id))

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
            self._notify_watchers(principal)
        return wrong

    def settle(self, principal: str, id: str) -> str | None:
        """Accept a question whose approval is remembered elsewhere. Return None, or what is wrong. Without a call that
        waits the question is dropped: its answer would outlive what is remembered."""
        asked = self._questions.get(principal, {}).get(id)
        problem = self.answer(principal, id, "accept")
        if problem is None and asked is not None and not asked.is_held:
            self._remove(asked)
        return problem

    async def _report(self, principal: str, id: str, action: str, decide: Callable[[], str | None]) -> str | None:
        """Decide a question here, and report the answer before the page hears of it."""
        asked = self._questions.get(principal, {}).get(id)
        problem = decide()
        if problem is None and asked is not None and self._on_answer is not None:
            await self._on_answer(principal, asked.view, action)
        return problem

    def follow(self, principal: str) -> QuestionWatcher:
        """Return a context for a page that shows the questions; meanwhile `is_watched` is true."""
        return QuestionWatcher(principal, self._watchers)

    def is_watched(self, principal: str) -> bool:
        """Return whether the person has the page open."""
        return principal in self._watchers

    # -- for calls

    async def fetch(self, principal: str, call: Any) -> None:
        """Bring the questions of this call (any JSON values) here, from the replicas of its earlier tries."""

    def note_left(self, asked: PendingQuestion) -> None:
        """Note that a call has left the question waiting, with its `once` results."""

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
            self._create_id(),
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
        self._add(asked)
        return asked

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
            self._add(asked)

    def drop(self, asked: PendingQuestion) -> None:
        """Drop the question without an answer."""
        self._remove(asked)
        if not asked.answer.done():
            asked.answer.set_result(None)

    def drop_all(self, principal: str) -> None:
        """Drop all questions of a principal that is gone."""
        for asked in list(self._questions.get(principal, {}).values()):
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
        """Drop all questions, and take no more."""
        self.url = None
        for principal in list(self._questions):
            self.drop_all(principal)

    def _refusal(self, waiting: QuestionView, *, is_gone: bool) -> UnansweredError:
        required: dict[str, Any] = {"elicitation": {}}
        if is_gone or self.url is None:
            return UnansweredError("the question has expired without an answer", required)
        return StillWaitingError(
            f"no answer yet. The person can answer at {self.url} within {LIFETIME / 60:g} minutes: tell them "
            "that, and make the very same call again when they have",
            required,
        )

    def _create_id(self) -> str:
        return create_key(18)

    def _add(self, asked: PendingQuestion) -> None:
        own = self._questions.setdefault(asked.principal, {})
        own[asked.view.id] = asked
        self._restart_timer(asked)
        while len(own) > MAX_QUESTIONS or sum(each.size for each in own.values()) > MAX_QUESTION_BYTES:
            self.drop(next(iter(own.values())))
        self._notify_watchers(asked.principal)

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
            self._notify_watchers(asked.principal)
        if not own:
            self._questions.pop(asked.principal, None)

    def _notify_watchers(self, principal: str) -> None:
        for following in self._watchers.get(principal, ()):
            following.notify()


def digest_call(value: Any) -> bytes:
    """Return the same digest for equal values."""
    return hashlib.sha256(to_stable_json(value)).digest()


def to_stable_json(value: Any) -> bytes:
    """Return the same JSON for equal values."""
    try:
        return msgspec.json.encode(value, order="deterministic")
    except UnicodeEncodeError:  # half of a surrogate pair, escaped so that different ones differ
        import json  # start-up: rare

        return json.dumps(value, sort_keys=True).encode()
