"""Find a principal's names for rules: `account:ada`, `github:583231`."""

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

from toolgate.server.base.principals.sign_in_methods import PASSWORD, format_identity

if TYPE_CHECKING:
    from toolgate.server.state.store import Store

MAX_KNOWN = 10_000  # principals with cached names


class PrincipalNames:
    """A cache of names, which never change: no subject is reused, no account renamed.

    The first look reads all people, a later one those who signed in since, as long as the cache has room for all.
    """

    def __init__(self, store: "Store", most: int = MAX_KNOWN) -> None:
        self._store = store
        self._most = most
        self._known: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._since = 0.0  # people who signed in before are in the cache

    async def find_names(self, principal: str) -> frozenset[str]:
        """Return all names of a principal. Raises StateError."""
        if principal not in self._known:
            await self._read_people(principal)
        return self._known[principal]

    async def find_label(self, principal: str) -> str:
        """Return the principal's name for logs: that of its person, if it has one. Raises StateError."""
        names = await self.find_names(principal)
        return next(iter(names - {principal}), principal)

    async def _read_people(self, principal: str) -> None:
        """Take names from the database, where people are before they have a token."""
        from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
        from toolgate.server.base.principals.principal import (  # start-up: rules about people are rare
            LOCAL_NAME,
            Principal,
        )
        from toolgate.server.state.rows import grants as grant_rows

        names: dict[str, frozenset[str]] = {principal: frozenset((principal,))}
        if principal != LOCAL_NAME:
            now = self._store.now()
            for row in await self._store.read(partial(grant_rows.list_people_since, since=self._since)):
                name = Principal(OWN_ISSUER, row.subject, "").name
                names[name] = frozenset((name, _format_name(row)))
            self._since = now - grant_rows.CLOCK_SLACK
        own = names.pop(principal)
        self._known |= names
        self._known[principal] = own  # the last to go
        while len(self._known) > self._most:
            self._known.popitem(last=False)
            self._since = 0.0  # the next read finds the dropped people again


def _format_name(row: Any) -> str:
    from toolgate.server.state.rows.people import BUILT_IN  # start-up

    return f"{PASSWORD.prefix}:{row.name}" if row.issuer == BUILT_IN else format_identity(row.issuer, row.known_as)
