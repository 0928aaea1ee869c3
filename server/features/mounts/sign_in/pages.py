"""Serve the pages of a sign-in at a mounted server: what it is for, before a person leaves; and the way back.

/mounts/connect?name=NAME   our own consent: which server, as whom, for what; its form leaves
/mounts/callback            where the authorization server sends the browser back
/mounts/client.json         what this server is as a client (client ID metadata document)
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from toolgate.server.features.mounts.sign_in.flow import CALLBACK, DOCUMENT, describe_client
from toolgate.server.features.mounts.sign_in.requests import NotSentError
from toolgate.server.features.mounts.sign_in.service import SignInService
from toolgate.server.features.mounts.sign_in.store import SignInFault
from toolgate.tools.api.concurrency.fair_queue import BusyError, FairQueue
from toolgate.transports.web.http import (
    Request,
    Response,
    WebEndpoint,
    json_response,
    read_form,
    read_query,
    redirect,
    with_headers,
)
from toolgate.transports.web.page_context import PageContext, Visitor, format_sentence, principal_of

CONNECT = "mounts/connect"
TEMPLATE = Path(__file__).parents[1] / "pages" / "connect.html"
REFUSAL = TEMPLATE.with_name("refusal.html")
NOT_MOUNTED = "there is no mounted server of this name where you can sign in"
OVER = "this sign-in is over, was used, or is another person's: begin again"
GONE = "that server is not mounted any more: nothing was connected"
MAX_AT_ONCE, MAX_EACH, PATIENCE = 16, 2, 10.0  # conversations with authorization servers; seconds to wait for a turn

log = logging.getLogger("toolgate.mounts")


class SignInPages:
    """`identify(request)` returns the visitor, or None for a stranger."""

    def __init__(
        self, service: SignInService, context: PageContext, identify: Callable[[Request], Any], server: str
    ) -> None:
        self._service = service
        self._context = context
        self._identify = identify
        self._server = server
        self._turns = FairQueue(MAX_AT_ONCE, "sign-ins", per_principal=MAX_EACH, max_waiting=MAX_EACH)

    def routes(self) -> Iterator[tuple[str, WebEndpoint]]:
        """Yield each path with its endpoint."""
        refuse = self._context.error_page
        asking = {"GET": self._ask, "HEAD": self._ask, "POST": self._leave}
        yield f"/{CONNECT}", WebEndpoint(asking, refuse)
        yield f"/{CALLBACK}", WebEndpoint({"GET": self._come_back}, refuse)
        yield f"/{DOCUMENT}", WebEndpoint({"GET": self._describe, "HEAD": self._describe}, refuse, shared=True)

    async def _ask(self, request: Request) -> Response:
        """Show what a sign-in is for, before the person leaves."""
        visitor: Visitor | None = await self._identify(request)
        name = read_query(request).get("name", "")
        if visitor is None:
            return self._context.send_to_login(CONNECT, name=name)
        sign_in = self._service.find(name)
        if sign_in is None:
            return self._refuse(404, "NOT_MOUNTED", NOT_MOUNTED)
        try:
            async with self._turns.slot(principal_of(visitor), PATIENCE):
                found = await sign_in.find(principal_of(visitor))
        except (SignInFault, BusyError) as error:
            return self._tell(name, error, "DISCOVERY_FAILED")
        csrf, cookies = self._context.csrf_token(request, visitor, CONNECT, name, found.digest)
        page = self._context.pages.render_file(
            TEMPLATE,
            mount=name,
            host=urlsplit(sign_in.url).netloc,
            found=found,
            person=visitor.person,
            csrf=csrf,
            action=f"{self._context.base}/{CONNECT}",
        )
        return with_headers(page, *cookies)

    async def _leave(self, request: Request) -> Response:
        """Send the person to the authorization server."""
        visitor: Visitor | None = await self._identify(request)
        if visitor is None:
            return self._context.redirect_to("login")
        fields = dict(await read_form(request))
        name, shown = fields.get("name", ""), fields.get("shown", "")
        if (fault := self._context.find_csrf_fault(request, visitor, fields, CONNECT, name, shown)) is not None:
            return self._refuse(403, "SIGN_IN_OVER", fault)
        sign_in = self._service.find(name)
        if sign_in is None:
            return self._refuse(404, "NOT_MOUNTED", NOT_MOUNTED)
        try:
            async with self._turns.slot(principal_of(visitor), PATIENCE):
                location = await sign_in.begin(principal_of(visitor), shown)
        except (SignInFault, BusyError) as error:
            return self._tell(name, error, "DISCOVERY_FAILED")
        if not location:  # it says something else by now
            return self._context.redirect_to(CONNECT, name=name)
        return redirect(location)

    async def _come_back(self, request: Request) -> Response:
        """Take the answer of the authorization server."""
        visitor: Visitor | None = await self._identify(request)
        if visitor is None:
            return self._context.redirect_to("login")
        answer = read_query(request)
        principal = principal_of(visitor)
        departure = await self._service.store.take_departure(principal, answer.get("state", ""))
        if departure is None:
            return self._refuse(400, "SIGN_IN_OVER", OVER)
        sign_in = self._service.find(departure.mount)
        if sign_in is None or sign_in.server != departure.server:
            return self._refuse(400, "NOT_MOUNTED", GONE)
        try:
            async with self._turns.slot(principal, PATIENCE):
                await sign_in.complete(principal, departure, answer)
        except (SignInFault, BusyError) as error:
            return self._tell(departure.mount, error, "TOKEN_REFUSED")
        self._service.note_change(principal, departure.mount)
        told = f"{departure.mount} now does for you what you allowed there. You can end this on the first page."
        return self._context.pages.notice(200, "Connected", told, **self._context.first_page_link())

    async def _describe(self, _request: Request) -> Response:
        document: Mapping[str, Any] = describe_client(self._context.public_url, self._server)
        return json_response(document, headers={"cache-control": "public, max-age=3600"})

    def _tell(self, mount: str, error: SignInFault | BusyError, code: str) -> Response:
        """Show why a sign-in failed. `code`: of this step, where the error has none."""
        code = "SIGN_IN_BUSY" if isinstance(error, BusyError) else error.code or code
        log.warning("signing in at mount %s failed: %s: %s", mount, code, error.text)
        status = 503 if isinstance(error, (BusyError, NotSentError)) else 502
        return self._refuse(status, code, f"{mount}: {error.text}", mount)

    def _refuse(self, status: int, code: str, text: str, mount: str = "") -> Response:
        """Show an error with the page of its code."""
        sentence = format_sentence(text)
        return self._context.pages.render_file(REFUSAL, status, sentence=sentence, code=code, mount=mount)
