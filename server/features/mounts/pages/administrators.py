"""Know who is an administrator (`--administrators`): who may see other people's connections, and end them."""

from collections.abc import Sequence

from toolgate.server.auth.login.accounts import Accounts, normalize_name_or_empty
from toolgate.server.auth.tokens.access_tokens import name_principal
from toolgate.server.base.principals.sign_in_methods import PASSWORD, parse_method
from toolgate.server.state.store import Store


class Administrators:
    """The administrators of one server. `words` name them; `login` has the ways to sign in."""

    def __init__(self, words: Sequence[str], login: Sequence[str], store: Store) -> None:
        methods = [parse_method(way) for way in login]
        issuers = {method.prefix: method.issuer or value for method, value in methods}
        named = [word.partition(":")[::2] for word in words]
        self._accounts = {normalize_name_or_empty(name) for prefix, name in named if prefix == PASSWORD.prefix} - {""}
        self._principals = frozenset(
            name_principal(issuers[prefix], name) for prefix, name in named if issuers.get(prefix)
        )
        self._store = store

    async def includes(self, principal: str) -> bool:
        """Return whether a principal is one. Raises StateError."""
        if principal in self._principals:
            return True
        for name in self._accounts:  # whoever has the account now
            person = await Accounts(self._store).find_account(name)
            if person is not None and name_principal(person.issuer, person.subject) == principal:
                return True
        return False
