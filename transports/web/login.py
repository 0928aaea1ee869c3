"""Signing in, by name and password, with the pairing code, or at somebody else's page and back; and signing out. Knows
forms and cookies; who somebody is, the ways of server/auth/login/methods.py say.
"""

import hmac
from collections.abc import Mapping

from toolgate.server.auth.login.accounts import Person, Refused, spelled
from toolgate.server.auth.login.methods import ACCEPTED, PASSWORD, REFUSED, THROTTLED
from toolgate.server.auth.login.pending_logins import LIFETIME, Departure, TooMany, state_of
from toolgate.server.auth.login.providers import NOT_ALLOWED, Provider
from toolgate.server.auth.login.throttle import Throttled
from toolgate.transports.web.forms import NOBODY, sentence
from toolgate.transports.web.http import Incoming, Outgoing, redirect, tag
from toolgate.transports.web.signed_in import SESSION, Desk

CALLBACK = "/callback"  # operators have registered it at their providers
HOME = ""  # where one goes who was on the way nowhere else
DEVICE = 180 * 86_400.0  # seconds since its last sign-in a browser is known by
WRONG = "Name and password don’t belong together."  # for people
WRONG_CODE = "This is not the pairing code that the server’s log shows last, or it is too old."
MADE = "The first account has been made in the meantime. Sign in with it."
BUSY = "Too many sign-ins were begun in the last minute. Wait a minute, then try again."
NOBODY_WAITS = "Nobody waits for this sign-in any more: it took too long, was done already, or began elsewhere."


class Entrance:
    """`backs` are the paths to which providers send browsers back, by provider: each its own, so that what one of them
    was asked is never answered with another's code (RFC 9700 section 4.4). The first has the one it has alone."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._ways = desk.sign_in
        keys = list(desk.sign_in.providers) or [""]
        self.backs = {key: CALLBACK if key == keys[0] else f"{CALLBACK}/{key}" for key in keys}

    # -- with a name and a password

    async def login_page(self, incoming: Incoming) -> Outgoing:
        asked = incoming.asked()
        question, switch = asked.get("question", ""), "switch" in asked
        if not switch and (await self._desk.visitor(incoming)).person is not None:
            return self._onward(question)
        only = list(self._ways.providers)
        if question and self._ways.accounts is None and len(only) == 1:
            return self._desk.to("consent", question=question, via=only[0], switch="1" if switch else "")
        return await self._page(incoming, question, switch=switch)

    async def login(self, incoming: Incoming) -> Outgoing:
        fields = dict(incoming.form())
        question, name, switch = fields.get("question", ""), fields.get("username", ""), bool(fields.get("switch"))
        if not self._desk.is_bound(incoming, NOBODY, fields, "login", question):
            problem = self._desk.unbound(incoming, NOBODY, "login", question)
            return await self._page(incoming, question, 403, problem, name, switch)
        if fields.get("via") in self._ways.providers and not question:
            return await self.send_away(Departure(fields["via"], "", frozenset(), switch), incoming)
        try:
            person, problem = await self._checked(incoming, fields)
        except Throttled as error:
            wait = f"There were too many tries. Wait {error.wait} second{'s' * (error.wait > 1)}, then try again."
            page = await self._page(incoming, question, 429, wait, name, switch)
            return page.having(("retry-after", str(error.wait)))
        if person is None:
            return await self._page(incoming, question, 403, problem, name, switch)
        onward = await self._desk.signed_in(incoming, person, self._onward(question))
        return onward.having(*await self._device(person))

    async def _checked(self, incoming: Incoming, fields: Mapping[str, str]) -> tuple[Person | None, str]:
        """As `_known`, and the log has it. Raises Throttled."""
        name, address = fields.get("username", ""), self._desk.address(incoming)
        way = "pairing" if "code" in fields else PASSWORD
        device = self._desk.cookies.get(incoming, _device_of(name))
        try:
            person, problem = await self._known(fields, address, device)
        except Throttled:
            self._ways.note(THROTTLED, way, address, await self._loggable(name))
            raise
        self._ways.note(REFUSED if person is None else ACCEPTED, way, address, await self._loggable(name))
        return person, problem

    async def _loggable(self, name: str) -> str:
        """The name, if there is such an account: what else is typed in its place may be a password."""
        accounts = self._ways.accounts
        return name if accounts is not None and await accounts.knows(name) else ""

    async def _device(self, person: Person) -> list[tuple[str, str]]:
        """The cookie by which this browser is known again when others guess at the name."""
        kept = await self._ways.accounts.device(person) if self._ways.accounts is not None else ""
        return [self._desk.cookies.put(_device_of(person.name), kept, DEVICE)] if kept else []

    async def _known(self, fields: Mapping[str, str], address: str, device: str) -> tuple[Person | None, str]:
        """Who signs in with what was typed, or what is wrong with it. Raises Throttled."""
        accounts, pairing = self._ways.accounts, self._ways.pairing
        if accounts is None:
            return None, WRONG
        name, password = fields.get("username", ""), fields.get("password", "")
        if "code" not in fields or pairing is None:
            return await accounts.check(name, password, address, device), WRONG
        if not await accounts.empty():
            return None, MADE
        if not pairing.fits(fields["code"], address):
            return None, WRONG_CODE
        try:
            person = await accounts.add(name, password, first=True)
        except Refused as error:
            return None, sentence(error)
        pairing.end()
        return person, ""

    async def _page(
        self,
        incoming: Incoming,
        id: str,
        status: int = 200,
        problem: str | None = None,
        name: str = "",
        switch: bool = False,
    ) -> Outgoing:
        question = await self._desk.authorization.question(id) if id else None
        if id and question is None:
            return self._desk.gone(id)
        csrf, cookies = self._desk.bound(incoming, NOBODY, "login", id)
        page = self._desk.pages.show(
            "pairing" if await self._ways.offer_pairing() else "login",
            status,
            alone=not id,
            question=question,
            has_accounts=self._ways.accounts is not None,
            providers=list(self._ways.providers.values()),
            username=name[:64],
            switch="1" if switch else "",
            csrf=csrf,
            problem=problem,
        )
        return page.having(*cookies)

    # -- at somebody else's page

    async def send_away(self, departure: Departure, incoming: Incoming) -> Outgoing:
        provider = self._ways.providers.get(departure.provider)
        if provider is None:
            return self._desk.to("login", question=departure.question)
        try:
            ticket = await self._ways.departures.leave(departure, self._desk.address(incoming))
        except TooMany:
            again = self._desk.path("login", question=departure.question)
            page = self._desk.pages.notice(429, "Not just now", BUSY, alone=False, again=again, again_label="Try again")
            return page.having(("retry-after", "60"))
        try:
            address = await provider.address(self._back(provider), ticket, departure.anew)
        except Refused as error:
            return self._failed(error, departure)
        return redirect(address).having(self._desk.cookies.put(_away(state_of(ticket)), ticket, LIFETIME))

    async def callback(self, back: str, incoming: Incoming) -> Outgoing:
        """The browser comes back to `back`: only with the cookie that it left with (AZ-08, MCP-02), and from the
        provider it was sent to."""
        answer = incoming.asked()
        state = answer.get("state", "")
        ticket = self._desk.cookies.get(incoming, _away(state))
        departure = None
        if ticket and hmac.compare_digest(state_of(ticket).encode(), state.encode()):
            departure = await self._ways.departures.back(ticket)
        provider = self._ways.providers.get(departure.provider) if departure is not None else None
        if departure is None or provider is None or self.backs[provider.key] != back:
            again = "Go back to where you came from and try again."
            return self._desk.pages.notice(400, "You are not signed in", NOBODY_WAITS, again, alone=False)
        clear = self._desk.cookies.clear(_away(state))
        try:
            person = await provider.person(answer, self._back(provider), ticket)
        except Refused as error:
            self._ways.note(REFUSED, provider.key, self._desk.address(incoming))
            return self._failed(error, departure).having(clear)
        self._ways.note(ACCEPTED, provider.key, self._desk.address(incoming), person.name)
        onward = self._desk.to(HOME)
        if departure.question:
            onward = await self._desk.answer(departure.question, person, departure.scopes)
        return (await self._desk.signed_in(incoming, person, onward)).having(clear)

    def _failed(self, error: Refused, departure: Departure) -> Outgoing:
        other = "1" if str(error) == NOT_ALLOWED else ""  # else the provider sends the same one again, unasked
        again = self._desk.path("login", question=departure.question, switch=other)
        return self._desk.pages.notice(
            403, "You are not signed in", sentence(error), alone=False, again=again, again_label="Try again"
        )

    # -- and out

    async def logout_page(self, incoming: Incoming) -> Outgoing:
        visitor = await self._desk.visitor(incoming)
        csrf, cookies = self._desk.bound(incoming, visitor, "logout", "")
        page = self._desk.pages.show("logout", person=visitor.person, can_sign_out=visitor.key != "", csrf=csrf)
        return page.having(*cookies)

    async def logout(self, incoming: Incoming) -> Outgoing:
        """From its own page or the account's: both are bound to the same session."""
        fields = dict(incoming.form())
        visitor = await self._desk.visitor(incoming)
        bound = any(self._desk.is_bound(incoming, visitor, fields, page, "") for page in ("logout", "account"))
        if not bound or (visitor.person is not None and not visitor.key):  # nor can we where a proxy says who it is
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
        return self._desk.to("consent", question=question) if question else self._desk.to(HOME)

    def _back(self, provider: Provider) -> str:
        return f"{self._desk.public_url}{self.backs[provider.key]}"


def _device_of(name: str) -> str:
    return f"device-{tag(spelled(name))}"


def _away(state: str) -> str:
    return f"away-{tag(state)}"
