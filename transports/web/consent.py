"""A client's question, from its request to the person's answer. What a question may be, and what follows from the
answer, server/auth/oauth_server decides.

A question is never answered by a GET, save one that has been answered just so before. One about a shell never is: a
link could have somebody's browser give a shell to whoever uses the app (RFC 9700 section 4.7).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from toolgate.server.auth.login.accounts import Person
from toolgate.server.auth.login.pending_logins import Departure
from toolgate.server.auth.oauth_server import Question
from toolgate.server.auth.scopes import READ, SHELL
from toolgate.transports.web.forms import NOBODY, Visitor
from toolgate.transports.web.http import BadForm, Incoming, Outgoing, pairs
from toolgate.transports.web.signed_in import Desk

SCOPE = frozenset(("scope",))  # the one field that is there once for each box ticked
RESOURCE = frozenset(("resource",))  # may be there more than once (RFC 8707)
ANEW = frozenset(("consent", "login", "select_account"))  # values of `prompt` (OpenID Connect Core section 3.1.2.1)
NOTHING_TICKED = "Nothing is ticked. Tick at least one box, or deny."


class Asking:
    """`sentences` says what each scope means; `send_away` sends a browser to sign in elsewhere."""

    def __init__(
        self, desk: Desk, sentences: Mapping[str, str], send_away: Callable[[Departure, Incoming], Awaitable[Outgoing]]
    ) -> None:
        self._desk = desk
        self._sentences = sentences
        self._send_away = send_away

    async def authorize(self, incoming: Incoming) -> Outgoing:
        """A client's request. By GET alone: RFC 6749 section 3.1 asks for no more."""
        outcome = await self._desk.authorization.ask(incoming.query, self._desk.address(incoming))
        if not isinstance(outcome, Question):
            return self._desk.outcome(outcome)
        person = (await self._desk.visitor(incoming)).person
        if person is None:
            return self._desk.to("login", question=outcome.id)
        if not _is_local(outcome) and not _asks_anew(incoming.query):
            granted = await self._desk.authorization.remembered(outcome.id, person)
            if granted is not None and SHELL not in granted:
                return await self._desk.answer(outcome.id, person, granted)
        return self._desk.to("consent", question=outcome.id)

    async def consent_page(self, incoming: Incoming) -> Outgoing:
        return await self._page(incoming, _Asked.of(incoming.asked()))

    async def consent(self, incoming: Incoming) -> Outgoing:
        """The person's answer; a box at least stays ticked, or they are asked again."""
        form = incoming.form(SCOPE)
        fields, ticked = dict(form), [value for name, value in form if name == "scope"]
        asked = _Asked.of(fields)
        visitor = await self._visitor(incoming, asked)
        if not self._desk.is_bound(incoming, visitor, fields, *asked.page):
            return await self._page(incoming, asked, 403, self._desk.unbound(incoming, visitor, *asked.page))
        if fields.get("decision") != "approve":
            return await self._answer(incoming, asked.question, None, frozenset())
        question = await self._desk.authorization.question(asked.question)
        granted = frozenset(ticked).intersection(question.scopes if question is not None else ticked)
        if not granted:
            return await self._page(incoming, asked, 400, NOTHING_TICKED)
        if visitor.person is not None:
            return await self._answer(incoming, asked.question, visitor.person, granted)
        if question is None:
            return self._desk.gone(asked.question)
        return await self._send_away(Departure(asked.via, asked.question, granted, bool(asked.switch)), incoming)

    async def _answer(self, incoming: Incoming, id: str, person: Person | None, scopes: frozenset[str]) -> Outgoing:
        """Once, however often somebody clicks."""

        async def answer() -> Outgoing:
            if await self._desk.authorization.question(id) is None:
                return self._desk.gone(id)
            return await self._desk.answer(id, person, scopes)

        return await self._desk.answered.once(id, incoming.body, answer)

    async def _visitor(self, incoming: Incoming, asked: "_Asked") -> Visitor:
        """Who answers: nobody yet where they leave their session to sign in as somebody else."""
        visitor = await self._desk.visitor(incoming)
        switches = asked.switch and visitor.key and asked.via in self._desk.sign_in.providers
        return NOBODY if switches else visitor

    async def _page(
        self, incoming: Incoming, asked: "_Asked", status: int = 200, problem: str | None = None
    ) -> Outgoing:
        """The question, for who is signed in, or will be by `via` after it (AZ-08)."""
        id = asked.question
        question = await self._desk.authorization.question(id)
        if question is None:
            return self._desk.gone(id)
        visitor = await self._visitor(incoming, asked)
        provider = self._desk.sign_in.providers.get(asked.via) if visitor.person is None else None
        if visitor.person is None and provider is None:
            return self._desk.to("login", question=id)
        shown = asked if provider else _Asked(id)
        csrf, cookies = self._desk.bound(incoming, visitor, *shown.page)
        held = await self._desk.authorization.grants(visitor.person) if visitor.person is not None else []
        page = self._desk.pages.show(
            "consent",
            status,
            alone=False,
            question=question,
            is_local=_is_local(question),
            person=visitor.person,
            is_known=any(grant.client.id == question.client.id for grant in held),
            can_switch=visitor.key != "",
            provider=provider,
            switch=shown.switch,
            scopes=[(scope, meaning(self._sentences, scope)) for scope in question.scopes],
            lists=READ if READ in question.scopes else "",
            shell=SHELL if SHELL in question.scopes else "",
            csrf=csrf,
            problem=problem,
        )
        return page.having(*cookies)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which question, and how to sign in after it: by the provider `via`, or as who is signed in already; with
    `switch` as somebody else."""

    question: str
    via: str = ""
    switch: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> "_Asked":
        return cls(fields.get("question", ""), fields.get("via", ""), "1" if fields.get("switch") else "")

    @property
    def page(self) -> tuple[str, ...]:
        """What a form about it is bound to."""
        return ("consent", self.question, self.via, self.switch)


def meaning(sentences: Mapping[str, str], scope: str) -> str:
    """A scope in words."""
    return sentences.get(scope) or f"Use what the plugin that asks for “{scope}” adds."  # for people


def _is_local(question: Question) -> bool:
    """Whether the code goes to a program on somebody's machine: any one there could be meant (AZ-07, SEC-12)."""
    return question.client.loopback_only or not question.redirect_uri.startswith("https://")


def _asks_anew(query: str) -> bool:
    """Whether the client wants the person to be asked whatever was said before."""
    try:
        prompts = [value for name, value in pairs(query, RESOURCE) if name == "prompt"]
    except BadForm:
        return True
    return any(not ANEW.isdisjoint(prompt.split()) for prompt in prompts)
