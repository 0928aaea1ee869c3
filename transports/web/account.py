"""Serve the account page, where people see what they have granted and revoke it."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from toolgate.transports.web.consent import describe_scope
from toolgate.transports.web.http import read_form, with_headers
from toolgate.transports.web.sign_in_context import SignInContext

REVOKED = "Access was revoked. The app’s tokens no longer work."  # for people
ALREADY_REVOKED = "There is nothing to revoke: that access has already ended."


class AccountPage:
    """`sentences` says what each scope means."""

    def __init__(self, context: SignInContext, sentences: Mapping[str, str]) -> None:
        self._context = context
        self._sentences = sentences

    async def page(
        self, request: Request, status: int = 200, done: str | None = None, problem: str | None = None
    ) -> Response:
        visitor = await self._context.identify_visitor(request)
        if visitor.person is None:
            return self._context.redirect_to("login")
        csrf, cookies = self._context.csrf_token(request, visitor, "account", "")
        grants = await self._context.authorization.grants.list_grants(visitor.person)
        page = self._context.pages.render(
            "account",
            status,
            person=visitor.person,
            can_sign_out=visitor.key != "",
            grants=grants,
            meanings={scope: describe_scope(self._sentences, scope) for grant in grants for scope in grant.scopes},
            csrf=csrf,
            done=done,
            problem=problem,
        )
        return with_headers(page, *cookies)

    async def revoke(self, request: Request) -> Response:
        """Revoke a grant, and answer with the page itself: with the result in a URL, any link could claim it."""
        fields = dict(await read_form(request))
        visitor = await self._context.identify_visitor(request)
        if visitor.person is None:
            return self._context.redirect_to("login")
        if (fault := self._context.find_csrf_fault(request, visitor, fields, "account", "")) is not None:
            return await self.page(request, 403, problem=fault)
        ended = await self._context.authorization.grants.revoke_grant(visitor.person, fields.get("grant", ""))
        return await self.page(request, done=REVOKED if ended else ALREADY_REVOKED)
