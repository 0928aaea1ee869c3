"""What the pages of those who sign in share: who is looking, and what became of a question. Knows cookies; knows no
page in particular.
"""

from typing import Any

from toolgate.server.auth.login.accounts import Person, Refused
from toolgate.server.auth.login.methods import HEADER, REFUSED, SignIn
from toolgate.server.auth.login.sessions import LIFETIME
from toolgate.server.auth.oauth_server import Mistake, Redirect
from toolgate.transports.web.forms import NOBODY, Forms, Visitor, sentence
from toolgate.transports.web.http import BadForm, Incoming, Outgoing, redirect
from toolgate.transports.web.replays import Answered

SESSION = "session"


class Turned(BadForm):
    """A request that says who sends it, and is not to be believed."""

    status = 403


class Desk(Forms):
    """`public_url` has no trailing slash. `authorization` answers questions (server/auth/oauth_server)."""

    def __init__(self, public_url: str, server: str, authorization: Any, sign_in: SignIn) -> None:
        super().__init__(public_url, server)
        self.authorization = authorization
        self.sign_in = sign_in
        self.answered = Answered()

    async def visitor(self, incoming: Incoming) -> Visitor:
        """Who is looking. Raises Turned."""
        if self.sign_in.trusted is not None:
            try:
                named = self.sign_in.trusted.person(incoming.headers, incoming.peer)
            except Refused as error:
                said = incoming.headers.get(self.sign_in.trusted.header.encode(), b"")
                self.sign_in.note(REFUSED, HEADER, self.address(incoming), said.decode("utf-8", "replace"))
                raise Turned(str(error)) from None
            if named is not None:
                return Visitor(named)
        login = await self.sign_in.login(self.cookies.get(incoming, SESSION))
        return NOBODY if login is None else Visitor(login.person, login.key)

    def address(self, incoming: Incoming) -> str:
        """Where a request came from, through whatever proxies there are."""
        forwarded = incoming.headers.get(b"x-forwarded-for", b"").decode("latin-1")
        return self.sign_in.proxies.address(incoming.peer, forwarded)

    async def signed_in(self, incoming: Incoming, person: Person, onward: Outgoing) -> Outgoing:
        """Go `onward` with a new session, whatever the browser came with (SEC-11)."""
        secret = await self.sign_in.logins.begin(person, self.cookies.get(incoming, SESSION))
        return onward.having(self.cookies.put(SESSION, secret, LIFETIME))

    async def answer(self, question: str, person: Person | None, scopes: frozenset[str]) -> Outgoing:
        """Answer a question, and send the browser back with that."""
        outcome = await self.authorization.answer(question, person, scopes)
        if isinstance(outcome, Redirect):
            self.answered.note(question)
        return self.outcome(outcome)

    def outcome(self, outcome: Redirect | Mistake) -> Outgoing:
        """Send the browser back to the client, or say why not."""
        if isinstance(outcome, Redirect):
            return self._sent_on(outcome) if outcome.host else redirect(outcome.location)
        anew = "Go back to the app and connect again; if that does not help, remove this server there and add it anew."
        advice = outcome.advice
        return self.pages.notice(
            outcome.status,
            "This can’t go on",  # for people
            sentence(outcome.description),
            *(("Nothing was granted.", *advice.sentences) if advice is not None else (f"Nothing was granted. {anew}",)),
            alone=False,
            about=outcome.document,
            commands=advice.commands if advice is not None else (),
        )

    def _sent_on(self, outcome: Redirect) -> Outgoing:
        """The page from which a person goes on by themselves."""
        return self.pages.notice(
            400,
            "This can’t go on",
            sentence(outcome.description),
            f"Nothing was granted. The app that asks is at {outcome.host}, and can be told there what went wrong. "
            "Go on only if you have just started to connect it.",
            alone=False,
            again=outcome.location,
            again_label=f"Continue to {outcome.host}",
        )

    def gone(self, question: str) -> Outgoing:
        """For a question that waits no more."""
        if question in self.answered:
            return self.pages.notice(
                410,
                "This question was answered already",
                "Nothing more was granted just now. Go back to the app; if it is not connected, connect again there.",
                alone=False,
            )
        return self.pages.notice(
            410,
            "This question has expired",
            "It waited longer than ten minutes, or was answered before. Nothing was granted just now.",
            "Go back to the app and connect again.",
            alone=False,
        )
