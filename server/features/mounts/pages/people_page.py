"""Show administrators all people's connections to mounted servers, and end one: `/mounts/people`.

A page has 50. No token is read. To others the page is not there.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.principals.principal import Principal
from toolgate.server.base.principals.sign_in_methods import format_identity
from toolgate.server.base.reports.page_part import ALREADY_ENDED
from toolgate.server.features.mounts.pages.administrators import Administrators
from toolgate.server.features.mounts.pages.person_page import PersonPage
from toolgate.server.features.mounts.sign_in.service import SignInService
from toolgate.server.features.mounts.sign_in.store import ConnectionSummary
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows.people import BUILT_IN
from toolgate.server.state.store import Store
from toolgate.transports.web.http import Request, Response, WebEndpoint, read_form, read_query, with_headers
from toolgate.transports.web.page_context import NO_ACTION, PageContext, Visitor, principal_of

PATH = "mounts/people"
TEMPLATE = Path(__file__).with_name("people.html")
PAGE = 50  # connections
MAX_FOUND = 500  # people whose names have what is looked for
MAX_NAME = 64  # characters of a name in the log
NOT_THERE = "there is no such page"
ENDED = "The connection was ended. Its person can connect again."

log = logging.getLogger("toolgate.auth")


class ShownPerson(msgspec.Struct, frozen=True):
    """`name` is for display, and `identity` as rules write it."""

    name: str
    identity: str


class PeoplePage:
    """`identify(request)` returns the visitor, or None for a stranger; `find_use(principal, mount)` when the person
    used a mount of this server last, in seconds since the epoch, or None if that is not known."""

    def __init__(
        self,
        context: PageContext,
        identify: Callable[[Request], Awaitable[Visitor | None]],
        administrators: Administrators,
        service: SignInService,
        store: Store,
        find_use: Callable[[str, str], float | None],
    ) -> None:
        self._context = context
        self._identify = identify
        self._administrators = administrators
        self._service = service
        self._store = store
        self._find_use = find_use

    def routes(self) -> Iterator[tuple[str, WebEndpoint]]:
        """Yield the path with its endpoint."""
        yield PersonPage(PATH, self._context, self._identify, self._show, self._act, self._find_refusal).route()

    async def _find_refusal(self, visitor: Visitor) -> Response | None:
        """Return the answer to whoever is no administrator, or None for one who is."""
        is_administrator = await self._administrators.includes(principal_of(visitor))
        return None if is_administrator else self._context.error_page(404, NOT_THERE)

    async def _show(self, request: Request, visitor: Visitor) -> Response:
        return await self._render(request, visitor, read_query(request), await self._read_people())

    async def _act(self, request: Request, visitor: Visitor) -> Response:
        """End the connection that a button names by its person and mount."""
        fields = dict(await read_form(request))
        if (fault := self._context.find_csrf_fault(request, visitor, fields, PATH, "")) is not None:
            return self._context.error_page(403, fault)
        principal, _, mount = fields.get("end", "").partition(" ")
        people = await self._read_people()
        if not principal or not mount:
            return await self._render(request, visitor, {}, people, status=400, problem=NO_ACTION)
        if not await self._service.disconnect(principal, mount):
            return await self._render(request, visitor, {}, people, status=404, problem=ALREADY_ENDED)
        person, actor = (_name(people, each) for each in (principal, principal_of(visitor)))
        log.warning("connection ended: of %s at mount %s, by the administrator %s", person, mount, actor)
        return await self._render(request, visitor, {}, people, done=ENDED)

    async def _render(
        self,
        request: Request,
        visitor: Visitor,
        query: Mapping[str, str],
        people: Mapping[str, ShownPerson],
        *,
        status: int = 200,
        done: str = "",
        problem: str = "",
    ) -> Response:
        looked_for = query.get("who", "").strip()
        chosen = _find_people(people, looked_for) if looked_for else None
        principal, _, mount = query.get("after", "").partition(" ")
        found = await self._service.store.list_all((principal, mount), PAGE + 1, chosen)
        csrf, cookies = self._context.csrf_token(request, visitor, PATH, "")
        answer = self._context.pages.render_file(
            TEMPLATE,
            status,
            rows=[(people.get(each.principal), each, self._find_last_use(each)) for each in found[:PAGE]],
            following=f"{found[PAGE - 1].principal} {found[PAGE - 1].mount}" if len(found) > PAGE else "",
            is_first=not principal,
            who=looked_for,
            csrf=csrf,
            action=self._context.path_of(PATH),
            done=done,
            problem=problem,
        )
        return with_headers(answer, *cookies)

    def _find_last_use(self, connection: ConnectionSummary) -> float | None:
        return self._find_use(connection.principal, connection.mount)

    async def _read_people(self) -> dict[str, ShownPerson]:
        """Return all people who have signed in, by principal."""
        rows = await self._store.read(grant_rows.list_people)
        return await asyncio.to_thread(partial(_name_all, rows))  # 10,000 take 0.1 s


def _name_all(rows: Collection[Any]) -> dict[str, ShownPerson]:
    return {
        Principal(OWN_ISSUER, row.subject, "").name: ShownPerson(
            row.name, f"account:{row.name}" if row.issuer == BUILT_IN else format_identity(row.issuer, row.known_as)
        )
        for row in rows
    }


def _name(people: Mapping[str, ShownPerson], principal: str) -> str:
    """Return what names a person in the log."""
    person = people.get(principal)
    return json.dumps(principal if person is None else person.identity[:MAX_NAME])


def _find_people(people: Mapping[str, ShownPerson], text: str) -> list[str]:
    """Return the principals whose names have this text."""
    wanted = text.casefold()
    found = [
        principal
        for principal, person in people.items()
        if wanted in person.name.casefold() or wanted in person.identity.casefold()
    ]
    return sorted(found)[:MAX_FOUND]
