"""All that a person's page shows, in one moment: what the overview knows, and the sessions, grants and questions
besides. Knows sessions; knows neither pages nor requests.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from toolgate.server.auth.login.accounts import Person
from toolgate.server.auth.oauth_server import Granted
from toolgate.server.calls.pending_questions import Questions, Waiting
from toolgate.server.dashboard import Overview
from toolgate.server.protocol.session import tag
from toolgate.transports.http.session import HttpSession
from toolgate.transports.http.sessions import Sessions
from toolgate.transports.web import elicitation_form

MAX_SESSIONS = 20  # that are shown, what was used last first
PARTS = ("questions", "runs", "calls", "sessions", "tasks", "callbacks", "apps")  # what changes; the page's macros

log = logging.getLogger("toolgate.http")


class Granting(Protocol):
    """Of server/auth/oauth_server."""

    async def grants(self, subject: Person) -> list[Granted]: ...

    async def withdraw(self, subject: Person, id: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class ShownSession:
    """`id` names it on the page, and opens nothing; `since` is in seconds since the epoch."""

    id: str
    client: str
    transport: str
    revision: str
    since: float
    running: int


class Glance:
    """`sessions` by what their transport is called; `granting` is None where nothing is granted here."""

    def __init__(
        self,
        overview: Overview,
        sessions: Mapping[str, Sessions],
        questions: Questions,
        granting: Granting | None = None,
    ) -> None:
        self.overview = overview
        self.granting = granting
        self.questions = questions
        self._sessions = sessions

    async def of(self, principal: str, person: Person | None) -> dict[str, Any]:
        """By the names that the page's macros have for it. Raises StateError."""
        grants = await self.granting.grants(person) if self.granting is not None and person is not None else []
        held = sorted(self._held(principal), key=lambda one: one[2].seen, reverse=True)
        going = await self.overview.of(principal, [one.session for _, _, one in held[:MAX_SESSIONS]])
        waiting = self.questions.waiting(principal)
        return {
            "going": going,
            "sessions": [_shown(transport, one) for transport, _, one in held[:MAX_SESSIONS]],
            "more_sessions": len(held[MAX_SESSIONS:]),
            "questions": [(question, _fields(question)) for question in waiting],
            "grants": grants,
            "grants_any": self.granting is not None,
            "names": {grant.client.id: grant.client.name for grant in grants},
        }

    def end(self, principal: str, id: str) -> bool:
        """End one of the principal's sessions: was there one?"""
        for _, sessions, one in self._held(principal):
            if _named(one) == id:
                sessions.close(one)
                return True
        return False

    async def follow(self, principal: str, tell: Callable[[], None]) -> None:
        """Have `tell` called when there is something new at once, until cancelled."""
        leave = self.overview.feed.watch(principal, tell)
        try:
            with self.questions.follow(principal) as following:
                async for _ in following:
                    tell()
        finally:
            leave()

    def _held(self, principal: str) -> Iterator[tuple[str, Sessions, HttpSession]]:
        for transport, sessions in self._sessions.items():
            for one in sessions.of_person(principal):
                yield transport, sessions, one


def _fields(question: Waiting) -> list[elicitation_form.Shown] | None:
    """None where they can't be shown: then the question can be declined at least, and the rest of the page is there."""
    try:
        return elicitation_form.shown(question.schema)
    except Exception:  # the schema is a plugin's, and may hold anything
        log.exception("a question of %s can't be shown as a form", question.tool)
        return None


def _shown(transport: str, held: HttpSession) -> ShownSession:
    session = held.session
    revision = session.revision.name if session.revision is not None else ""
    return ShownSession(_named(held), session.client, transport, revision, held.since, len(session.in_flight))


def _named(held: HttpSession) -> str:
    """The id itself opens the session."""
    return tag(held.id)
