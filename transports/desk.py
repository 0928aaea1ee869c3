"""What the pages share: who is looking, forms bound to what was shown to whom, and where one goes next. Knows cookies;
knows no page in particular.

A form is bound to the login session, or, before there is one, to a cookie of its question's own: so tabs don't disturb
each other.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from toolgate.server.auth.accounts import Person, Refused
from toolgate.server.auth.issuing import Mistake, Redirect
from toolgate.server.auth.logins import LIFETIME
from toolgate.server.auth.signin import HEADER, REFUSED, SignIn
from toolgate.transports.answered import Answered
from toolgate.transports.exchange import BadForm, Cookies, Incoming, Outgoing, fresh, redirect, tag
from toolgate.transports.pages import Pages

FORM_TIME = 3600.0  # seconds a form that waits for its first key press still holds
SESSION = "session"
STALE = "This page was no longer current, so nothing was done. Please try again."  # for people
NO_COOKIE = (
    "This page needs a cookie, and your browser sent none, so nothing was done. Allow cookies here and try again."
)


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who a browser belongs to, as far as known. `key` is the login session's, "" where a proxy says who it is."""

    person: Person | None = None
    key: str = ""


NOBODY = Visitor()


class Turned(BadForm):
    """A request that says who sends it, and is not to be believed."""

    status = 403


class Desk:
    """`public_url` has no trailing slash. `authorization` answers questions (server/auth/issuing)."""

    def __init__(self, public_url: str, server: str, authorization: Any, sign_in: SignIn) -> None:
        self.public_url = public_url
        self.base = urlsplit(public_url).path
        self.authorization = authorization
        self.sign_in = sign_in
        self.pages = Pages(self.base, server)
        self.cookies = Cookies(public_url)
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

    def bound(self, incoming: Incoming, visitor: Visitor, *page: str) -> tuple[str, list[tuple[str, str]]]:
        """The token of a form of `page` (its name, its question, …), and the cookies it needs."""
        if visitor.key:
            return _token(visitor.key, visitor, page), []
        name = _form_cookie(page)
        secret = self.cookies.get(incoming, name) or fresh()
        return _token(secret, visitor, page), [self.cookies.put(name, secret, FORM_TIME)]

    def is_bound(self, incoming: Incoming, visitor: Visitor, fields: Mapping[str, str], *page: str) -> bool:
        """Whether a form came from that page, as it was shown to this browser."""
        if incoming.headers.get(b"sec-fetch-site", b"same-origin") not in (b"same-origin", b"none"):
            return False
        secret = visitor.key or self.cookies.get(incoming, _form_cookie(page))
        token = _token(secret, visitor, page)
        return bool(secret) and hmac.compare_digest(token.encode(), fields.get("csrf", "").encode())

    def unbound(self, incoming: Incoming, visitor: Visitor, *page: str) -> str:
        """What to say of a form that is not bound."""
        return STALE if visitor.key or self.cookies.get(incoming, _form_cookie(page)) else NO_COOKIE

    async def answer(self, question: str, person: Person | None, scopes: frozenset[str]) -> Outgoing:
        """Answer a question, and send the browser back with that."""
        outcome = await self.authorization.answer(question, person, scopes)
        if isinstance(outcome, Redirect):
            self.answered.note(question)
        return self.outcome(outcome)

    def outcome(self, outcome: Redirect | Mistake) -> Outgoing:
        """Send the browser back to the client, or say why not."""
        if isinstance(outcome, Redirect):
            return redirect(outcome.location)
        return self.pages.notice(
            outcome.status,
            "This can’t go on",  # for people
            sentence(outcome.description),
            "Nothing was granted. Go back to the app and connect again; if that does not help, remove this server "
            "there and add it anew.",
            alone=False,
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

    def refused(self, status: int, text: str) -> Outgoing:
        return self.pages.notice(status, "That did not work", sentence(text), alone=False)

    def to(self, page: str, **asked: str) -> Outgoing:
        return redirect(self.path(page, **asked))

    def path(self, page: str, **asked: str) -> str:
        """The page's path, with what of `asked` is not empty."""
        query = urlencode({name: value for name, value in asked.items() if value}, quote_via=quote)
        return f"{self.base}/{page}" + (f"?{query}" if query else "")


def sentence(text: object) -> str:
    """An error's text, for people."""
    said = str(text).rstrip(".")
    return f"{said[:1].upper()}{said[1:]}."


def _token(secret: str, visitor: Visitor, page: tuple[str, ...]) -> str:
    who = (visitor.person.issuer, visitor.person.subject) if visitor.person is not None else ("", "")
    text = "\n".join((*page, *who))
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def _form_cookie(page: tuple[str, ...]) -> str:
    return f"form-{tag(page[1])}" if page[1] else "form"
