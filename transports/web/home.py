"""The first page: what this server is, to whoever comes; and to who has signed in, what is running for them, with a
button beside each thing. Knows forms; what is going on, home_data.py knows.

All of it works without a script; with one, home_events.py brings what changes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolgate.server import VERSION
from toolgate.server.auth.tokens.access_tokens import OURS
from toolgate.server.principal import LOCAL_NAME, Principal, subject_of
from toolgate.transports.web import elicitation_form
from toolgate.transports.web.forms import NOBODY, Forms, Visitor, sentence
from toolgate.transports.web.home_data import Glance
from toolgate.transports.web.http import Endpoint, Handle, Incoming, Outgoing, data
from toolgate.transports.web.templates import FILES, LIVE

PAGE = ("home", "")  # what its forms are bound to
MAX_ANSWER = 2**20  # bytes of a form: four texts of the most that one may have, of four bytes each, all written as %XX
MAX_BOXES = 1_000  # fields of it
VARY = ("vary", "accept")
SANDBOXES = {  # the level of the sandbox, for people
    "bwrap": "Commands run in a sandbox of their own.",
    "uid": "Commands run as a user of their own, apart from everybody else’s.",
    "none": "Commands are not kept apart: they may do what this server may do.",
}
GONE = "There was nothing like that any more: it has ended already."  # for people
UNSURE = "Some of it can’t be ended: it runs as another user."


@dataclass(frozen=True, slots=True)
class Served:
    """What there is to tell anybody. `state()` is "ready" or "ending"; `mcp` and `sse` are URLs, "" where not served;
    `ways` is what each client is told (title, text, where it belongs)."""

    name: str
    sandbox: str
    state: Callable[[], str]
    mcp: str
    sse: str
    ways: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])


@dataclass(frozen=True, slots=True)
class Told:
    """What became of a form."""

    text: str
    status: int = 200


Act = Callable[[Visitor, str, Mapping[str, str]], Awaitable[Told]]


class Home:
    """`who(incoming)` says who looks; None where nobody signs in here: then nobody sees more than a stranger, unless
    `is_open`, with which whoever comes is the local user."""

    def __init__(
        self,
        forms: Forms,
        served: Served,
        glance: Glance,
        who: Callable[[Incoming], Awaitable[Visitor]] | None = None,
        *,
        is_open: bool = False,
    ) -> None:
        self.forms = forms
        self.glance = glance
        self._served = served
        self._who = who
        self._is_open = is_open
        self._verbs: dict[str, Act] = {  # the name of a button → what it does
            "stop": self._stop,
            "end": self._end,
            "cancel": self._cancel,
            "withdraw": self._withdraw,
            "accept": self._accept,
            "decline": self._decline,
        }

    def routes(self) -> Iterator[tuple[str, Endpoint]]:
        """Every path with what answers there."""
        handlers: dict[str, Handle] = {"GET": self._page, "HEAD": self._page, "POST": self._act}
        yield "/", Endpoint(handlers, self.forms.refused, refuse_data=_refused, limit=MAX_ANSWER, admit=self._admit)
        for name in FILES:
            show = self._file(name)
            yield f"/{name}", Endpoint({"GET": show, "HEAD": show}, self.forms.refused)

    async def visitor(self, incoming: Incoming) -> Visitor | None:
        """Who looks, if it is somebody who may see more than a stranger. Raises BadForm."""
        if self._is_open:
            return NOBODY
        visitor = await self._who(incoming) if self._who is not None else NOBODY
        return visitor if visitor.person is not None else None

    async def parts(self, visitor: Visitor, csrf: str) -> dict[str, Any]:
        """What the macros of the page are given. Raises StateError."""
        return {"csrf": csrf, **await self.glance.of(principal_of(visitor), visitor.person)}

    async def _page(self, incoming: Incoming, told: Told | None = None) -> Outgoing:
        if b"text/html" not in incoming.headers.get(b"accept", b""):
            return data(self._facts(), 200, VARY, ("cache-control", "no-store"))
        visitor = await self.visitor(incoming)
        shown: dict[str, Any] = {"signed": visitor is not None, "person": None}
        cookies: list[tuple[str, str]] = []
        if visitor is not None:
            csrf, cookies = self.forms.bound(incoming, visitor, *PAGE)
            trail, trail_fault = await self._trail(principal_of(visitor))
            shown |= {"it": {**await self.parts(visitor, csrf), "live": False}}
            shown |= {"person": visitor.person, "trail": trail, "trail_fault": trail_fault}
            shown |= {"sign_out": self.forms.bound(incoming, visitor, "logout", "")[0] if visitor.key else ""}
        page = self.forms.pages.show(
            "home",
            told.status if told is not None else 200,
            served=self._served,
            state=self._served.state(),
            sandbox=SANDBOXES[self._served.sandbox],
            version=VERSION if visitor is not None else "",  # strangers need not know what to try
            signs_in=self._who is not None,
            records=self.glance.overview.records,
            told=told,
            **shown,
        )
        return page.once(LIVE).having(VARY, *cookies)

    async def _trail(self, principal: str) -> tuple[list[dict[str, Any]], bool]:
        """The lines, and whether they could not be had."""
        try:
            return await self.glance.overview.trail(principal), False
        except OSError:
            return [], True

    def _facts(self) -> dict[str, str]:
        served = self._served
        about = {"name": served.name, **({"version": VERSION} if self._is_open else {})}
        facts = {**about, "status": served.state(), "sandbox": served.sandbox}
        return {**facts, **{name: url for name, url in (("mcp", served.mcp), ("sse", served.sse)) if url}}

    # -- what the buttons do

    async def _admit(self, incoming: Incoming) -> Outgoing | None:
        """What a stranger is answered, of whom no form is read."""
        if await self.visitor(incoming) is not None:
            return None
        return self.forms.to("login") if self._who is not None else self.forms.refused(403, "nobody signs in here")

    async def _act(self, incoming: Incoming) -> Outgoing:
        """Answered with the page itself, or with a word to its script."""
        visitor = await self.visitor(incoming)
        if visitor is None:  # since it was admitted
            return self.forms.to("login")
        fields = await asyncio.to_thread(incoming.form, most=MAX_BOXES)  # up to 0.1 s
        told = await self._told(incoming, visitor, dict(fields))
        if b"text/html" in incoming.headers.get(b"accept", b""):
            return await self._page(incoming, told)
        return data({"told": told.text}, told.status, ("cache-control", "no-store"))

    async def _told(self, incoming: Incoming, visitor: Visitor, fields: Mapping[str, str]) -> Told:
        if not self.forms.is_bound(incoming, visitor, fields, *PAGE):
            return Told(self.forms.unbound(incoming, visitor, *PAGE), 403)
        verbs = [verb for verb in self._verbs if verb in fields]
        if len(verbs) != 1:
            return Told("The form does not say what to do.", 400)
        return await self._verbs[verbs[0]](visitor, fields[verbs[0]], fields)

    async def _stop(self, visitor: Visitor, id: str, _fields: Mapping[str, str]) -> Told:
        ended = await self.glance.overview.stop(principal_of(visitor), id)
        if ended is None:
            return Told(GONE, 404)
        return Told(f"Background task {id} has ended." if ended else UNSURE, 200 if ended else 409)

    async def _end(self, visitor: Visitor, id: str, _fields: Mapping[str, str]) -> Told:
        if not self.glance.end(principal_of(visitor), id):
            return Told(GONE, 404)
        return Told("The session was ended. The app may open another one, unless you take back what it may do.")

    async def _cancel(self, visitor: Visitor, slot: str, _fields: Mapping[str, str]) -> Told:
        cancelled = await self.glance.overview.cancel(principal_of(visitor), slot)
        return Told("The callback was cancelled.") if cancelled else Told(GONE, 404)

    async def _withdraw(self, visitor: Visitor, id: str, _fields: Mapping[str, str]) -> Told:
        granting = self.glance.granting
        if granting is None or visitor.person is None or not await granting.withdraw(visitor.person, id):
            return Told(GONE, 404)
        return Told("Taken back. What that app got by it no longer works.")

    async def _accept(self, visitor: Visitor, id: str, fields: Mapping[str, str]) -> Told:
        return self._answer(visitor, id, "accept", fields)

    async def _decline(self, visitor: Visitor, id: str, fields: Mapping[str, str]) -> Told:
        return self._answer(visitor, id, "decline", fields)

    def _answer(self, visitor: Visitor, id: str, action: str, fields: Mapping[str, str]) -> Told:
        questions, principal = self.glance.questions, principal_of(visitor)
        waiting = next((held for held in questions.waiting(principal) if held.id == id), None)
        answer = elicitation_form.content(waiting.schema, fields) if waiting is not None and action == "accept" else {}
        wrong = questions.answer(principal, id, action, answer)
        return Told("Your answer was sent.") if wrong is None else Told(wrong, 404 if waiting is None else 400)

    def _file(self, name: str) -> Handle:
        async def show(_incoming: Incoming) -> Outgoing:
            return self.forms.pages.file(name)

        return show


def _refused(status: int, text: str) -> Outgoing:
    """To the page's script, which shows it."""
    return data({"told": sentence(text)}, status, ("cache-control", "no-store"))


def principal_of(visitor: Visitor) -> str:
    """What folders and rows of this person go by."""
    if visitor.person is None:
        return LOCAL_NAME
    return Principal(OURS, subject_of(visitor.person.issuer, visitor.person.subject), "").name
