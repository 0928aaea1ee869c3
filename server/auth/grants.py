"""List and revoke what people have granted to clients. Needs only the database, so commands can use it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from toolgate.server.auth.clients.model import OAuthClient, client_from_row, find_client
from toolgate.server.auth.clients.redirect_uris import display_host
from toolgate.server.base.principals.principal import derive_subject
from toolgate.server.state.rows import clients as client_rows
from toolgate.server.state.rows import grants as grant_rows

if TYPE_CHECKING:
    from toolgate.server.auth.login.accounts import Person
    from toolgate.server.state.store import Connection, Store

MAX_SHOWN = 50  # grants on a page: hosted platforms register again at each connection
PIECE = 100  # grants that one transaction ends: it takes some 10 ms


class GrantSummary(msgspec.Struct, frozen=True):
    """One grant. Times are seconds since the epoch."""

    id: str
    client: OAuthClient
    person: str  # "" once it is removed
    issuer: str  # of the person; "" as above
    scopes: tuple[str, ...]
    made_at: float
    used_at: float | None  # last time a token was issued
    expires_at: float
    redirect_uri: str = ""  # of its code, or ""

    @property
    def redirect_host(self) -> str:
        """Return the redirect URI's host, in words for a person."""
        return display_host(self.redirect_uri) if self.redirect_uri else ""


async def list_denied_tokens(store: "Store", now: Callable[[], float] | None = None) -> list[str]:
    """Return the ids of all denied, unexpired access tokens, for `OwnTokens`."""
    return await store.read(lambda connection: grant_rows.list_denied_tokens(connection, (now or store.now)()))


class Grants:
    """The grants in the database. `deny` drops access tokens in this process; others see it within seconds."""

    def __init__(
        self,
        store: "Store",
        configured: Mapping[str, OAuthClient],
        deny: Callable[[Collection[str]], None] = lambda jtis: None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._store = store
        self._configured = configured
        self._deny = deny
        self._now = now or store.now

    async def list_grants(self, person: "Person | None" = None) -> list[GrantSummary]:
        """Return the valid grants of a person, or of everybody, the newest first, by one query."""
        now, subject = self._now(), derive_subject(person.issuer, person.subject) if person is not None else None
        return self._summarize(
            await self._store.read(lambda connection: grant_rows.list_used_grants(connection, subject, now))
        )

    async def list_newest(self, person: "Person") -> tuple[list[GrantSummary], int]:
        """Return the newest `MAX_SHOWN` valid grants of a person, those of a client together, and the number of all."""
        now, subject = self._now(), derive_subject(person.issuer, person.subject)

        def look(connection: "Connection") -> tuple[list[grant_rows.GrantRow], int]:
            rows = grant_rows.list_used_grants(connection, subject, now, MAX_SHOWN)
            count = len(rows) if len(rows) < MAX_SHOWN else grant_rows.count_used_grants(connection, subject, now)
            return rows, count

        rows, count = await self._store.read(look)
        by_client: dict[str, list[GrantSummary]] = {}
        for grant in self._summarize(rows):
            by_client.setdefault(grant.client.id, []).append(grant)
        return [grant for grants in by_client.values() for grant in grants], count

    async def has_grant(self, person: "Person", client: str) -> bool:
        """Return whether a person has a valid grant for a client."""
        now, subject = self._now(), derive_subject(person.issuer, person.subject)
        return await self._store.read(lambda connection: grant_rows.has_used_grant(connection, subject, client, now))

    async def find_names(
        self, grants: Collection[str], clients: Collection[str]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the clients of these grants, and the names of those clients and of `clients`, by their ids."""

        def look(connection: "Connection") -> tuple[dict[str, str], dict[str, str]]:
            by_grant = grant_rows.find_clients_of(connection, grants) if grants else {}
            ids = {*by_grant.values(), *clients}
            stored = ((id, find_client(connection, self._configured, id)) for id in ids)
            return by_grant, {id: client.name for id, client in stored if client is not None}

        return await self._store.read(look)

    async def revoke_grant(self, person: "Person | None", id: str) -> bool:
        """End one of a person's grants, or with None any grant, and return whether it existed. Its tokens become
        invalid, and so does a code not yet redeemed."""
        now, subject = self._now(), derive_subject(person.issuer, person.subject) if person is not None else None

        def end(connection: "Connection") -> list[str] | None:
            grant = grant_rows.find_grant(connection, id)
            if grant is None or not grant.is_valid(now) or subject not in (None, grant.subject):
                return None
            grant_rows.forget_consents(connection, grant.subject, grant.client)
            for waiting in grant_rows.list_unrevoked_grants(connection, grant.subject, grant.client):
                if waiting.used_at is None:
                    grant_rows.revoke_grant(connection, waiting.id, now)
            return grant_rows.revoke_grant(connection, id, now)

        return self._forget(await self._store.transact(end, alone="oauth"))

    async def revoke_all(self, *, subject: str | None = None, client: str | None = None) -> int:
        """End all grants of one subject, of one client, or of everybody, with all tokens issued without consent. Return
        the number of grants.

        It takes many short transactions, so that others' work goes on. After an interruption, call it again.
        """
        now, count = self._now(), 0

        def deny(connection: "Connection") -> list[str]:
            return grant_rows.deny_grantless_tokens(connection, now, subject=subject, client=client, most=PIECE)

        def end(connection: "Connection") -> tuple[int, list[str]]:
            ended = grant_rows.list_unrevoked_grants(connection, subject, client, until=now, most=PIECE)
            return len(ended), grant_rows.revoke_grants(connection, ended, now)

        ended = 1
        while ended:
            ended, denied = await self._store.transact(end, alone="oauth")
            self._deny(denied)
            count += ended
        while denied := await self._store.transact(deny, alone="oauth"):
            self._deny(denied)
        return count

    async def add_client(self, client: OAuthClient) -> None:
        """Add a client that the operator vouches for."""
        metadata = {
            "client_name": client.name,
            "redirect_uris": client.redirect_uris,
            "token_endpoint_auth_method": client.method,
            "grant_types": sorted(client.grants),
        }
        text = msgspec.json.encode(metadata).decode()
        row = {"kind": client.kind, "secret": client.secret, "made_at": self._now(), "metadata": text}
        await self._store.transact(
            lambda connection: client_rows.save_client(connection, client.id, **row), alone="oauth"
        )

    async def list_clients(self) -> list[tuple[OAuthClient, float, float | None]]:
        """Return all clients but the configured ones, each with the times of its registration and last approval."""

        def look(connection: "Connection") -> list[tuple[OAuthClient, float, float | None]]:
            return [(client_from_row(row), row.made_at, row.granted_at) for row in client_rows.list_clients(connection)]

        return await self._store.read(look)

    async def remove_client(self, id: str) -> bool:
        """Remove a client and end its grants; return whether it existed."""
        now = self._now()

        def remove(connection: "Connection") -> list[str] | None:
            if client_rows.find_client(connection, id) is None:
                return None
            grants = client_rows.remove_client(connection, id)
            denied = grant_rows.deny_grantless_tokens(connection, now, client=id)
            for grant in grants:
                denied += grant_rows.revoke_grant(connection, grant, now)
            return denied

        return self._forget(await self._store.transact(remove, alone="oauth"))

    def _forget(self, denied: list[str] | None) -> bool:
        self._deny(denied or ())
        return denied is not None

    def _summarize(self, rows: "Sequence[grant_rows.GrantRow]") -> list[GrantSummary]:
        clients: dict[str, OAuthClient] = {}  # each is decoded once
        for row in rows:
            if row.grant.client not in clients:
                known = self._configured.get(row.grant.client)
                stored = client_from_row(row.client) if known is None and row.client is not None else known
                gone = OAuthClient(row.grant.client, "dynamic", "a removed app", (row.grant.redirect_uri,))
                clients[row.grant.client] = stored or gone
        return [_to_summary(row, clients[row.grant.client]) for row in rows]


def _to_summary(row: "grant_rows.GrantRow", client: OAuthClient) -> GrantSummary:
    grant, person = row.grant, row.person
    return GrantSummary(
        id=grant.id,
        client=client,
        person=person.name if person is not None else "",
        issuer=person.issuer if person is not None else "",
        scopes=tuple(grant.scope.split()),
        made_at=grant.made_at,
        used_at=grant.used_at,
        expires_at=grant.expires_at,
        redirect_uri=grant.redirect_uri,
    )
