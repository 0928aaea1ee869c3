"""Keep people's connections to mounted servers in the state, sealed."""

import hashlib
import secrets
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard

import msgspec
from msgspec.structs import replace

from toolgate.server.features.mounts.kept_secrets.secret_store import KEY
from toolgate.server.features.mounts.sign_in import rows
from toolgate.server.features.mounts.upstream.errors import CODES
from toolgate.server.state.keys.sealed_state import Sealer, SealError
from toolgate.server.state.keys.sealing_keys import SealingKeys
from toolgate.server.state.store import Store
from toolgate.tools.api.errors import ToolError

DEPARTURE = 600.0  # seconds that a person may take at the authorization server
MAX_DEPARTURES = 8  # of one person; the oldest give way
UNREADABLE = "its tokens can't be read: the key that sealed them was lost"


class SignInFault(ToolError):
    """A sign-in at a mounted server failed; the text says why, to the person. `code`: one of CODES, or "" for that of
    the step that failed."""

    def __init__(self, text: str, code: str = "") -> None:
        assert not code or code in CODES
        super().__init__(text)
        self.code = code


class FarClient(msgspec.Struct, frozen=True):
    """The client that this server is at an authorization server. `method`: how it shows its secret, if it has one."""

    id: str
    secret: str = ""
    method: str = "none"


class SignedIn(msgspec.Struct, frozen=True):
    """The tokens of a person, and all that it takes to renew and to revoke them."""

    issuer: str
    token_endpoint: str
    revocation_endpoint: str
    client: FarClient
    resource: str
    scope: str
    access_token: str
    refresh_token: str = ""
    wanted: str = ""  # scopes that a call lacked


class Departure(msgspec.Struct, frozen=True):
    """What the answer to a sign-in under way is checked against, and what it is for."""

    mount: str
    server: str
    verifier: str
    redirect_uri: str
    sends_issuer: bool
    granted: SignedIn  # without tokens
    hashed: str = ""  # digest of its `state`


class MountConnection(msgspec.Struct, frozen=True):
    """One person's connection. `expires_at`: when its access token is to be refreshed; `refreshing_since`: a refresh
    was sent then, whose answer has not come; `ended`: why the person has to sign in again, or "". `server`: digest of
    the mount's URL."""

    principal: str
    mount: str
    server: str
    sealed: str
    signed_in: SignedIn | None
    expires_at: float | None
    refreshing_since: float | None
    ended: str
    made_at: float


class EndedConnection(msgspec.Struct, frozen=True):
    """What is to be revoked of a connection that was ended or replaced. `name`: in place of the mount's in its row."""

    name: str
    held: MountConnection
    ended_at: float


class ConnectionSummary(msgspec.Struct, frozen=True):
    """What others may know of a connection; its members as those of `MountConnection`."""

    principal: str
    mount: str
    server: str
    ended: str
    made_at: float


class ConnectionStore:
    """The connections of everybody. Each method raises StateError."""

    def __init__(self, store: Store, keys: SealingKeys) -> None:
        self._store = store
        self._sealer = Sealer(keys.find(KEY), None)

    def now(self) -> float:
        return self._store.now()

    async def find(self, principal: str, mount: str) -> MountConnection | None:
        if self._store.is_empty():
            return None
        row = await self._store.read(partial(rows.find_connection, principal=principal, mount=mount))
        return None if row is None else self._open(row)

    async def list(self, principal: str) -> Sequence[MountConnection]:
        """Return the connections of a person to mounts, by their names."""
        if self._store.is_empty():
            return []
        found = await self._store.read(partial(rows.list_connections, principal=principal))
        return [self._open(row) for row in found if not row.mount.startswith(rows.RESERVED)]

    async def list_all(
        self, after: tuple[str, str], most: int, principals: Collection[str] | None = None
    ) -> Sequence[ConnectionSummary]:
        """Return the connections of all people, or of these, by principal and mount: those after one."""
        if self._store.is_empty():
            return []
        found = await self._store.read(
            partial(rows.list_all_connections, after=after, most=most, principals=principals)
        )
        return [ConnectionSummary(row.principal, row.mount, row.server, row.ended or "", row.made_at) for row in found]

    async def keep(self, principal: str, departure: "Departure", signed_in: SignedIn, expires_at: float | None) -> bool:
        """Store the connection that a sign-in has made, in place of the one before. Return False if the person is gone
        meanwhile.

        The one before is revoked only if it was made elsewhere or by another client. Many servers take the revocation
        of one token for that of all that a client has for a person (RFC 7009 section 2.1).
        """
        mount = departure.mount
        row = self._create_row(principal, mount, departure.server, signed_in, expires_at)

        def keep(connection: Any) -> bool:
            if not rows.end_departure(connection, departure.hashed):
                return False
            before = rows.find_connection(connection, principal, mount)
            if before is not None and _is_apart(self._open(before), signed_in):
                rows.add_ended(connection, before, self.now())
            rows.write_connection(connection, principal, mount, **row)
            return True

        return bool(await self._write(keep))

    async def keep_identity(self, principal: str, server: str, signed_in: SignedIn, expires_at: float) -> None:
        """Store what a person's identity provider gave them with a sign-in here, in place of the one before."""
        row = self._create_row(principal, rows.IDENTITY, server, signed_in, expires_at)
        await self._write(partial(rows.write_connection, principal=principal, mount=rows.IDENTITY, **row))

    def _create_row(
        self, principal: str, mount: str, server: str, signed_in: SignedIn, expires_at: float | None
    ) -> dict[str, Any]:
        return {
            "server": server,
            "sealed": self._seal(signed_in, principal, mount),
            "expires_at": expires_at,
            "refreshing_since": None,
            "ended": None,
            "made_at": self.now(),
        }

    async def note_wanted(self, held: MountConnection, wanted: str) -> None:
        """Have the next sign-in ask for these scopes, too.

        Nothing is noted while a refresh is under way, since its answer would find the connection changed. The next call
        that lacks them notes it.
        """
        if held.signed_in is None:
            return
        sealed = self._seal(replace(held.signed_in, wanted=wanted), held.principal, held.mount)
        key: dict[str, Any] = {"principal": held.principal, "mount": held.mount, "expected": held.sealed}
        await self._write(partial(rows.change_unless_refreshing, **key, sealed=sealed))

    async def keep_refreshed(self, held: MountConnection, signed_in: SignedIn, expires_at: float | None) -> bool:
        """Store the answer to a refresh. Return False if the person has ended or renewed the connection meanwhile."""
        sealed = self._seal(signed_in, held.principal, held.mount)
        return await self._change(held, sealed=sealed, expires_at=expires_at, refreshing_since=None)

    async def begin_refresh(self, held: MountConnection) -> bool:
        """Mark that a refresh is sent now. Return False if it must not be: others were first."""
        begin = partial(
            rows.change_unless_refreshing,
            principal=held.principal,
            mount=held.mount,
            expected=held.sealed,
            refreshing_since=self.now(),
        )
        return bool(await self._write(begin))

    async def undo_refresh(self, held: MountConnection) -> None:
        """Take the mark back: the refresh was not sent."""
        await self._change(held, refreshing_since=None)

    async def end(self, held: MountConnection, why: str) -> None:
        """Have the person sign in again."""
        await self._change(held, ended=why, refreshing_since=None)

    async def remove(self, principal: str, mount: str | None = None) -> Sequence[MountConnection]:
        """Remove a person's connection to a mount, or all they have, and return what was there. What can be revoked is
        kept for `take_due`."""
        if self._store.is_empty():
            return []

        def remove(connection: Any) -> list[Any]:
            if mount is None:
                rows.remove_departures(connection, principal)
            removed = [(row, self._open(row)) for row in rows.remove_connections(connection, principal, mount)]
            for row, held in removed:
                if held.mount != rows.IDENTITY and can_be_revoked(held.signed_in):
                    rows.add_ended(connection, row, self.now())
            return [held for _, held in removed]

        return list(await self._write(remove))

    async def has_any(self) -> bool:
        """Return whether anybody has a connection, or one that is to be revoked."""
        return not self._store.is_empty() and bool(await self._store.read(rows.has_connections))

    async def take_due(self, most: int) -> Sequence[EndedConnection]:
        """Return what is to be revoked now, each to one server. It is due again later, unless it is forgotten."""
        due: dict[str, Any] = {"now": self.now(), "most": most}
        if self._store.is_empty() or not await self._store.read(partial(rows.list_due, **due)):
            return []
        found = await self._write(partial(rows.take_due, **due))
        return [EndedConnection(row.mount, self._open(row), row.made_at) for row in found]

    async def forget_ended(self, ended: EndedConnection) -> None:
        await self._write(partial(rows.remove_ended, principal=ended.held.principal, mount=ended.name))

    async def remove_identities(self, most: int) -> Sequence[MountConnection]:
        """Remove some of what identity providers have given, and return it."""
        if self._store.is_empty():
            return []
        return [self._open(row) for row in await self._write(partial(rows.remove_identities, most=most))]

    async def list_orphans(self) -> Sequence[str]:
        """Return the people whose accounts are removed, and whose connections are not yet."""
        if self._store.is_empty():
            return []
        return list(await self._store.read(rows.list_orphans))

    async def depart(self, principal: str, departure: Departure) -> str:
        """Store what a sign-in that begins now is checked against. Return its `state`."""
        state = secrets.token_urlsafe(32)
        hashed = _hash(state)
        row: dict[str, Any] = {
            "hash": hashed,
            "principal": principal,
            "sealed": self._sealer.seal(msgspec.to_builtins(departure), principal, ["departure", hashed]),
            "until": self.now() + DEPARTURE,
        }
        await self._write(partial(rows.add_departure, now=self.now(), most=MAX_DEPARTURES, **row))
        return state

    async def take_departure(self, principal: str, state: str) -> Departure | None:
        """Return what a person's sign-in is checked against, once; None for another's, an old or an unknown one."""
        if self._store.is_empty():
            return None
        hashed = _hash(state)
        row = await self._write(partial(rows.use_departure, hashed=hashed, principal=principal, now=self.now()))
        if row is None:
            return None
        try:
            found = self._sealer.unseal(row.sealed, principal, ["departure", hashed])
        except SealError:
            return None
        return replace(msgspec.convert(found, Departure), hashed=hashed)

    async def find_client(self, issuer: str, redirect_uri: str) -> FarClient | None:
        """Return the client that was registered, or None."""
        if self._store.is_empty():
            return None
        row = await self._store.read(partial(rows.find_client, issuer=issuer, redirect_uri=redirect_uri))
        if row is None:
            return None
        try:
            return msgspec.convert(self._sealer.unseal(row.sealed, issuer, ["client", redirect_uri]), FarClient)
        except SealError:
            return None

    async def keep_client(self, issuer: str, redirect_uri: str, client: FarClient) -> None:
        sealed = self._sealer.seal(msgspec.to_builtins(client), issuer, ["client", redirect_uri])
        key: dict[str, Any] = {"issuer": issuer, "redirect_uri": redirect_uri}
        await self._write(partial(rows.write_client, **key, sealed=sealed, now=self.now()))

    async def forget_client(self, issuer: str, redirect_uri: str, id: str) -> None:
        """Forget a client that its server no longer knows, unless another is registered by now."""
        known = await self.find_client(issuer, redirect_uri)
        if known is not None and known.id == id:
            await self._write(partial(rows.remove_client, issuer=issuer, redirect_uri=redirect_uri))

    async def _write(self, work: Any) -> Any:
        return await self._store.transact(work, alone="mounts")

    async def _change(self, held: MountConnection, **values: Any) -> bool:
        key: dict[str, Any] = {"principal": held.principal, "mount": held.mount, "expected": held.sealed}
        return bool(await self._write(partial(rows.change_connection, **key, **values)))

    def _seal(self, signed_in: SignedIn, principal: str, mount: str) -> str:
        return self._sealer.seal(msgspec.to_builtins(signed_in), principal, ["connection", mount])

    def _open(self, row: Any) -> MountConnection:
        signed_in, ended = None, row.ended or ""
        mount = row.mount.rpartition(" ")[2]  # of what has ended, too
        try:
            found: Mapping[str, Any] = self._sealer.unseal(row.sealed, row.principal, ["connection", mount])
            signed_in = msgspec.convert(found, SignedIn)
        except (SealError, msgspec.ValidationError):
            ended = UNREADABLE
        return MountConnection(
            row.principal,
            mount,
            row.server,
            row.sealed,
            signed_in,
            row.expires_at,
            row.refreshing_since,
            ended,
            row.made_at,
        )


def can_be_revoked(signed_in: SignedIn | None) -> TypeGuard[SignedIn]:
    """Return whether the far server has a place for it."""
    return signed_in is not None and bool(signed_in.revocation_endpoint)


def _is_apart(before: MountConnection, signed_in: SignedIn) -> bool:
    """Return whether the end of a connection leaves another one as it is."""
    own = before.signed_in
    return can_be_revoked(own) and (own.issuer, own.client.id) != (signed_in.issuer, signed_in.client.id)


def _hash(state: str) -> str:
    return hashlib.sha256(state.encode("utf-8", "replace")).hexdigest()
