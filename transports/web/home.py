"""The first page: what this server is, to whoever comes; and to who has signed in, what is running for them, with a
button beside each thing. Knows forms; what is going on, home_data.py knows.

All of it works without a script; with one, home_events.py brings what changes.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toolgate.server import VERSION
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.principal import LOCAL_NAME, Principal, derive_subject
from toolgate.transports.web import elicitation_form
from toolgate.transports.web.home_data import HomeData
from toolgate.transports.web.http import Handle, WebEndpoint, accepts, json_response, read_form, with_headers
from toolgate.transports.web.page_context import ANONYMOUS, PageContext, Visitor, format_sentence
from toolgate.transports.web.templates import FILES, SCRIPT_POLICY

PAGE = ("home", "")  # what its forms are bound to
MAX_ANSWER = 2**20  # bytes of a form: four texts of the most that one may have, of four bytes each, all written as %XX
MAX_BOXES = 1_000  # fields of it
VARY_ACCEPT = {"vary": "accept"}
SANDBOXES = {  # the level of the sandbox, for people
    "bwrap": "Commands run in a sandbox of their own.",
    "uid": "Commands run as a user of their own, apart from everybody else’s.",
    "none": "Commands are not kept apart: they may do what this server may do.",
}
ALREADY_ENDED = "There was nothing like that any more: it has ended already."  # for people
NOT_ENDED = "Some of it can’t be ended: it runs as another user."


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What there is to tell anybody. `state()` is "ready" or "ending"; `mcp` and `sse` are URLs, "" where not served;
    `ways` is what each client is told (title, text, where it belongs)."""

    name: str
    sandbox: str
    state: Callable[[], str]
    mcp: str
    sse: str
    ways: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What became of a form."""

    text: str
    status: int = 200


Act = Callable[[Visitor, str, Mapping[str, str]], Awaitable[ActionResult]]


class HomePage:
    """`who(request)` says who looks; None where nobody signs in here: then nobody sees more than a stranger, unless
    `is_open`, with which whoever comes is the local user."""

    def __init__(
        self,
        context: PageContext,
        facts: ServerFacts,
        data: HomeData,
        identify: Callable[[Request], Awaitable[Visitor]] | None = None,
        *,
        is_open: bool = False,
    ) -> None:
        self.context = context
        self.data = data
        self._server_facts = facts
        self._who = identify
        self._is_open = is_open
        self._verbs: dict[str, Act] = {  # the name of a button → what it does
            "stop": self._stop,
            "end": self._end,
            "cancel": self._cancel,
            "withdraw": self._revoke,
            "accept": self._accept,
            "decline": self._decline,
        }

    def routes(self) -> Iterator[tuple[str, WebEndpoint]]:
        """Every path with what answers there."""
        handlers: dict[str, Handle] = {"GET": self._page, "HEAD": self._page, "POST": self._act}
        yield (
            "/",
            WebEndpoint(
                handlers, self.context.error_page, refuse_data=_json_error, limit=MAX_ANSWER, admit=self._admit
            ),
        )
        for name in FILES:
            show = self._file(name)
            yield f"/{name}", WebEndpoint({"GET": show, "HEAD": show}, self.context.error_page)

    async def identify_visitor(self, request: Request) -> Visitor | None:
        """Who looks, if it is somebody who may see more than a stranger. Raises BadForm."""
        if self._is_open:
            return ANONYMOUS
        visitor = await self._who(request) if self._who is not None else ANONYMOUS
        return visitor if visitor.person is not None else None

    async def part_values(self, visitor: Visitor, csrf: str) -> dict[str, Any]:
        """What the macros of the page are given. Raises StateError."""
        return {"csrf": csrf, **await self.data.read(principal_of(visitor), visitor.person)}

    async def _page(self, request: Request, told: ActionResult | None = None) -> Response:
        if not accepts(request, "text/html"):
            return json_response(self._facts(), 200, {**VARY_ACCEPT, "cache-control": "no-store"})
        visitor = await self.identify_visitor(request)
        shown: dict[str, Any] = {"signed": visitor is not None, "person": None}
        cookies: list[tuple[str, str]] = []
        if visitor is not None:
            csrf, cookies = self.context.csrf_token(request, visitor, *PAGE)
            trail, trail_fault = await self._trail(principal_of(visitor))
            shown |= {"it": {**await self.part_values(visitor, csrf), "live": False}}
            shown |= {"person": visitor.person, "trail": trail, "trail_fault": trail_fault}
            shown |= {"sign_out": self.context.csrf_token(request, visitor, "logout", "")[0] if visitor.key else ""}
        page = self.context.pages.render(
            "home",
            told.status if told is not None else 200,
            served=self._server_facts,
            state=self._server_facts.state(),
            sandbox=SANDBOXES[self._server_facts.sandbox],
            version=VERSION if visitor is not None else "",  # strangers need not know what to try
            signs_in=self._who is not None,
            records=self.data.dashboard.has_audit_log,
            told=told,
            **shown,
        )
        page.headers.update({**SCRIPT_POLICY, **VARY_ACCEPT})
        return with_headers(page, *cookies)

    async def _trail(self, principal: str) -> tuple[list[dict[str, Any]], bool]:
        """The lines, and whether they could not be had."""
        try:
            return await self.data.dashboard.audit_entries(principal), False
        except OSError:
            return [], True

    def _facts(self) -> dict[str, str]:
        served = self._server_facts
        about = {"name": served.name, **({"version": VERSION} if self._is_open else {})}
        facts = {**about, "status": served.state(), "sandbox": served.sandbox}
        return {**facts, **{name: url for name, url in (("mcp", served.mcp), ("sse", served.sse)) if url}}

    # -- what the buttons do

    async def _admit(self, request: Request) -> Response | None:
        """What a stranger is answered, of whom no form is read."""
        if await self.identify_visitor(request) is not None:
            return None
        return (
            self.context.redirect_to("login")
            if self._who is not None
            else self.context.error_page(403, "nobody signs in here")
        )

    async def _act(self, request: Request) -> Response:
        """Answered with the page itself, or with a word to its script."""
        visitor = await self.identify_visitor(request)
        if visitor is None:  # since it was admitted
            return self.context.redirect_to("login")
        fields = await read_form(request, most=MAX_BOXES)
        told = await self._perform(request, visitor, dict(fields))
        if accepts(request, "text/html"):
            return await self._page(request, told)
        return json_response({"told": told.text}, told.status, {"cache-control": "no-store"})

    async def _perform(self, request: Request, visitor: Visitor, fields: Mapping[str, str]) -> ActionResult:
        if not self.context.has_valid_csrf(request, visitor, fields, *PAGE):
            return ActionResult(self.context.describe_csrf_failure(request, visitor, *PAGE), 403)
        verbs = [verb for verb in self._verbs if verb in fields]
        if len(verbs) != 1:
            return ActionResult("The form does not say what to do.", 400)
        return await self._verbs[verbs[0]](visitor, fields[verbs[0]], fields)

    async def _stop(self, visitor: Visitor, id: str, _fields: Mapping[str, str]) -> ActionResult:
        ended = await self.data.dashboard.stop_run(principal_of(visitor), id)
        if ended is None:
            return ActionResult(ALREADY_ENDED, 404)
        return ActionResult(f"Background task {id} has ended." if ended else NOT_ENDED, 200 if ended else 409)

    async def _end(self, visitor: Visitor, id: str, _fields: Mapping[str, str]) -> ActionResult:
        if not self.data.end_session(principal_of(visitor), id):
            return ActionResult(ALREADY_ENDED, 404)
        return ActionResult("The session was ended. The app may open another one, unless you take back what it may do.")

    async def _cancel(self, visitor: Visitor, slot: str, _fields: Mapping[str, str]) -> ActionResult:
        cancelled = await self.data.dashboard.cancel_callback(principal_of(visitor), slot)
        return ActionResult("The callback was cancelled.") if cancelled else ActionResult(ALREADY_ENDED, 404)

    async def _revoke(self, visitor: Visitor, id: str, _fields: Mapping[str, str]) -> ActionResult:
        granting = self.data.grants
        if granting is None or visitor.person is None or not await granting.revoke_grant(visitor.person, id):
            return ActionResult(ALREADY_ENDED, 404)
        return ActionResult("Taken back. What that app got by it no longer works.")

    async def _accept(self, visitor: Visitor, id: str, fields: Mapping[str, str]) -> ActionResult:
        return self._answer(visitor, id, "accept", fields)

    async def _decline(self, visitor: Visitor, id: str, fields: Mapping[str, str]) -> ActionResult:
        return self._answer(visitor, id, "decline", fields)

    def _answer(self, visitor: Visitor, id: str, action: str, fields: Mapping[str, str]) -> ActionResult:
        questions, principal = self.data.questions, principal_of(visitor)
        waiting = next((held for held in questions.waiting(principal) if held.id == id), None)
        answer = (
            elicitation_form.read_answer(waiting.schema, fields) if waiting is not None and action == "accept" else {}
        )
        wrong = questions.answer(principal, id, action, answer)
        return (
            ActionResult("Your answer was sent.")
            if wrong is None
            else ActionResult(wrong, 404 if waiting is None else 400)
        )

    def _file(self, name: str) -> Handle:
        async def show(_request: Request) -> Response:
            return self.context.pages.static_file(name)

        return show


def _json_error(status: int, text: str) -> Response:
    """To the page's script, which shows it."""
    return json_response({"told": format_sentence(text)}, status, {"cache-control": "no-store"})


def principal_of(visitor: Visitor) -> str:
    """What folders and rows of this person go by."""
    if visitor.person is None:
        return LOCAL_NAME
    return Principal(OWN_ISSUER, derive_subject(visitor.person.issuer, visitor.person.subject), "").name
