"""Signing in, by name and password, with the pairing code, or at somebody else's page and back; and signing out. Knows
forms and cookies; who somebody is, the ways of server/auth/signin.py say.
"""

import hmac
from collections.abc import Mapping

from toolgate.server.auth.accounts import Person, Refused
from toolgate.server.auth.departures import LIFETIME, Departure, state_of
from toolgate.server.auth.throttle import Throttled
from toolgate.transports.desk import NOBODY, SESSION, STALE, Desk, sentence
from toolgate.transports.exchange import Incoming, Outgoing, redirect, tag

WRONG = "Name and password don’t belong together."  # for people
WRONG_CODE = "This is not the pairing code that the server’s log shows last, or it is too old."
NOBODY_WAITS = "Nobody waits for this sign-in any more: it took too long, was done already, or began elsewhere."


class Entrance:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._ways = desk.sign_in

    # -- with a name and a password

    async def login_page(self, incoming: Incoming) -> Outgoing:
        asked = incoming.asked()
        question, switch = asked.get("question", ""), "switch" in asked
        if not switch and (await self._desk.visitor(incoming)).person is not None:
            return self._onward(question)
        only = list(self._ways.providers)
        if question and self._ways.accounts is None and len(only) == 1 and not switch:
            return self._desk.to("consent", question=question, via=only[0])
        return await self._page(incoming, question)

    async def login(self, incoming: Incoming) -> Outgoing:
        fields = dict(incoming.form())
        question, name = fields.get("question", ""), fields.get("username", "")
        if not self._desk.is_bound(incoming, NOBODY, fields, "login", question):
            return await self._page(incoming, question, 403, STALE, name)
        if fields.get("via") in self._ways.providers and not question:
            return await self.send_away(Departure(fields["via"], "", frozenset()))
        try:
            person, problem = await self._known(fields, self._desk.address(incoming))
        except Throttled as error:
            wait = f"There were too many tries. Wait {error.wait} second{'s' * (error.wait > 1)}, then try again."
            page = await self._page(incoming, question, 429, wait, name)
            return page.having(("retry-after", str(error.wait)))
        if person is None:
            return await self._page(incoming, question, 403, problem, name)
        return await self._desk.signed_in(incoming, person, self._onward(question))

    async def _known(self, fields: Mapping[str, str], address: str) -> tuple[Person | None, str]:
        """Who signs in with what was typed, or what is wrong with it. Raises Throttled."""
        accounts, pairing = self._ways.accounts, self._ways.pairing
        if accounts is None:
            return None, WRONG
        name, password = fields.get("username", ""), fields.get("password", "")
        if "code" not in fields or pairing is None:
            return await accounts.check(name, password, address), WRONG
        if not pairing.fits(fields["code"], address):
            return None, WRONG_CODE
        try:
            person = await accounts.add(name, password, first=True)
        except Refused as error:
            return None, sentence(error)
        pairing.end()
        return person, ""

    async def _page(
        self, incoming: Incoming, id: str, status: int = 200, problem: str | None = None, name: str = ""
    ) -> Outgoing:
        question = await self._desk.authorization.question(id) if id else None
        if id and question is None:
            return self._desk.gone()
        csrf, cookies = self._desk.bound(incoming, NOBODY, "login", id)
        page = self._desk.pages.show(
            "pairing" if await self._ways.offer_pairing() else "login",
            status,
            alone=not id,
            question=question,
            has_accounts=self._ways.accounts is not None,
            providers=list(self._ways.providers.values()),
            username=name[:64],
            csrf=csrf,
            problem=problem,
        )
        return page.having(*cookies)

    # -- at somebody else's page

    async def send_away(self, departure: Departure) -> Outgoing:
        provider = self._ways.providers.get(departure.provider)
        if provider is None:
            return self._desk.to("login", question=departure.question)
        ticket = await self._ways.departures.leave(departure)
        try:
            address = await provider.address(self._back, ticket)
        except Refused as error:
            return self._failed(error, departure)
        return redirect(address).having(self._desk.cookies.put(_away(state_of(ticket)), ticket, LIFETIME))

    async def callback(self, incoming: Incoming) -> Outgoing:
        """The browser comes back: only with the cookie that it left with (AZ-08, MCP-02)."""
        answer = incoming.asked()
        state = answer.get("state", "")
        ticket = self._desk.cookies.get(incoming, _away(state))
        departure = None
        if ticket and hmac.compare_digest(state_of(ticket).encode(), state.encode()):
            departure = await self._ways.departures.back(ticket)
        provider = self._ways.providers.get(departure.provider) if departure is not None else None
        if departure is None or provider is None:
            again = "Go back to where you came from and try again."
            return self._desk.pages.notice(400, "You are not signed in", NOBODY_WAITS, again, alone=False)
        clear = self._desk.cookies.clear(_away(state))
        try:
            person = await provider.person(answer, self._back, ticket)
        except Refused as error:
            return self._failed(error, departure).having(clear)
        onward = self._desk.to("account")
        if departure.question:
            answered = await self._desk.authorization.answer(departure.question, person, departure.scopes)
            onward = self._desk.outcome(answered)
        return (await self._desk.signed_in(incoming, person, onward)).having(clear)

    def _failed(self, error: Refused, departure: Departure) -> Outgoing:
        again = self._desk.path("login", question=departure.question)
        return self._desk.pages.notice(
            403, "You are not signed in", sentence(error), alone=False, again=again, again_label="Try again"
        )

    # -- and out

    async def logout_page(self, incoming: Incoming) -> Outgoing:
        visitor = await self._desk.visitor(incoming)
        csrf, cookies = self._desk.bound(incoming, visitor, "logout", "")
        return self._desk.pages.show("logout", person=visitor.person, csrf=csrf).having(*cookies)

    async def logout(self, incoming: Incoming) -> Outgoing:
        """From its own page or the account's: both are bound to the same session."""
        fields = dict(incoming.form())
        visitor = await self._desk.visitor(incoming)
        if not any(self._desk.is_bound(incoming, visitor, fields, page, "") for page in ("logout", "account")):
            return self._desk.to("logout")
        await self._ways.logins.end(self._desk.cookies.get(incoming, SESSION))
        told = self._desk.pages.notice(
            200,
            "You are signed out",
            "Apps you have approved stay connected until you take that back on your account page.",
            again=self._desk.path("login"),
            again_label="Sign in",
        )
        return told.having(self._desk.cookies.clear(SESSION))

    def _onward(self, question: str) -> Outgoing:
        return self._desk.to("consent", question=question) if question else self._desk.to("account")

    @property
    def _back(self) -> str:
        return f"{self._desk.public_url}/callback"


def _away(state: str) -> str:
    return f"away-{tag(state)}"
