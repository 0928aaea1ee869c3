"""A client's question, from its request to the person's answer. What a question may be, and what follows from the
answer, server/auth/issuing decides.

A question is never answered by a GET, save one that has been answered just so before.
"""

from collections.abc import Awaitable, Callable, Mapping

from toolgate.server.auth.departures import Departure
from toolgate.server.auth.issuing import Question
from toolgate.transports.desk import STALE, Desk
from toolgate.transports.exchange import BadForm, Incoming, Outgoing, pairs

SCOPE = frozenset(("scope",))  # the one field that is there once for each box ticked
RESOURCE = frozenset(("resource",))  # may be there more than once (RFC 8707)
ANEW = frozenset(("consent", "login", "select_account"))  # values of `prompt` (OpenID Connect Core section 3.1.2.1)
NOTHING_TICKED = "Nothing is ticked. Tick at least one box, or deny."


class Asking:
    """`sentences` says what each scope means; `send_away` sends a browser to sign in elsewhere."""

    def __init__(
        self, desk: Desk, sentences: Mapping[str, str], send_away: Callable[[Departure], Awaitable[Outgoing]]
    ) -> None:
        self._desk = desk
        self._sentences = sentences
        self._send_away = send_away

    async def authorize(self, incoming: Incoming) -> Outgoing:
        """A client's request, by GET, or by POST as a form."""
        query = incoming.query
        if incoming.method == "POST":
            incoming.form(RESOURCE)
            query = incoming.body.decode()
        outcome = await self._desk.authorization.ask(query)
        if not isinstance(outcome, Question):
            return self._desk.outcome(outcome)
        person = (await self._desk.visitor(incoming)).person
        if person is None:
            return self._desk.to("login", question=outcome.id)
        if not _is_local(outcome) and not _asks_anew(query):
            granted = await self._desk.authorization.remembered(outcome.id, person)
            if granted is not None:
                return self._desk.outcome(await self._desk.authorization.answer(outcome.id, person, granted))
        return self._desk.to("consent", question=outcome.id)

    async def consent_page(self, incoming: Incoming) -> Outgoing:
        asked = incoming.asked()
        return await self._page(incoming, asked.get("question", ""), asked.get("via", ""))

    async def consent(self, incoming: Incoming) -> Outgoing:
        """The person's answer; a box at least stays ticked, or they are asked again."""
        form = incoming.form(SCOPE)
        fields, ticked = dict(form), [value for name, value in form if name == "scope"]
        id, via = fields.get("question", ""), fields.get("via", "")
        visitor = await self._desk.visitor(incoming)
        question = await self._desk.authorization.question(id)
        if question is None:
            return self._desk.gone()
        if not self._desk.is_bound(incoming, visitor, fields, "consent", id, via):
            return await self._page(incoming, id, via, 403, STALE)
        if fields.get("decision") != "approve":
            return self._desk.outcome(await self._desk.authorization.answer(id, None, frozenset()))
        granted = frozenset(question.scopes).intersection(ticked)
        if not granted:
            return await self._page(incoming, id, via, 400, NOTHING_TICKED)
        if visitor.person is None:
            return await self._send_away(Departure(via, id, granted))
        return self._desk.outcome(await self._desk.authorization.answer(id, visitor.person, granted))

    async def _page(
        self, incoming: Incoming, id: str, via: str, status: int = 200, problem: str | None = None
    ) -> Outgoing:
        """The question, for who is signed in, or will be by `via` after it (AZ-08)."""
        question = await self._desk.authorization.question(id)
        if question is None:
            return self._desk.gone()
        visitor = await self._desk.visitor(incoming)
        provider = self._desk.sign_in.providers.get(via) if visitor.person is None else None
        if visitor.person is None and provider is None:
            return self._desk.to("login", question=id)
        csrf, cookies = self._desk.bound(incoming, visitor, "consent", id, provider.key if provider else "")
        page = self._desk.pages.show(
            "consent",
            status,
            alone=False,
            question=question,
            is_local=_is_local(question),
            person=visitor.person,
            can_switch=visitor.key != "",
            provider=provider,
            scopes=[(scope, self._sentences.get(scope, "")) for scope in question.scopes],
            csrf=csrf,
            problem=problem,
        )
        return page.having(*cookies)


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
