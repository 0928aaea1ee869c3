"""Share templates, cookies, redirects, and forms protected against forgery (CSRF) between all pages.

A form is bound to the login session. Before there is one, it is bound to a cookie of its own question, so that tabs
don't disturb each other.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from toolgate.server.auth.login.accounts import Person
from toolgate.server.auth.tokens.access_tokens import name_principal
from toolgate.server.base.http.head import format_lines
from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.transports.http.requests.asgi import Application, Receive, Scope, Send, headers_of, is_browser, respond
from toolgate.transports.http.requests.cors import HeaderLines
from toolgate.transports.http.wire.request import WholeResponse
from toolgate.transports.web.http import Cookies, new_secret, redirect, short_hash, with_headers
from toolgate.transports.web.templates import PageTemplates

HOME_PAGE = ""  # the path after a sign-in that nothing else was asked with
ONWARD, ONWARD_TIME = "onward", 600.0  # the cookie of a page that a stranger asked for; seconds that it holds
ONWARD_FORM = r"[A-Za-z0-9_-]{1,1024}"
MAX_ONWARD = 512  # characters: no page of ours asks for more
OWN_PAGE = re.compile(r"[a-z]+(?:/[a-z]+)*(?:\?[A-Za-z0-9_.~%=&-]*)?")  # below the base: it leads to no other server
FORM_TIME = 3600.0  # seconds that a form stays valid
STALE = "This page is no longer current, so nothing was done. Please try again."  # for people
NO_ACTION = "The form named no action, so nothing was done. Reload this page and try again."
REVOKED = "Access was revoked. The app’s tokens no longer work."
APPROVAL_ENDED = "You will be asked again."
NO_COOKIE = "This page needs a cookie, but your browser sent none, so nothing was done. Allow cookies and try again."


class Visitor(msgspec.Struct, frozen=True):
    """The person at a browser, if known. `key` is the login session's, "" if a proxy signs people in."""

    person: Person | None = None
    key: str = ""


ANONYMOUS = Visitor()


class PageContext:
    """`public_url` has no trailing slash; `server` is the name that people read."""

    def __init__(self, public_url: str, server: str, *, has_account_page: bool = False) -> None:
        self.public_url = public_url
        self.base = urlsplit(public_url).path
        self.pages = PageTemplates(self.base, server, has_account_page=has_account_page)
        self.cookies = Cookies(public_url)

    def csrf_token(self, request: Request, visitor: Visitor, *page: str) -> tuple[str, list[tuple[str, str]]]:
        """Return the token of a form of `page` (its name, its question, …), and the cookies it needs."""
        if visitor.key:
            return _token(visitor.key, visitor, page), []
        name = _form_cookie(page)
        secret = self.cookies.get(request, name) or new_secret()
        return _token(secret, visitor, page), [self.cookies.set(name, secret, FORM_TIME)]

    def find_csrf_fault(self, request: Request, visitor: Visitor, fields: Mapping[str, str], *page: str) -> str | None:
        """Return None if the form belongs to that page in this browser; else a sentence for the person."""
        secret = visitor.key or self.cookies.get(request, _form_cookie(page))
        if not secret:
            return NO_COOKIE
        is_own_site = request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        token = _token(secret, visitor, page)
        is_valid = is_own_site and hmac.compare_digest(token.encode(), fields.get("csrf", "").encode())
        return None if is_valid else STALE

    def error_page(self, status: int, text: str) -> Response:
        return self.pages.notice(status, "That did not work", format_sentence(text), **self.first_page_link())

    async def answer_unknown_path(self, refuse: Application, scope: Scope, receive: Receive, send: Send) -> None:
        """Show a browser a page for a path that this server does not have; `refuse` answers other clients."""
        if not is_browser(scope["method"], headers_of(scope)):
            await refuse(scope, receive, send)
            return
        sentence = "Check the address, or go to the first page."
        page = self.pages.notice(404, "There is no such page", sentence, isolated=True, **self.first_page_link())
        await respond(send, 404, page.raw_headers, bytes(page.body))

    def endpoint_page(self, path: str, status: int, headers: HeaderLines) -> WholeResponse:
        """Answer a browser that opened the URL of a transport, which is for MCP clients."""
        page = self.pages.notice(
            status,
            "This address is for MCP clients",
            "Copy this URL into your app. The app then connects to this server.",
            isolated=True,
            about=self.public_url + path,
            **self.first_page_link(),
        )
        own = [header for header in page.raw_headers if header[0] != b"content-length"]
        return WholeResponse(status, format_lines([*own, *headers]), bytes(page.body))

    def first_page_link(self) -> dict[str, Any]:
        """Return the values of a notice that lead to the first page."""
        return {"again": f"{self.base}/", "again_label": "Go to the first page"}

    def send_to_login(self, page: str, /, **query: str) -> Response:
        """Send a stranger to sign in, and from there to this page of ours."""
        asked = self.path_of(page, **query).removeprefix(f"{self.base}/")
        if len(asked) > MAX_ONWARD or OWN_PAGE.fullmatch(asked) is None:
            return self.redirect_to("login")
        kept = base64.urlsafe_b64encode(asked.encode()).decode().rstrip("=")
        return with_headers(self.redirect_to("login"), self.cookies.set(ONWARD, kept, ONWARD_TIME))

    def send_onward(self, request: Request) -> Response:
        """Send a person who has signed in to the page that they asked for before, or else to the first one."""
        kept = self.cookies.get(request, ONWARD, ONWARD_FORM)
        if not kept:
            return self.redirect_to(HOME_PAGE)
        try:
            asked = base64.urlsafe_b64decode(kept + "=" * (-len(kept) % 4)).decode("ascii")
        except ValueError:
            asked = ""
        page = asked if OWN_PAGE.fullmatch(asked) else HOME_PAGE  # others may set cookies, too
        return with_headers(redirect(f"{self.base}/{page}"), self.cookies.clear(ONWARD))

    def redirect_to(self, page: str, /, **query: str) -> Response:
        return redirect(self.path_of(page, **query))

    def path_of(self, page: str, /, **query: str) -> str:
        """Return the page's path, with the query parameters that are not empty: any name may be one."""
        encoded = urlencode({name: value for name, value in query.items() if value}, quote_via=quote)
        return f"{self.base}/{page}" + (f"?{encoded}" if encoded else "")


def format_sentence(text: object) -> str:
    """Return an error's text as a sentence for people."""
    line = str(text).rstrip(".")
    return f"{line[:1].upper()}{line[1:]}."


def principal_of(visitor: Visitor) -> str:
    """Return the name of the person's principal, under which folders and rows are stored."""
    if visitor.person is None:
        return LOCAL_NAME
    return name_principal(visitor.person.issuer, visitor.person.subject)


def _token(secret: str, visitor: Visitor, page: tuple[str, ...]) -> str:
    identity = (visitor.person.issuer, visitor.person.subject) if visitor.person is not None else ("", "")
    text = "\n".join((*page, *identity))
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def _form_cookie(page: tuple[str, ...]) -> str:
    return f"form-{short_hash(page[1])}" if page[1] else "form"
