"""The page where people see what they have granted, and take it back."""

from collections.abc import Iterable

from toolgate.server.auth.redirects import shown_host
from toolgate.transports.desk import Desk
from toolgate.transports.exchange import Incoming, Outgoing


class Account:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def page(self, incoming: Incoming) -> Outgoing:
        visitor = await self._desk.visitor(incoming)
        if visitor.person is None:
            return self._desk.to("login")
        csrf, cookies = self._desk.bound(incoming, visitor, "account", "")
        grants = await self._desk.authorization.grants(visitor.person)
        page = self._desk.pages.show(
            "account",
            person=visitor.person,
            can_sign_out=visitor.key != "",
            grants=grants,
            hosts={grant.id: _hosts(grant.client.redirect_uris) for grant in grants},
            csrf=csrf,
            done="done" in incoming.asked(),
        )
        return page.having(*cookies)

    async def withdraw(self, incoming: Incoming) -> Outgoing:
        fields = dict(incoming.form())
        visitor = await self._desk.visitor(incoming)
        if visitor.person is None:
            return self._desk.to("login")
        if not self._desk.is_bound(incoming, visitor, fields, "account", ""):
            return self._desk.to("account")
        done = await self._desk.authorization.withdraw(visitor.person, fields.get("grant", ""))
        return self._desk.to("account", done="1" if done else "")


def _hosts(uris: Iterable[str]) -> str:
    """Where a client is reached: what tells two of one name apart."""
    hosts = sorted({shown_host(uri) for uri in uris})
    return ", ".join(hosts[:3]) + (", …" if len(hosts) > 3 else "")
