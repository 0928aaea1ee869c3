"""All that a person's page shows, in one moment: what the overview knows, and the sessions, grants and questions
besides. Knows sessions; knows neither pages nor requests.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from toolgate.server.auth.grants import GrantSummary
from toolgate.server.auth.login.accounts import Person
from toolgate.server.calls.pending_questions import PendingQuestions, QuestionView
from toolgate.server.dashboard import Dashboard
from toolgate.server.protocol.session import short_hash
from toolgate.transports.http.session import HttpSession
from toolgate.transports.http.sessions import Sessions
from toolgate.transports.web import elicitation_form

MAX_SESSIONS = 20  # that are shown, what was used last first
PARTS = ("questions", "runs", "calls", "sessions", "tasks", "callbacks", "apps")  # what changes; the page's macros

log = logging.getLogger("toolgate.http")


class GrantsOfPerson(Protocol):
    """Of server/auth/oauth_server."""

    async def list_grants(self, subject: Person) -> list[GrantSummary]: ...

    async def revoke_grant(self, subject: Person, id: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class ShownSession:
    """`id` names it on the page, and opens nothing; `since` is in seconds since the epoch."""

    id: str
    client: str
    transport: str
    revision: str
    since: float
    running: int


class HomeData:
    """`sessions` by what their transport is called; `granting` is None where nothing is granted here."""

    def __init__(
        self,
        dashboard: Dashboard,
        sessions: Mapping[str, Sessions],
        questions: PendingQuestions,
        grants: GrantsOfPerson | None = None,
    ) -> None:
        self.dashboard = dashboard
        self.grants = grants
        self.questions = questions
        self._sessions = sessions

    async def read(self, principal: str, person: Person | None) -> dict[str, Any]:
        """By the names that the page's macros have for it. Raises StateError."""
        grants = await self.grants.list_grants(person) if self.grants is not None and person is not None else []
        held = sorted(self._sessions_of(principal), key=lambda one: one[2].last_used, reverse=True)
        going = await self.dashboard.read(principal, [one.session for _, _, one in held[:MAX_SESSIONS]])
        waiting = self.questions.waiting(principal)
        return {
            "going": going,
            "sessions": [_to_shown_session(transport, one) for transport, _, one in held[:MAX_SESSIONS]],
            "more_sessions": len(held[MAX_SESSIONS:]),
            "questions": [(question, _form_fields(question)) for question in waiting],
            "grants": grants,
            "grants_any": self.grants is not None,
            "names": {grant.client.id: grant.client.name for grant in grants},
        }

    def end_session(self, principal: str, id: str) -> bool:
        """End one of the principal's sessions: was there one?"""
        for _, sessions, one in self._sessions_of(principal):
            if _page_id(one) == id:
                sessions.close(one)
                return True
        return False

    async def follow(self, principal: str, tell: Callable[[], None]) -> None:
        """Have `tell` called when there is something new at once, until cancelled."""
        leave = self.dashboard.recent_calls.watch(principal, tell)
        try:
            with self.questions.follow(principal) as following:
                async for _ in following:
                    tell()
        finally:
            leave()

    def _sessions_of(self, principal: str) -> Iterator[tuple[str, Sessions, HttpSession]]:
        for transport, sessions in self._sessions.items():
            for one in sessions.of_person(principal):
                yield transport, sessions, one


def _form_fields(question: QuestionView) -> list[elicitation_form.FormField] | None:
    """None where they can't be shown: then the question can be declined at least, and the rest of the page is there."""
    try:
        return elicitation_form.form_fields(question.schema)
    except Exception:  # the schema is a plugin's, and may hold anything
        log.exception("a question of %s can't be shown as a form", question.tool)
        return None


def _to_shown_session(transport: str, held: HttpSession) -> ShownSession:
    session = held.session
    revision = session.revision.name if session.revision is not None else ""
    return ShownSession(_page_id(held), session.client, transport, revision, held.began, len(session.in_flight))


def _page_id(held: HttpSession) -> str:
    """The id itself opens the session."""
    return short_hash(held.id)
