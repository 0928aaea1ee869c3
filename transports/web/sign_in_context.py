"""Give the sign-in pages what they share: the visitor behind a request, and the outcome of a client's question.

Recent answers are remembered, so that a double click gets the same answer twice.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from toolgate.server.auth.login.accounts import Person, SignInError, normalize_name_or_empty
from toolgate.server.auth.login.methods import REFUSED, SignInMethods
from toolgate.server.auth.login.sessions import LIFETIME
from toolgate.server.auth.login.throttle import ThrottledError
from toolgate.server.auth.oauth_server.responses import ErrorPage, Redirect
from toolgate.server.auth.oauth_server.service import AuthorizationService
from toolgate.server.base.principals.sign_in_methods import HEADER
from toolgate.transports.http.requests.asgi import headers_of
from toolgate.transports.web.http import BadFormError, redirect, short_hash, with_headers
from toolgate.transports.web.page_context import ANONYMOUS, PageContext, Visitor, format_sentence
from toolgate.transports.web.recent_visitors import RecentVisitors

SESSION = "session"
DEVICE_LIFETIME = 180 * 86_400.0  # seconds that a browser is recognized after its last sign-in
COULD_NOT_CONNECT = "The app could not be connected"  # for people
NOT_GRANTED = "No access was granted."
ANSWERED = (
    "This request was already answered",
    "No further access was granted. Go back to the app; if it is not connected, connect it again.",
)
EXPIRED = (
    "This request has expired",
    "It waited longer than ten minutes, or was answered before. No access was granted just now.",
    "Go back to the app and connect again.",
)
BROWSERS = (  # sign in User-Agent → name; the first that matches, since most claim to be others, too
    ("Firefox/", "Firefox"),
    ("Edg/", "Edge"),
    ("OPR/", "Opera"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
)
SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)
DOUBLE_CLICK = 10.0  # seconds within which the same form is a double click
ANSWERED_TIME = 600.0  # seconds a question can wait: until then it was answered, and has not expired
MAX_QUESTIONS = 2_000  # the oldest are forgotten


class UntrustedIdentityError(BadFormError):
    """A request names its sender in a header that is not trusted."""

    status = 403


class SignInContext(PageContext):
    """`public_url` has no trailing slash. `authorization` keeps the questions (server/auth/oauth_server)."""

    def __init__(
        self, public_url: str, server: str, authorization: AuthorizationService, sign_in: SignInMethods
    ) -> None:
        super().__init__(public_url, server, has_account_page=True)
        self.authorization = authorization
        self.sign_in = sign_in
        self.replays = AnsweredQuestions()
        self._recent = RecentVisitors()

    async def identify_visitor(self, request: Request) -> Visitor:
        """Return the visitor who sent a request. Raises UntrustedIdentityError."""
        if self.sign_in.trusted_header is not None:
            headers = headers_of(request.scope)
            try:
                named = self.sign_in.trusted_header.read_person(headers, _peer(request))
            except SignInError as error:
                said = headers.get(self.sign_in.trusted_header.header.encode(), b"")
                self.sign_in.record(REFUSED, HEADER.name, self.client_address(request), said.decode("utf-8", "replace"))
                raise UntrustedIdentityError(str(error)) from None
            if named is not None:
                return Visitor(named)
        secret = self.cookies.get(request, SESSION)
        login = await self.sign_in.find_session(secret)
        visitor = ANONYMOUS if login is None else Visitor(login.person, login.form_key)
        self._recent.note(secret, visitor)
        return visitor

    def recall_visitor(self, request: Request) -> Visitor | None:
        """Return the recent visitor of a request's session, or None, without the database."""
        return self._recent.find(self.cookies.get(request, SESSION))

    def client_address(self, request: Request) -> str:
        """Return the address that a request came from, behind the trusted proxies."""
        forwarded = request.headers.get("x-forwarded-for", "")
        return self.sign_in.proxies.client_address(_peer(request), forwarded)

    async def start_session(self, request: Request, person: Person, onward: Response) -> Response:
        """Add a new session to the response `onward`, and end the one the browser had (SEC-11)."""
        browser = name_browser(request.headers.get("user-agent", ""))
        secret = await self.sign_in.sessions.start(person, self.cookies.get(request, SESSION), browser)
        return with_headers(onward, self.cookies.set(SESSION, secret, LIFETIME))

    async def end_session(self, request: Request) -> None:
        """End the session of a request, and forget its visitor."""
        secret = self.cookies.get(request, SESSION)
        await self.sign_in.sessions.end(secret)
        self._recent.note(secret, ANONYMOUS)

    def device_of(self, request: Request, name: str) -> str:
        """Return the device cookie of this browser for an account, or ""."""
        return self.cookies.get(request, _device_cookie(name))

    async def device_cookies(self, person: Person) -> list[tuple[str, str]]:
        """Return the cookie that recognizes this browser while others guess the password."""
        accounts = self.sign_in.accounts
        kept = await accounts.issue_device_cookie(person) if accounts is not None else ""
        return [self.cookies.set(_device_cookie(person.name), kept, DEVICE_LIFETIME)] if kept else []

    async def answer_question(self, question: str, person: Person | None, scopes: frozenset[str]) -> Response:
        """Answer a question, and send the browser back to the client with the outcome."""
        outcome = await self.authorization.answer_consent(question, person, scopes)
        if isinstance(outcome, Redirect):
            self.replays.mark_answered(question)
        return self.show_outcome(outcome)

    def show_outcome(self, outcome: Redirect | ErrorPage) -> Response:
        """Send the browser back to the client, or show why not."""
        if isinstance(outcome, Redirect):
            return self._continue_page(outcome) if outcome.host else redirect(outcome.location)
        retry = "Go back to the app and connect again. If that fails, remove this server there and add it again."
        advice = outcome.advice
        return self.pages.notice(
            outcome.status,
            COULD_NOT_CONNECT,
            format_sentence(outcome.description),
            *((NOT_GRANTED, *advice.sentences) if advice is not None else (f"{NOT_GRANTED} {retry}",)),
            about=outcome.document,
            commands=advice.commands if advice is not None else (),
            **self.first_page_link(),
        )

    def _continue_page(self, outcome: Redirect) -> Response:
        """Return the page with a link to the client, which the person follows or not."""
        return self.pages.notice(
            400,
            COULD_NOT_CONNECT,
            format_sentence(outcome.description),
            f"{NOT_GRANTED} Continuing opens {outcome.host} and tells it what went wrong. "
            "Continue only if you have just started to connect it.",
            again=outcome.location,
            again_label=f"Continue to {outcome.host}",
        )

    def question_gone_page(self, question: str) -> Response:
        """Return the page for a question that no longer waits."""
        title, *sentences = ANSWERED if question in self.replays else EXPIRED
        return self.pages.notice(410, title, *sentences, **self.first_page_link())


def format_wait(error: ThrottledError) -> str:
    """Return for how long a person must wait, as a sentence."""
    return f"Too many attempts. Wait {error.wait} second{'s' * (error.wait > 1)} and try again."


def name_browser(user_agent: str) -> str:
    """Return a browser's name for itself in a few words, such as "Firefox on Linux", or ""."""
    found = [next((name for sign, name in table if sign in user_agent), "") for table in (BROWSERS, SYSTEMS)]
    return " on ".join(filter(None, found))


def _device_cookie(name: str) -> str:
    return f"device-{short_hash(normalize_name_or_empty(name))}"


def _peer(request: Request) -> str:
    """Return the address at the other end of the connection, which may be a proxy's."""
    return request.client.host if request.client is not None else ""


class AnsweredForm(msgspec.Struct):
    until: float
    form: bytes
    turn: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    response: Response | None = None


class AnsweredQuestions:
    """Kept in memory only, since a response holds a code. `now` is monotonic."""

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
