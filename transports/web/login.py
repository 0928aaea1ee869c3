"""Signing in, by name and password, with the pairing code, or at somebody else's page and back; and signing out. Knows
forms and cookies; who somebody is, the ways of server/auth/login/methods.py say.
"""

import hmac
from collections.abc import Mapping

from toolgate.server.auth.login.accounts import Person, SignInError, normalize_name_or_empty
from toolgate.server.auth.login.methods import ACCEPTED, PASSWORD, REFUSED, THROTTLED
from toolgate.server.auth.login.pending_logins import LIFETIME, PendingLogin, TooManyLoginsError, derive_state
from toolgate.server.auth.login.providers import NOT_ALLOWED, IdentityProvider
from toolgate.server.auth.login.throttle import ThrottledError
from toolgate.transports.web.http import WebRequest, WebResponse, redirect, short_hash
from toolgate.transports.web.page_context import ANONYMOUS, format_sentence
from toolgate.transports.web.sign_in_context import SESSION, SignInContext

CALLBACK = "/callback"  # operators have registered it at their providers
HOME_PAGE = ""  # where one goes who was on the way nowhere else
DEVICE_LIFETIME = 180 * 86_400.0  # seconds since its last sign-in a browser is known by
SIGN_IN_REFUSED = "Name and password don’t belong together."  # for people
WRONG_CODE = "This is not the pairing code that the server’s log shows last, or it is too old."
ACCOUNT_EXISTS = "The first account has been made in the meantime. Sign in with it."
BUSY = "Too many sign-ins were begun in the last minute. Wait a minute, then try again."
LOGIN_EXPIRED = "Nobody waits for this sign-in any more: it took too long, was done already, or began elsewhere."


class LoginPages:
    """`backs` are the paths to which providers send browsers back, by provider: each its own, so that what one of them
    was asked is never answered with another's code (RFC 9700 section 4.4). The first has the one it has alone."""

    def __init__(self, context: SignInContext) -> None:
        self._context = context
        self._sign_in = context.sign_in
        keys = list(context.sign_in.providers) or [""]
        self.callback_paths = {key: CALLBACK if key == keys[0] else f"{CALLBACK}/{key}" for key in keys}

    # -- with a name and a password

    async def login_page(self, incoming: WebRequest) -> WebResponse:
        asked = incoming.read_query()
        question, switch = asked.get("question", ""), "switch" in asked
        if not switch and (await self._context.identify_visitor(incoming)).person is not None:
            return self._onward(question)
        only = list(self._sign_in.providers)
        if question and self._sign_in.accounts is None and len(only) == 1:
            return self._context.redirect_to("consent", question=question, via=only[0], switch="1" if switch else "")
        return await self._page(incoming, question, switch=switch)

    async def login(self, incoming: WebRequest) -> WebResponse:
        fields = dict(incoming.read_form())
        question, name, switch = fields.get("question", ""), fields.get("username", ""), bool(fields.get("switch"))
        if not self._context.has_valid_csrf(incoming, ANONYMOUS, fields, "login", question):
            problem = self._context.describe_csrf_failure(incoming, ANONYMOUS, "login", question)
            return await self._page(incoming, question, 403, problem, name, switch)
        if fields.get("via") in self._sign_in.providers and not question:
            return await self.send_to_provider(PendingLogin(fields["via"], "", frozenset(), switch), incoming)
        try:
            person, problem = await self._check_and_record(incoming, fields)
        except ThrottledError as error:
            wait = f"There were too many tries. Wait {error.wait} second{'s' * (error.wait > 1)}, then try again."
            page = await self._page(incoming, question, 429, wait, name, switch)
            return page.with_headers(("retry-after", str(error.wait)))
        if person is None:
            return await self._page(incoming, question, 403, problem, name, switch)
        onward = await self._context.start_session(incoming, person, self._onward(question))
        return onward.with_headers(*await self._device_cookies(person))

    async def _check_and_record(self, incoming: WebRequest, fields: Mapping[str, str]) -> tuple[Person | None, str]:
        """As `_known`, and the log has it. Raises Throttled."""
        name, address = fields.get("username", ""), self._context.client_address(incoming)
        way = "pairing" if "code" in fields else PASSWORD
        device = self._context.cookies.get(incoming, _device_cookie(name))
        try:
            person, problem = await self._check_credentials(fields, address, device)
        except ThrottledError:
            self._sign_in.record(THROTTLED, way, address, await self._loggable_name(name))
            raise
        self._sign_in.record(REFUSED if person is None else ACCEPTED, way, address, await self._loggable_name(name))
        return person, problem

    async def _loggable_name(self, name: str) -> str:
        """The name, if there is such an account: what else is typed in its place may be a password."""
        accounts = self._sign_in.accounts
        return name if accounts is not None and await accounts.has_account(name) else ""

    async def _device_cookies(self, person: Person) -> list[tuple[str, str]]:
        """The cookie by which this browser is known again when others guess at the name."""
        kept = await self._sign_in.accounts.issue_device_cookie(person) if self._sign_in.accounts is not None else ""
        return [self._context.cookies.set(_device_cookie(person.name), kept, DEVICE_LIFETIME)] if kept else []

    async def _check_credentials(
        self, fields: Mapping[str, str], address: str, device: str
    ) -> tuple[Person | None, str]:
        """Who signs in with what was typed, or what is wrong with it. Raises Throttled."""
        accounts, pairing = self._sign_in.accounts, self._sign_in.pairing
        if accounts is None:
            return None, SIGN_IN_REFUSED
        name, password = fields.get("username", ""), fields.get("password", "")
        if "code" not in fields or pairing is None:
            return await accounts.verify_password(name, password, address, device), SIGN_IN_REFUSED
        if not await accounts.is_empty():
            return None, ACCOUNT_EXISTS
        if not pairing.verify(fields["code"], address):
            return None, WRONG_CODE
        try:
            person = await accounts.add(name, password, first=True)
        except SignInError as error:
            return None, format_sentence(error)
        pairing.expire()
        return person, ""

    async def _page(
        self,
        incoming: WebRequest,
        id: str,
        status: int = 200,
        problem: str | None = None,
        name: str = "",
        switch: bool = False,
    ) -> WebResponse:
        question = await self._context.authorization.question(id) if id else None
        if id and question is None:
            return self._context.question_gone_page(id)
        csrf, cookies = self._context.csrf_token(incoming, ANONYMOUS, "login", id)
        page = self._context.pages.render(
            "pairing" if await self._sign_in.offer_pairing() else "login",
            status,
            isolated=not id,
            question=question,
            has_accounts=self._sign_in.accounts is not None,
            providers=list(self._sign_in.providers.values()),
            username=name[:64],
            switch="1" if switch else "",
            csrf=csrf,
            problem=problem,
        )
        return page.with_headers(*cookies)

    # -- at somebody else's page

    async def send_to_provider(self, departure: PendingLogin, incoming: WebRequest) -> WebResponse:
        provider = self._sign_in.providers.get(departure.provider)
        if provider is None:
            return self._context.redirect_to("login", question=departure.consent_id)
        try:
            ticket = await self._sign_in.pending_logins.start(departure, self._context.client_address(incoming))
        except TooManyLoginsError:
            again = self._context.path_of("login", question=departure.consent_id)
            page = self._context.pages.notice(
                429, "Not just now", BUSY, isolated=False, again=again, again_label="Try again"
            )
            return page.with_headers(("retry-after", "60"))
        try:
            address = await provider.authorize_url(self._callback_url(provider), ticket, departure.select_account)
        except SignInError as error:
            return self._failure_page(error, departure)
        return redirect(address).with_headers(
            self._context.cookies.set(_login_cookie(derive_state(ticket)), ticket, LIFETIME)
        )

    async def callback(self, back: str, incoming: WebRequest) -> WebResponse:
        """The browser comes back to `back`: only with the cookie that it left with (AZ-08, MCP-02), and from the
        provider it was sent to."""
        answer = incoming.read_query()
        state = answer.get("state", "")
        ticket = self._context.cookies.get(incoming, _login_cookie(state))
        departure = None
        if ticket and hmac.compare_digest(derive_state(ticket).encode(), state.encode()):
            departure = await self._sign_in.pending_logins.redeem(ticket)
        provider = self._sign_in.providers.get(departure.provider) if departure is not None else None
        if departure is None or provider is None or self.callback_paths[provider.key] != back:
            again = "Go back to where you came from and try again."
            return self._context.pages.notice(400, "You are not signed in", LOGIN_EXPIRED, again, isolated=False)
        clear = self._context.cookies.clear(_login_cookie(state))
        try:
            person = await provider.complete_sign_in(answer, self._callback_url(provider), ticket)
        except SignInError as error:
            self._sign_in.record(REFUSED, provider.key, self._context.client_address(incoming))
            return self._failure_page(error, departure).with_headers(clear)
        self._sign_in.record(ACCEPTED, provider.key, self._context.client_address(incoming), person.name)
        onward = self._context.redirect_to(HOME_PAGE)
        if departure.consent_id:
            onward = await self._context.answer_question(departure.consent_id, person, departure.scopes)
        return (await self._context.start_session(incoming, person, onward)).with_headers(clear)

    def _failure_page(self, error: SignInError, departure: PendingLogin) -> WebResponse:
        other = "1" if str(error) == NOT_ALLOWED else ""  # else the provider sends the same one again, unasked
        again = self._context.path_of("login", question=departure.consent_id, switch=other)
        return self._context.pages.notice(
            403, "You are not signed in", format_sentence(error), isolated=False, again=again, again_label="Try again"
        )

    # -- and out

    async def logout_page(self, incoming: WebRequest) -> WebResponse:
        visitor = await self._context.identify_visitor(incoming)
        csrf, cookies = self._context.csrf_token(incoming, visitor, "logout", "")
        page = self._context.pages.render("logout", person=visitor.person, can_sign_out=visitor.key != "", csrf=csrf)
        return page.with_headers(*cookies)

    async def logout(self, incoming: WebRequest) -> WebResponse:
        """From its own page or the account's: both are bound to the same session."""
        fields = dict(incoming.read_form())
        visitor = await self._context.identify_visitor(incoming)
        bound = any(self._context.has_valid_csrf(incoming, visitor, fields, page, "") for page in ("logout", "account"))
        if not bound or (visitor.person is not None and not visitor.key):  # nor can we where a proxy says who it is
            return self._context.redirect_to("logout")
        await self._sign_in.sessions.end(self._context.cookies.get(incoming, SESSION))
        told = self._context.pages.notice(
            200,
            "You are signed out",
            "Apps you have approved stay connected until you take that back on your account page.",
            again=self._context.path_of("login"),
            again_label="Sign in",
        )
        return told.with_headers(self._context.cookies.clear(SESSION))

    def _onward(self, question: str) -> WebResponse:
        return (
            self._context.redirect_to("consent", question=question)
            if question
            else self._context.redirect_to(HOME_PAGE)
        )

    def _callback_url(self, provider: IdentityProvider) -> str:
        return f"{self._context.public_url}{self.callback_paths[provider.key]}"


def _device_cookie(name: str) -> str:
    return f"device-{short_hash(normalize_name_or_empty(name))}"


def _login_cookie(state: str) -> str:
    return f"away-{short_hash(state)}"
