"""The page where people see what they have granted, and take it back."""

from collections.abc import Mapping

from toolgate.transports.web.consent import meaning
from toolgate.transports.web.http import Incoming, Outgoing
from toolgate.transports.web.signed_in import Desk

DONE = "Taken back. What that app got by it no longer works."  # for people
NOTHING = "There was nothing to take back any more: it has ended already."


class Account:
    """`sentences` says what each scope means."""

    def __init__(self, desk: Desk, sentences: Mapping[str, str]) -> None:
        self._desk = desk
        self._sentences = sentences

    async def page(self, incoming: Incoming) -> Outgoing:
        return await self._page(incoming)

    async def _page(
        self, incoming: Incoming, status: int = 200, done: str | None = None, problem: str | None = None
    ) -> Outgoing:
        visitor = await self._desk.visitor(incoming)
        if visitor.person is None:
            return self._desk.to("login")
        csrf, cookies = self._desk.bound(incoming, visitor, "account", "")
        grants = await self._desk.authorization.grants(visitor.person)
        page = self._desk.pages.show(
            "account",
            status,
            person=visitor.person,
            can_sign_out=visitor.key != "",
            grants=grants,
            meanings={scope: meaning(self._sentences, scope) for grant in grants for scope in grant.scopes},
            csrf=csrf,
            done=done,
            problem=problem,
        )
        return page.having(*cookies)

    async def withdraw(self, incoming: Incoming) -> Outgoing:
        """Answered with the page itself: in a URL, any link could say that something was taken back."""
        fields = dict(incoming.form())
        visitor = await self._desk.visitor(incoming)
        if visitor.person is None:
            return self._desk.to("login")
        if not self._desk.is_bound(incoming, visitor, fields, "account", ""):
            return await self._page(incoming, 403, problem=self._desk.unbound(incoming, visitor, "account", ""))
        ended = await self._desk.authorization.withdraw(visitor.person, fields.get("grant", ""))
        return await self._page(incoming, done=DONE if ended else NOTHING)
