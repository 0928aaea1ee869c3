"""Sign people in by name and password, by pairing code, or at a provider's page and back; and sign them out."""

import hmac
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from toolgate.server.auth.login.accounts import Person, SignInError
from toolgate.server.auth.login.methods import ACCEPTED, REFUSED, THROTTLED
from toolgate.server.auth.login.providers import NOT_ALLOWED, IdentityProvider
from toolgate.server.auth.login.sessions import PENDING_LIFETIME, PendingLogin, TooManyLoginsError, derive_state
from toolgate.server.auth.login.throttle import ThrottledError
from toolgate.server.base.principals.sign_in_methods import PASSWORD
from toolgate.transports.web.http import read_form, read_query, redirect, short_hash, with_headers
from toolgate.transports.web.page_context import ANONYMOUS, format_sentence
from toolgate.transports.web.sign_in_context import SESSION, SignInContext, format_wait
from toolgate.transports.web.templates import SCRIPT_POLICY

CALLBACK = "/callback"  # operators have registered it at their providers
SIGN_IN_REFUSED = "Wrong name or password."  # for people
WRONG_CODE = "That code is wrong or has expired. Use the newest one in the server log."
ACCOUNT_EXISTS = "The first account has been created in the meantime. Sign in with it."
BUSY = "Too many sign-ins were started in the last minute. Wait a minute and try again."
STALE_SIGN_OUT = "That page was no longer current, so you are still signed in. Sign out here."
LOGIN_EXPIRED = "This sign-in has expired: it took too long, is already complete, or was started in another browser."


class LoginPages:
    """`callback_paths`: provider → the path to which it sends browsers back. Each provider has its own, so that a code
    of one is never taken for another's (RFC 9700 section 4.4); the first has the path of a single provider."""

    def __init__(self, context: SignInContext) -> None:
        self._context = context
        self._sign_in = context.sign_in
        keys = list(context.sign_in.providers) or [""]
        self.callback_paths = {key: CALLBACK if key == keys[0] else f"{CALLBACK}/{key}" for key in keys}

    # -- with name and password

    async def login_page(self, request: Request) -> Response:
        query = read_query(request)
        question, switch = query.get("question", ""), "switch" in query
        if not switch and (await self._context.identify_visitor(request)).person is not None:
            return self._onward(request, question)
        only = list(self._sign_in.providers)
        if question and self._sign_in.accounts is None and len(only) == 1:
            return self._context.redirect_to("consent", question=question, via=only[0], switch="1" if switch else "")
        return await self._page(request, question, switch=switch)

    async def login(self, request: Request) -> Response:
        fields = dict(await read_form(request))
        question, name, switch = fields.get("question", ""), fields.get("username", ""), bool(fields.get("switch"))
        if (fault := self._context.find_csrf_fault(request, ANONYMOUS, fields, "login", question)) is not None:
            return await self._page(request, question, 403, fault, name, switch)
        if fields.get("via") in self._sign_in.providers and not question:
            return await self.send_to_provider(PendingLogin(fields["via"], "", frozenset(), switch), request)
        code = fields.get("code", "")
        try:
            person, problem = await self._check_and_record(request, fields)
        except ThrottledError as error:
            page = await self._page(request, question, 429, format_wait(error), name, switch, code)
            return with_headers(page, ("retry-after", str(error.wait)))
        if person is None:
            code = "" if problem == WRONG_CODE else code
            return await self._page(request, question, 403, problem, name, switch, code)
        onward = await self._context.start_session(request, person, self._onward(request, question))
        return with_headers(onward, *await self._context.device_cookies(person))

    async def _check_and_record(self, request: Request, fields: Mapping[str, str]) -> tuple[Person | None, str]:
        """Check credentials, and log the result. Raises ThrottledError."""
        name, address = fields.get("username", ""), self._context.client_address(request)
        method = "pairing" if "code" in fields else PASSWORD.name
        device = self._context.device_of(request, name)
        try:
            person, problem = await self._authenticate(fields, address, device)
        except ThrottledError:
            self._sign_in.record(THROTTLED, method, address, await self._loggable_name(name))
            raise
        self._sign_in.record(REFUSED if person is None else ACCEPTED, method, address, await self._loggable_name(name))
        return person, problem

    async def _loggable_name(self, name: str) -> str:
        """Return the name if it is an account's: other text in this field may be a password."""
        accounts = self._sign_in.accounts
        return name if accounts is not None and await accounts.has_account(name) else ""

    async def _authenticate(self, fields: Mapping[str, str], address: str, device: str) -> tuple[Person | None, str]:
        """Return the person, or what is wrong with the credentials. Raises ThrottledError."""
        accounts, pairing = self._sign_in.accounts, self._sign_in.pairing
        if accounts is None:
            return None, SIGN_IN_REFUSED
        name, password = fields.get("username", ""), fields.get("password", "")
        if "code" not in fields or pairing is None:
            return await accounts.verify_password(name, password, address, device), SIGN_IN_REFUSED
        if not await accounts.is_empty():
            return None, ACCOUNT_EXISTS
        if not await pairing.verify(fields["code"], address):
            return None, WRONG_CODE
        try:
            person = await accounts.add(name, password, first=True)
        except SignInError as error:
            return None, format_sentence(error)
        await pairing.expire()
        return person, ""

    async def _page(
        self,
        request: Request,
        id: str,
        status: int = 200,
        problem: str | None = None,
        name: str = "",
        switch: bool = False,
        code: str = "",
    ) -> Response:
        question = await self._context.authorization.find_consent(id) if id else None
        if id and question is None:
            return self._context.question_gone_page(id)
        csrf, cookies = self._context.csrf_token(request, ANONYMOUS, "login", id)
        has_people = await self._sign_in.offer_pairing() is None
        page = self._context.pages.render(
            "login" if has_people else "pairing",
            status,
            isolated=not id,
            question=question,
            has_accounts=self._sign_in.accounts is not None,
            providers=list(self._sign_in.providers.values()),
            username=name[:64],
            code=code[:64],
            switch="1" if switch else "",
            csrf=csrf,
            problem=problem,
        )
        if not id or not has_people:  # the link with the pairing code leads to no client's question
            page.headers.update(SCRIPT_POLICY)
        return with_headers(page, *cookies)

    # -- at a provider's page

    async def send_to_provider(self, login: PendingLogin, request: Request) -> Response:
        provider = self._sign_in.providers.get(login.provider)
        if provider is None:
            return self._context.redirect_to("login", question=login.consent_id)
        try:
            ticket = await self._sign_in.pending_logins.start(login, self._context.client_address(request))
        except TooManyLoginsError:
            again = self._context.path_of("login", question=login.consent_id)
            page = self._context.pages.notice(429, "Too many sign-ins", BUSY, again=again)
            return with_headers(page, ("retry-after", "60"))
        try:
            address = await provider.authorize_url(self._callback_url(provider), ticket, login.select_account)
        except SignInError as error:
            return self._failure_page(error, login)
        cookie = self._context.cookies.set(_login_cookie(derive_state(ticket)), ticket, PENDING_LIFETIME)
        return with_headers(redirect(address), cookie)

    async def callback(self, back: str, request: Request) -> Response:
        """Receive the browser that returns at the path `back`: only with the cookie that it left with (AZ-08, MCP-02),
        and only from its provider."""
        answer = read_query(request)
        state = answer.get("state", "")
        ticket = self._context.cookies.get(request, _login_cookie(state))
        login = None
        if ticket and hmac.compare_digest(derive_state(ticket).encode(), state.encode()):
            login = await self._sign_in.pending_logins.redeem(ticket)
        provider = self._sign_in.providers.get(login.provider) if login is not None else None
        if login is None or provider is None or self.callback_paths[provider.key] != back:
            again = "Go back to the app or page you came from and try again."
            return self._context.pages.notice(400, "You are not signed in", LOGIN_EXPIRED, again)
        clear = self._context.cookies.clear(_login_cookie(state))
        try:
            person = await provider.complete_sign_in(answer, self._callback_url(provider), ticket)
        except SignInError as error:
            self._sign_in.record(REFUSED, provider.key, self._context.client_address(request))
            return with_headers(self._failure_page(error, login), clear)
        self._sign_in.record(ACCEPTED, provider.key, self._context.client_address(request), person.name)
        if login.consent_id:
            onward = await self._context.answer_question(login.consent_id, person, login.scopes)
        else:
            onward = self._context.send_onward(request)
        return with_headers(await self._context.start_session(request, person, onward), clear)

    def _failure_page(self, error: SignInError, login: PendingLogin) -> Response:
        other = "1" if str(error) == NOT_ALLOWED else ""  # else the provider signs in the same person without asking
        again = self._context.path_of("login", question=login.consent_id, switch=other)
        return self._context.pages.notice(403, "You are not signed in", format_sentence(error), again=again)

    # -- signing out

    async def logout_page(self, request: Request, status: int = 200, problem: str | None = None) -> Response:
        visitor = await self._context.identify_visitor(request)
        csrf, cookies = self._context.csrf_token(request, visitor, "logout", "")
        page = self._context.pages.render(
            "logout", status, person=visitor.person, can_sign_out=visitor.key != "", csrf=csrf, problem=problem
        )
        return with_headers(page, *cookies)

    async def logout(self, request: Request) -> Response:
        """End the session. The form is that of the sign-out page or of the account page."""
        fields = dict(await read_form(request))
        visitor = await self._context.identify_visitor(request)
        faults = [self._context.find_csrf_fault(request, visitor, fields, page, "") for page in ("logout", "account")]
        if visitor.person is None or not visitor.key:  # signed out already, or signed in by a proxy
            return self._context.redirect_to("logout")
        if None not in faults:
            return await self.logout_page(request, 403, STALE_SIGN_OUT)
        await self._context.end_session(request)
        page = self._context.pages.notice(
            200,
            "You are signed out",
            "Apps you have approved stay connected until you revoke them on your account page.",
            isolated=True,
            again=self._context.path_of("login"),
            again_label="Sign in",
        )
        return with_headers(page, self._context.cookies.clear(SESSION))

    def _onward(self, request: Request, question: str) -> Response:
        if question:
            return self._context.redirect_to("consent", question=question)
        return self._context.send_onward(request)

    def _callback_url(self, provider: IdentityProvider) -> str:
        return f"{self._context.public_url}{self.callback_paths[provider.key]}"


def _login_cookie(state: str) -> str:
    return f"away-{short_hash(state)}"
