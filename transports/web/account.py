"""The page where people see what they have granted, and take it back."""

from collections.abc import Mapping

from toolgate.transports.web.consent import describe_scope
from toolgate.transports.web.http import WebRequest, WebResponse
from toolgate.transports.web.sign_in_context import SignInContext

REVOKED = "Taken back. What that app got by it no longer works."  # for people
ALREADY_REVOKED = "There was nothing to take back any more: it has ended already."


class AccountPage:
    """`sentences` says what each scope means."""

    def __init__(self, context: SignInContext, sentences: Mapping[str, str]) -> None:
        self._context = context
        self._sentences = sentences

    async def page(self, incoming: WebRequest) -> WebResponse:
        return await self._page(incoming)

    async def _page(
        self, incoming: WebRequest, status: int = 200, done: str | None = None, problem: str | None = None
    ) -> WebResponse:
        visitor = await self._context.identify_visitor(incoming)
        if visitor.person is None:
            return self._context.redirect_to("login")
        csrf, cookies = self._context.csrf_token(incoming, visitor, "account", "")
        grants = await self._context.authorization.grants(visitor.person)
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
        return page.with_headers(*cookies)

    async def revoke(self, incoming: WebRequest) -> WebResponse:
        """Answered with the page itself: in a URL, any link could say that something was taken back."""
        fields = dict(incoming.read_form())
        visitor = await self._context.identify_visitor(incoming)
        if visitor.person is None:
            return self._context.redirect_to("login")
        if not self._context.has_valid_csrf(incoming, visitor, fields, "account", ""):
            return await self._page(
                incoming, 403, problem=self._context.describe_csrf_failure(incoming, visitor, "account", "")
            )
        ended = await self._context.authorization.withdraw(visitor.person, fields.get("grant", ""))
        return await self._page(incoming, done=REVOKED if ended else ALREADY_REVOKED)
