"""Find a principal's names for rules: `account:ada`, `github:583231`."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from toolgate.server.policy.sign_in_methods import PASSWORD, format_identity

if TYPE_CHECKING:
    from toolgate.server.state.store import Store

MAX_KNOWN = 10_000  # principals with cached names


class PrincipalNames:
    """A cache of names, which never change: no subject is reused, no account renamed."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._known: OrderedDict[str, frozenset[str]] = OrderedDict()

    async def find_names(self, principal: str) -> frozenset[str]:
        """Return all names of a principal. Raises StateError."""
        if principal not in self._known:
            self._known[principal] = frozenset((principal,)) | await self._look_up(principal)
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return self._known[principal]

    async def _look_up(self, principal: str) -> frozenset[str]:
        """Find the person in the database, where they are before they have a token."""
        from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
        from toolgate.server.principal import LOCAL_NAME, Principal  # start-up: rules about people are rare
        from toolgate.server.state import grant_rows
        from toolgate.server.state.people_rows import BUILT_IN

        if principal == LOCAL_NAME:
            return frozenset()
        for row in await self._store.read(grant_rows.list_people):
            if Principal(OWN_ISSUER, row.subject, "").name == principal:
                is_account = row.issuer == BUILT_IN
                name = f"{PASSWORD.prefix}:{row.name}" if is_account else format_identity(row.issuer, row.known_as)
                return frozenset((name,))
        return frozenset()
