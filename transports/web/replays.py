"""The questions that were answered lately, and what their forms got: whoever clicks twice is told the same twice. Knows
nothing of what was answered.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.responses import Response

DOUBLE_CLICK = 10.0  # seconds in which the very same form is a second click, and no second answer
ANSWERED_TIME = 600.0  # seconds a question could have waited: until then it was answered, and has not expired
MAX_QUESTIONS = 2_000  # questions; the oldest make room


@dataclass(slots=True)
class AnsweredForm:
    until: float
    form: bytes
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    outcome: Response | None = None


class AnsweredQuestions:
    """In memory alone, as an outcome has a code in it. `now` is monotonic."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._forms: dict[str, AnsweredForm] = {}
        self._times: dict[str, float] = {}

    def __contains__(self, question: str) -> bool:
        return self._times.get(question, float("-inf")) > self._now() - ANSWERED_TIME

    def mark_answered(self, question: str) -> None:
        """It has its answer, in whatever way."""
        _make_room(self._times)
        self._times[question] = self._now()

    async def answer_once(self, question: str, form: bytes, answer: Callable[[], Awaitable[Response]]) -> Response:
        """What `answer()` gives to this form; within ten seconds the very same form gets it again, also while the
        first is still being answered. Only what leads on (303) is kept."""
        now, digest = self._now(), hashlib.sha256(form).digest()
        for over in [id for id, held in self._forms.items() if held.until <= now]:
            del self._forms[over]
        held = self._forms.get(question)
        if held is None:
            _make_room(self._forms)
            held = self._forms[question] = AnsweredForm(now + DOUBLE_CLICK, digest)
        elif held.form != digest:
            return await answer()
        async with held.turn:
            if held.outcome is not None:
                return held.outcome
            got = await answer()
            if got.status_code == 303:
                held.outcome = got
            return got


def _make_room(held: dict[str, AnsweredForm] | dict[str, float]) -> None:
    while len(held) >= MAX_QUESTIONS:
        del held[next(iter(held))]
