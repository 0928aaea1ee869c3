"""Serve the first page: to strangers what this server is, to a person their running work and its buttons.

All of it works without a script; with one, home_events.py sends updates.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from toolgate.server.base.merged_rows import merge_rows
from toolgate.server.base.reports.client_settings import ClientSettings
from toolgate.server.base.reports.health import ServerHealth
from toolgate.server.base.reports.page_part import ALREADY_ENDED, ActionResult, PartAction
from toolgate.server.base.version import VERSION
from toolgate.server.calls.dashboard import Dashboard, RunsUnreachableError
from toolgate.server.calls.pending_questions import PendingQuestions
from toolgate.server.calls.question import QuestionView
from toolgate.server.protocol.session import short_hash
from toolgate.transports.http.sessions.session import HttpSession
from toolgate.transports.http.sessions.sessions import Sessions
from toolgate.transports.web import elicitation_form
from toolgate.transports.web.decisions import Decisions
from toolgate.transports.web.http import Handle, WebEndpoint, accepts, json_response, read_form, with_headers
from toolgate.transports.web.page_context import (
    ANONYMOUS,
    APPROVAL_ENDED,
    NO_ACTION,
    REVOKED,
    PageContext,
    Visitor,
    format_sentence,
    principal_of,
)
from toolgate.transports.web.templates import FILES, ICON, SCRIPT_POLICY

if TYPE_CHECKING:
    from toolgate.server.auth.grants import Grants, GrantSummary
    from toolgate.server.calls.policy.remembered_approvals import Duration

PAGE = ("home", "")  # what its forms are bound to
PARTS = (
    "idle",
    "questions",
    "runs",
    "calls",
    "sessions",
    "tasks",
    "callbacks",
    "apps",
    "approvals",
)  # macros of home_parts.html
SERVER_PARTS = ("outage", "server")  # macros about this server, which are the same for all people
MAX_SESSIONS = 20  # shown, the last used first
MAX_ANSWER = 2**20  # bytes of a form: four of the longest texts, four bytes a character, each byte written as %XX
MAX_BOXES = 1_000  # fields of a form
FAVICON = "favicon.ico"  # browsers ask for it where a page names no icon, such as /health
NO_STORE = {"cache-control": "no-store"}
VARY_ACCEPT = {"vary": "accept"}
SANDBOXES = {  # the level of the sandbox, for people
    "bwrap": "Commands run in a sandbox, one for each user.",
    "uid": "Commands run as a separate system user for each person.",
    "none": "There is no sandbox: commands have all the server’s permissions.",
}
NOT_ENDED = "Some processes can’t be stopped: they run as another user."

log = logging.getLogger("toolgate.http")


class ServerFacts(msgspec.Struct, frozen=True):
    """Public facts. `urls` holds each transport's title and URL."""

    name: str
    read_health: Callable[[], ServerHealth]
    urls: Sequence[tuple[str, str]]
    clients: ClientSettings = ClientSettings()


class ShownSession(msgspec.Struct, frozen=True):
    """`id` names the session on the page, and is no key to it; `since` is in seconds since the epoch."""

    id: str
    client: str
    transport: str
    revision: str
    since: float
    running: int


Act = Callable[[Visitor, str, Mapping[str, str]], Awaitable[ActionResult]]


class HomePage:
    """`sessions` are by the name of their transport. `grants` is None if this server grants nothing.

    `identify(request)` returns the visitor; None if people can't sign in here. Then every visitor is a stranger, or
    with `is_open` the local user. `recall(request)` returns the recent visitor, without the database.
    """

    def __init__(
        self,
        context: PageContext,
        facts: ServerFacts,
        dashboard: Dashboard,
        sessions: Mapping[str, Sessions],
        questions: PendingQuestions,
        grants: "Grants | None" = None,
        identify: Callable[[Request], Awaitable[Visitor]] | None = None,
        recall: Callable[[Request], Visitor | None] = lambda _: None,
        *,
        is_open: bool = False,
    ) -> None:
        self.context = context
        self.dashboard = dashboard
        self.recall_visitor = recall
        self._facts = facts
        self._sessions = sessions
        self._questions = questions
        self._decisions = Decisions(questions, dashboard)
        self._grants = grants
        self._identify = identify
        self._is_open = is_open
        own: dict[str, Act] = {  # the name of a button → what it does
            "stop": self._stop,
            "end": self._end,
            "cancel": self._cancel,
            "revoke": self._revoke,
            "accept": partial(self._answer, "accept"),
            "decline": partial(self._answer, "decline"),
            "session": partial(self._allow, "session"),
            "always": partial(self._allow, "always"),
            "forget": self._forget_approval,
        }
        added: list[tuple[str, Act]] = [
            (name, partial(_act_on_part, act)) for part in dashboard.page_parts for name, act in part.actions.items()
        ]
        self._actions = merge_rows("actions of the first page", own.items(), added)
        merge_rows("parts of the first page", ((name, name) for name in self.list_parts()))

    def routes(self) -> Iterator[tuple[str, WebEndpoint]]:
        """Yield each path with its endpoint."""
        handlers: dict[str, Handle] = {"GET": self._page, "HEAD": self._page, "POST": self._act}
        refuse = self.context.error_page
        yield "/", WebEndpoint(handlers, refuse, refuse_data=_json_error, limit=MAX_ANSWER, admit=self._admit)
        for path, name in {**{name: name for name in FILES}, FAVICON: ICON}.items():
            show = partial(self._static_file, name)
            yield f"/{path}", WebEndpoint({"GET": show, "HEAD": show}, refuse)

    async def identify_visitor(self, request: Request) -> Visitor | None:
        """Return the visitor, or None for a stranger. Raises BadFormError."""
        if self._is_open:
            return ANONYMOUS
        visitor = await self._identify(request) if self._identify is not None else ANONYMOUS
        return visitor if visitor.person is not None else None

    def server_values(self) -> dict[str, Any]:
        """Return what the macros of SERVER_PARTS show. Costs no I/O."""
        return {"health": self._facts.read_health(), "sandbox": SANDBOXES.get(self.dashboard.sandbox_level, "")}

    async def part_values(self, visitor: Visitor, csrf: str, *, is_live: bool = False) -> dict[str, Any]:
        """Return what the macros of the parts show, by the names they use. With `is_live` the output of running
        commands comes by the stream. Raises StateError."""
        principal, person = principal_of(visitor), visitor.person
        grants: list[GrantSummary] = []
        count = 0
        if self._grants is not None and person is not None:
            grants, count = await self._grants.list_newest(person)
        sessions = sorted(self._sessions_of(principal), key=lambda row: row[2].last_used, reverse=True)
        shown = sessions[:MAX_SESSIONS]
        going = await self.dashboard.read(principal, [held.session for _, _, held in shown], is_live=is_live)
        questions = await self._questions.list_waiting(principal)
        approvals = await self.dashboard.list_approvals(principal)
        named = {each.session.client for _, _, each in shown} | {each.client for each in questions}
        named |= {each.client for each in approvals}
        names, clients = await self._find_names(grants, going.grants, named | going.clients)
        kept = (
            going.tasks
            or going.plans
            or going.callbacks
            or any(added.rows and added.is_work for added in going.added.values())
        )
        active = bool(going.calls or going.runs or kept or questions)
        return {
            "csrf": csrf,
            "live": is_live,
            "going": going,
            "busy": active or bool(going.runs_fault),
            "connected": bool(active or grants or sessions),
            "sessions": [_to_shown_session(transport, held) for transport, _, held in shown],
            "more_sessions": len(sessions) - len(shown),
            "questions": [(question, _form_fields(question)) for question in questions],
            "sandbox": SANDBOXES.get(self.dashboard.sandbox_level, ""),
            "approvals": approvals,
            "grants": grants,
            "more_grants": count - len(grants),
            "names": names,
            "clients": clients,
        }

    def render_part(self, name: str, values: Any) -> str:
        """Return the HTML of one part of the page."""
        added = next((part for part in self.dashboard.page_parts if part.name == name), None)
        pages = self.context.pages
        return pages.render_part("home_parts", name, values) if added is None else pages.render_added(added, values)

    def list_parts(self) -> list[str]:
        """Return the names of the parts that show a person's work."""
        return [*PARTS, *(part.name for part in self.dashboard.page_parts)]

    def _render_added(self, values: Any) -> list[tuple[str, str, str]]:
        """Return the name, title and HTML of each part that a feature adds."""
        return [(part.name, part.title, self.render_part(part.name, values)) for part in self.dashboard.page_parts]

    async def _find_names(
        self, known: "Sequence[GrantSummary]", grants: Collection[str], clients: Collection[str]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the names of clients, and the clients of grants, by their ids. A shown row may belong to an app that
        was revoked since. Raises StateError."""
        names = {grant.client.id: grant.client.name for grant in known}
        by_grant = {grant.id: grant.client.id for grant in known}
        unknown = set(grants) - by_grant.keys(), set(clients) - names.keys()
        if self._grants is None or not any(unknown):
            return names, by_grant
        more_clients, more_names = await self._grants.find_names(*unknown)
        return names | more_names, by_grant | more_clients

    async def watch(self, principal: str, notify: Callable[[], None]) -> None:
        """Call `notify` whenever a call, a question or an added part changes, until cancelled."""
        with contextlib.ExitStack() as watches:
            watches.callback(self.dashboard.recent_calls.watch(principal, notify))
            for part in self.dashboard.page_parts:
                watches.callback(part.watch(principal, notify))
            with self._questions.follow(principal) as changes:
                async for _ in changes:
                    notify()

    async def _page(self, request: Request, result: ActionResult | None = None) -> Response:
        if not accepts(request, "text/html"):
            return json_response(self._describe_server(), 200, VARY_ACCEPT | NO_STORE)
        visitor = await self.identify_visitor(request)
        shown: dict[str, Any] = {"signed": visitor is not None, "person": None, "added": []}
        cookies: list[tuple[str, str]] = []
        if visitor is not None:
            csrf, cookies = self.context.csrf_token(request, visitor, *PAGE)
            it = await self.part_values(visitor, csrf)
            shown |= {"it": it, "person": visitor.person, "visitor": tab_group(csrf), "added": self._render_added(it)}
            shown |= await self._audit_values(principal_of(visitor), it["names"])
            shown |= {"sign_out": self.context.csrf_token(request, visitor, "logout", "")[0] if visitor.key else ""}
        page = self.context.pages.render(
            "home",
            result.status if result is not None else 200,
            served=self._facts,
            about=self.server_values(),
            version=VERSION if visitor is not None else "",  # a stranger could look up its weaknesses
            signs_in=self._identify is not None,
            records=self.dashboard.has_audit_log,
            told=result,
            **shown,
        )
        page.headers.update(SCRIPT_POLICY | VARY_ACCEPT)
        return with_headers(page, *cookies)

    async def _audit_values(self, principal: str, names: dict[str, str]) -> dict[str, Any]:
        """Return the newest entries of the audit log, the names of their clients, and whether it can't be read.
        `names` are those known so far. Raises StateError."""
        try:
            trail = await self.dashboard.audit_entries(principal)
        except OSError:
            return {"trail": [], "trail_names": {}, "trail_fault": True}
        unknown = {entry["client"] for entry in trail} - names.keys()
        if self._grants is not None and unknown:
            names = names | (await self._grants.find_names((), unknown))[1]
        return {"trail": trail, "trail_names": names, "trail_fault": False}

    def _describe_server(self) -> dict[str, str]:
        facts = self._facts
        version = {"version": VERSION} if self._is_open else {}
        urls = {url.rpartition("/")[2]: url for _, url in facts.urls}
        health = facts.read_health()
        return {"name": facts.name, **version, "status": health.status, "sandbox": health.sandbox, **urls}

    # -- actions of the buttons

    async def _admit(self, request: Request) -> Response | None:
        """Return the answer to a stranger, whose form is not read; None for a visitor."""
        if await self.identify_visitor(request) is not None:
            return None
        if self._identify is not None:
            return self.context.redirect_to("login")
        return self.context.error_page(
            403, "people can't sign in on this server: use the apps that are connected to it"
        )

    async def _act(self, request: Request) -> Response:
        """Do a button's action, and answer with the page, or with a sentence for its script."""
        visitor = await self.identify_visitor(request)
        if visitor is None:  # since it was admitted
            return self.context.redirect_to("login")
        result = await self._perform(request, visitor, dict(await read_form(request, most=MAX_BOXES)))
        if accepts(request, "text/html"):
            return await self._page(request, result)
        return json_response({"told": result.text}, result.status, NO_STORE)

    async def _perform(self, request: Request, visitor: Visitor, fields: Mapping[str, str]) -> ActionResult:
        if (fault := self.context.find_csrf_fault(request, visitor, fields, *PAGE)) is not None:
            return ActionResult(fault, 403)
        names = [name for name in self._actions if name in fields]
        if len(names) != 1:
            return ActionResult(NO_ACTION, 400)
        return await self._actions[names[0]](visitor, fields[names[0]], fields)

    async def _stop(self, visitor: Visitor, id: str, _fields: Mapping[str, str]) -> ActionResult:
        try:
            has_ended = await self.dashboard.stop_run(principal_of(visitor), id)
        except RunsUnreachableError as error:
            return ActionResult(format_sentence(error), 503)
        if has_ended is None:
            return ActionResult(ALREADY_ENDED, 404)
        return ActionResult(f"Command {id} was stopped.") if has_ended else ActionResult(NOT_ENDED, 409)

    async def _end(self, visitor: Visitor, id: str, _fields: Mapping[str, str]) -> ActionResult:
        for _, sessions, held in self._sessions_of(principal_of(visitor)):
            if short_hash(held.id) == id:
                sessions.close(held)
                return ActionResult("The session was ended. The app can open a new one until you revoke its access.")
        return ActionResult(ALREADY_ENDED, 404)

    async def _cancel(self, visitor: Visitor, slot: str, _fields: Mapping[str, str]) -> ActionResult:
        is_cancelled = await self.dashboard.cancel_callback(principal_of(visitor), slot)
        return ActionResult("The callback was cancelled.") if is_cancelled else ActionResult(ALREADY_ENDED, 404)

    async def _revoke(self, visitor: Visitor, id: str, _fields: Mapping[str, str]) -> ActionResult:
        person = visitor.person
        if self._grants is None or person is None or not await self._grants.revoke_grant(person, id):
            return ActionResult(ALREADY_ENDED, 404)
        return ActionResult(REVOKED)

    async def _answer(self, action: str, visitor: Visitor, id: str, fields: Mapping[str, str]) -> ActionResult:
        return await self._decisions.answer(principal_of(visitor), id, action, fields)

    async def _allow(self, duration: "Duration", visitor: Visitor, id: str, _fields: Mapping[str, str]) -> ActionResult:
        return await self._decisions.allow(principal_of(visitor), id, duration)

    async def _forget_approval(self, visitor: Visitor, id: str, _fields: Mapping[str, str]) -> ActionResult:
        is_ended = await self.dashboard.end_approval(principal_of(visitor), id)
        return ActionResult(APPROVAL_ENDED) if is_ended else ActionResult(ALREADY_ENDED, 404)

    def _sessions_of(self, principal: str) -> Iterator[tuple[str, Sessions, HttpSession]]:
        for transport, sessions in self._sessions.items():
            for held in sessions.of_person(principal):
                yield transport, sessions, held

    async def _static_file(self, name: str, _request: Request) -> Response:
        return self.context.pages.static_file(name)


async def _act_on_part(act: PartAction, visitor: Visitor, id: str, fields: Mapping[str, str]) -> ActionResult:
    return await act(principal_of(visitor), id, fields)


def _form_fields(question: QuestionView) -> list[elicitation_form.FormField] | None:
    """Return the fields of a question's form; None if it can't be shown, and the person can only decline."""
    try:
        return elicitation_form.form_fields(question.schema)
    except Exception:  # the schema is a plugin's, and may hold anything
        log.exception("the form of a question of %s can't be shown", question.tool)
        return None


def _to_shown_session(transport: str, held: HttpSession) -> ShownSession:
    session = held.session
    revision = session.revision.name if session.revision is not None else ""
    id = short_hash(held.id)  # the id itself opens the session
    return ShownSession(id, session.client, transport, revision, held.began, len(session.in_flight))


def _json_error(status: int, text: str) -> Response:
    """Answer the page's script, which shows the sentence."""
    return json_response({"told": format_sentence(text)}, status, NO_STORE)


def tab_group(csrf: str) -> str:
    """Return the name under which the tabs of this sign-in share a stream, which can't be used as its token."""
    return short_hash(csrf)
