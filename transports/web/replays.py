"""Remember the questions answered lately, so that a double click gets the same answer twice."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.responses import Response

DOUBLE_CLICK = 10.0  # seconds in which the same form is a double click
ANSWERED_TIME = 600.0  # seconds a question can wait: until then it was answered, and has not expired
MAX_QUESTIONS = 2_000  # the oldest are forgotten


@dataclass(slots=True)
class AnsweredForm:
    until: float
    form: bytes
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    response: Response | None = None


class AnsweredQuestions:
    """Kept in memory only, since an response holds a code. `now` is monotonic."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._forms: dict[str, AnsweredForm] = {}
        self._times: dict[str, float] = {}

    def __contains__(self, question: str) -> bool:
        return self._times.get(question, float("-inf")) > self._now() - ANSWERED_TIME

    def mark_answered(self, question: str) -> None:
        """Remember that the question has its answer."""
        _make_room(self._times)
        self._times[question] = self._now()

    async def answer_once(self, question: str, form: bytes, answer: Callable[[], Awaitable[Response]]) -> Response:
        """Return the response of `answer()` to this form. Within ten seconds the same form gets the same response, also
        while the first is still being answered. Only redirects (303) are kept."""
        now, digest = self._now(), hashlib.sha256(form).digest()
        for id in [id for id, entry in self._forms.items() if entry.until <= now]:
            del self._forms[id]
        entry = self._forms.get(question)
        if entry is None:
            _make_room(self._forms)
            entry = self._forms[question] = AnsweredForm(now + DOUBLE_CLICK, digest)
        elif entry.form != digest:
            return await answer()
        async with entry.turn:
            if entry.response is not None:
                return entry.response
            response = await answer()
            if response.status_code == 303:
                entry.response = response
            return response


def _make_room(entries: dict[str, AnsweredForm] | dict[str, float]) -> None:
    while len(entries) >= MAX_QUESTIONS:
        del entries[next(iter(entries))]
