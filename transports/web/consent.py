"""Ask the person about a client's request, and take the answer.

A GET never answers a request, unless the same one was approved shortly before. It never answers one for a shell: a link
could make a browser grant a shell to the app's operator (RFC 9700 section 4.7).
"""

from collections.abc import Awaitable, Callable, Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from toolgate.server.auth.login.accounts import Person
from toolgate.server.auth.login.sessions import PendingLogin
from toolgate.server.auth.oauth_server.consent_requests import ConsentRequest
from toolgate.server.base.principals.scopes import OFFLINE, READ, SHELL, STAY_SIGNED_IN
from toolgate.transports.web.http import BadFormError, parse_fields, query_string, read_form, read_query, with_headers
from toolgate.transports.web.page_context import ANONYMOUS, Visitor
from toolgate.transports.web.sign_in_context import SignInContext

SCOPE = frozenset(("scope",))  # the field that comes once for each ticked box
RESOURCE = frozenset(("resource",))  # may come more than once (RFC 8707)
FORCED_PROMPTS = frozenset(("consent", "login", "select_account"))  # of OpenID Connect Core section 3.1.2.1
NOTHING_TICKED = "No box is ticked. Tick at least one box, or deny."


class ConsentPages:
    """`sentences` describe the scopes; `send_to_provider` sends a browser to sign in at a provider."""

    def __init__(
        self,
        context: SignInContext,
        sentences: Mapping[str, str],
        send_to_provider: Callable[[PendingLogin, Request], Awaitable[Response]],
    ) -> None:
        self._context = context
        self._sentences = sentences
        self._send_to_provider = send_to_provider

    async def authorize(self, request: Request) -> Response:
        """Take a client's request, by GET only (RFC 6749 section 3.1)."""
        address = self._context.client_address(request)
        outcome = await self._context.authorization.open_consent(query_string(request), address)
        if not isinstance(outcome, ConsentRequest):
            return self._context.show_outcome(outcome)
        person = (await self._context.identify_visitor(request)).person
        if person is None:
            return self._context.redirect_to("login", question=outcome.id)
        if not _is_local(outcome) and not _forces_prompt(query_string(request)):
            granted = await self._context.authorization.find_remembered_scopes(outcome.id, person)
            if granted is not None and SHELL not in granted:
                return await self._context.answer_question(outcome.id, person, granted)
        return self._context.redirect_to("consent", question=outcome.id)

    async def consent_page(self, request: Request) -> Response:
        return await self._page(request, _ConsentParams.from_fields(read_query(request)))

    async def consent(self, request: Request) -> Response:
        """Take the person's answer; an approval with no ticked box is asked again."""
        form = await read_form(request, SCOPE)
        fields, ticked = dict(form), [value for name, value in form if name == "scope"]
        params = _ConsentParams.from_fields(fields)
        visitor = await self._visitor(request, params)
        if (fault := self._context.find_csrf_fault(request, visitor, fields, *params.page)) is not None:
            return await self._page(request, params, 403, fault)
        if fields.get("decision") != "approve":
            return await self._answer(request, params.question, None, frozenset())
        question = await self._context.authorization.find_consent(params.question)
        granted = frozenset(ticked).intersection(question.scopes if question is not None else ticked)
        if not granted:
            return await self._page(request, params, 400, NOTHING_TICKED)
        if visitor.person is not None:
            return await self._answer(request, params.question, visitor.person, granted)
        if question is None:
            return self._context.question_gone_page(params.question)
        login = PendingLogin(params.via, params.question, granted, bool(params.switch))
        return await self._send_to_provider(login, request)

    async def _answer(self, request: Request, id: str, person: Person | None, scopes: frozenset[str]) -> Response:
        """Answer once, also when the person clicks twice."""

        async def answer() -> Response:
            if await self._context.authorization.find_consent(id) is None:
                return self._context.question_gone_page(id)
            return await self._context.answer_question(id, person, scopes)

        return await self._context.replays.answer_once(id, await request.body(), answer)

    async def _visitor(self, request: Request, params: "_ConsentParams") -> Visitor:
        """Return the person who answers, or ANONYMOUS if they are about to sign in as another person."""
        visitor = await self._context.identify_visitor(request)
        switches = params.switch and visitor.key and params.via in self._context.sign_in.providers
        return ANONYMOUS if switches else visitor

    async def _page(
        self, request: Request, params: "_ConsentParams", status: int = 200, problem: str | None = None
    ) -> Response:
        """Show the question to a person who is signed in, or will be by `via` after the answer (AZ-08)."""
        id = params.question
        question = await self._context.authorization.find_consent(id)
        if question is None:
            return self._context.question_gone_page(id)
        visitor = await self._visitor(request, params)
        provider = self._context.sign_in.providers.get(params.via) if visitor.person is None else None
        if visitor.person is None and provider is None:
            return self._context.redirect_to("login", question=id)
        shown = params if provider else _ConsentParams(id)
        csrf, cookies = self._context.csrf_token(request, visitor, *shown.page)
        person = visitor.person
        grants, client = self._context.authorization.grants, question.client.id
        page = self._context.pages.render(
            "consent",
            status,
            isolated=False,
            question=question,
            is_local=_is_local(question),
            person=person,
            is_known=person is not None and await grants.has_grant(person, client),
            can_switch=visitor.key != "",
            provider=provider,
            switch=shown.switch,
            scopes=[
                (scope, describe_scope(self._sentences, scope))
                for scope in sorted(question.scopes, key=lambda scope: scope != SHELL)  # in sight at once
            ],
            lists=READ if READ in question.scopes else "",
            shell=SHELL if SHELL in question.scopes else "",
            stay=f"{STAY_SIGNED_IN}." if question.stays_signed_in else "",
            csrf=csrf,
            problem=problem,
        )
        return with_headers(page, *cookies)


class _ConsentParams(msgspec.Struct, frozen=True):
    """The question to show, and its sign-in: `via` a provider, as the signed-in person, or to `switch`."""

    question: str
    via: str = ""
    switch: str = ""

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> "_ConsentParams":
        return cls(fields.get("question", ""), fields.get("via", ""), "1" if fields.get("switch") else "")

    @property
    def page(self) -> tuple[str, ...]:
        """Return what the form is bound to."""
        return ("consent", self.question, self.via, self.switch)


def describe_scope(sentences: Mapping[str, str], scope: str) -> str:
    """Return a sentence about a scope."""
    if scope == OFFLINE:
        return f"{STAY_SIGNED_IN}."
    return sentences.get(scope) or f"Use the tools of the plugin that needs “{scope}”."  # for people


def _is_local(question: ConsentRequest) -> bool:
    """Return whether the code goes to a program on a computer: any program there could take it (AZ-07, SEC-12)."""
    return question.client.loopback_only or not question.redirect_uri.startswith("https://")


def _forces_prompt(query: str) -> bool:
    """Return whether the client wants the person to be asked even after an earlier approval."""
    try:
        prompts = [value for name, value in parse_fields(query, RESOURCE) if name == "prompt"]
    except BadFormError:
        return True
    return any(not FORCED_PROMPTS.isdisjoint(prompt.split()) for prompt in prompts)
