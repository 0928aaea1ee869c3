"""Keep the keys that sign access tokens: one signs, the last ones stay published.

The first key is made when needed, a new one after thirty days or on demand (`rotate`). It is published before it signs,
for as long as a copy of the key set may be cached, so no verifier meets an unknown key. The old one stays published
until all its tokens have expired. If a key may have leaked, all are dropped and the new one signs at once.

Private parts are in the state database, sealed with a key of `SealingKeys`. All processes on one state share them.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from toolgate.server.auth.tokens import jose
from toolgate.server.state.keys import rows as key_rows
from toolgate.server.state.keys.sealed_state import Sealer, SealError

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection, Store

AGE = 30 * 86_400.0  # seconds after which a new key follows
CACHED = 300  # seconds a fetched key set may be cached: what its Cache-Control says
LOOK = 5.0  # seconds between two reads of the database: another process may have rotated
ANNOUNCE_TIME = CACHED + LOOK  # seconds a key is published before it signs
KEEP = CACHED + 3_600.0  # seconds a retired key stays known: longer than a token lives
PURPOSE = "signing key"

log = logging.getLogger(__name__)


class _KeyState(msgspec.Struct, frozen=True):
    active: jose.JoseKey
    known: tuple[jose.JoseKey, ...]  # active one first
    due: float  # next rotation, or start of the next key
    seen: float


class SigningKeys:
    """The keys of one process. `seal` outlives the process (`Sealer(keys.find("signing"), None)`)."""

    def __init__(self, store: "Store", seal: Sealer, now: Callable[[], float] | None = None) -> None:
        self._store = store
        self._seal = seal
        self._now = now or store.now
        self._held: _KeyState | None = None

    async def active(self) -> jose.JoseKey:
        """Return the key to sign with now."""
        return (await self._fresh()).active

    async def public(self) -> list[jose.JoseKey]:
        """Read the keys of all valid tokens, the active one first. A key that is being replaced has `retired_at`."""
        self._held = await self._store.transact(self._load, alone="keys")
        return list(self._held.known)

    async def jwks(self) -> dict[str, Any]:
        """Return the public key set (RFC 7517)."""
        return jose.format_jwks((await self._fresh()).known)

    async def rotate(self, *, drop_old: bool = False) -> str:
        """Make a new key and return its id. It signs after `ANNOUNCE_TIME` seconds, when the old one retires. With
        `drop_old` it signs at once, and all others are dropped: their tokens become invalid."""

        def add(connection: "Connection") -> tuple[str, _KeyState]:
            now = self._now()
            self._seal.refresh(connection)
            if drop_old:
                key_rows.remove_all_keys(connection)
            is_first = self._read_keys(connection, now) is None
            kid = self._add(connection, now, takes_over=now if is_first else now + ANNOUNCE_TIME)
            return kid, self._load(connection)

        kid, self._held = await self._store.transact(add, alone="keys")
        return kid

    async def _fresh(self) -> _KeyState:
        state, now = self._held, self._now()
        if state is None or not 0 <= now - state.seen < LOOK or now >= state.due:
            state = self._held = await self._store.transact(self._load, alone="keys")
        return state

    def _load(self, connection: "Connection") -> _KeyState:
        now = self._now()
        self._seal.refresh(connection)
        key_rows.remove_retired_keys(connection, now - KEEP)
        keys = self._read_keys(connection, now)
        if keys is None:
            self._add(connection, now, takes_over=now)
        elif now >= keys.due and keys.active.retired_at is None:
            self._add(connection, now, takes_over=now + ANNOUNCE_TIME)
        else:
            return keys
        new = self._read_keys(connection, now)
        assert new is not None
        return new

    def _read_keys(self, connection: "Connection", now: float) -> _KeyState | None:
        """Return the keys in the rows, or None if none can sign."""
        opened = [(row, key) for row in key_rows.list_keys(connection) if (key := self._open_key(row)) is not None]
        open = [(row, key) for row, key in opened if row.retired_at is None or now < row.retired_at]
        if not open:
            return None
        row, active = min(open, key=lambda each: each[0].retired_at or float("inf"))  # the one that retires first
        others = (key for _, key in opened if key is not active)
        due = row.made_at + AGE if row.retired_at is None else row.retired_at
        return _KeyState(active, (active, *others), due, now)

    def _add(self, connection: "Connection", now: float, takes_over: float) -> str:
        key = jose.generate_key()
        key_rows.add_key(connection, key.kid, self._seal.seal(key.to_private_jwk(), PURPOSE, key.kid), now, takes_over)
        log.info("a new key signs access tokens%s: %s", "" if takes_over <= now else " in minutes", key.kid)
        return key.kid

    def _open_key(self, row: Any) -> jose.JoseKey | None:
        try:
            return replace(jose.load_key(self._seal.unseal(row.sealed, PURPOSE, row.kid)), retired_at=row.retired_at)
        except (SealError, ValueError):
            log.warning("the signing key %s can't be opened: the key that sealed it is another one", row.kid)
            return None
