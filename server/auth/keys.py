"""The keys that sign access tokens: one signs, the last ones are still known. Knows no tokens.

A key is made when none is there, and a new one takes over after thirty days or on demand (`rotate`). The one before
is published until every token it signed and every cached copy of the key set is out of date. Private parts lie in the
state database, sealed with a key file beside it; all processes of one state share them.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolgate.server.auth import jose
from toolgate.server.errors import InvalidParams
from toolgate.server.seal import Seal
from toolgate.server.state import keys as rows

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection, Store

AGE = 30 * 86_400.0  # seconds after which a new key takes over
CACHED = 3_600.0  # seconds a key set may be cached by whoever fetched it: what its Cache-Control says
KEEP = CACHED + 2 * 3_600.0  # seconds a retired key stays known: that, and the longest life of a token with a margin
LOOK = 5.0  # seconds between two looks at the database: another process may have rotated
PURPOSE = "signing key"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    active: jose.Key
    known: tuple[jose.Key, ...]  # the active one first
    due: float  # when the active one is too old
    seen: float


class Keys:
    """One a process. `seal` is one that lasts (`Seal(state / "keys" / "signing", None)`)."""

    def __init__(self, store: "Store", seal: Seal, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._seal = seal
        self._now = now
        self._held: _Held | None = None

    async def active(self) -> jose.Key:
        """The key to sign with now."""
        return (await self._fresh()).active

    async def public(self) -> list[jose.Key]:
        """All keys that tokens in use may be signed with, looked up anew; the active one first."""
        self._held = await self._store.transact(self._load)
        return list(self._held.known)

    async def jwks(self) -> dict[str, Any]:
        """The public key set (RFC 7517)."""
        return jose.jwks((await self._fresh()).known)

    async def rotate(self) -> str:
        """Let a new key take over at once. Gives its id."""
        self._held = await self._store.transact(lambda connection: self._load(connection, anew=True))
        return self._held.active.kid

    async def _fresh(self) -> _Held:
        held, now = self._held, self._now()
        if held is None or not 0 <= now - held.seen < LOOK or now >= held.due:
            held = self._held = await self._store.transact(self._load)
        return held

    def _load(self, connection: "Connection", anew: bool = False) -> _Held:
        now = self._now()
        rows.sweep(connection, now - KEEP)
        keys = [(row, self._opened(row)) for row in rows.listed(connection)]
        usable = [(row, key) for row, key in keys if key is not None]
        signing = next(((row, key) for row, key in usable if row.retired_at is None), None)
        known = [key for _, key in usable]
        if anew or signing is None or now - signing[0].made_at >= AGE:
            active, made_at = jose.generate(), now
            rows.put(connection, active.kid, self._seal.close(active.private(), PURPOSE, active.kid), now)
            log.info("a new key signs access tokens: %s", active.kid)
        else:
            active, made_at = signing[1], signing[0].made_at
        others = [key for key in known if key.kid != active.kid]
        return _Held(active, (active, *others), made_at + AGE, now)

    def _opened(self, row: Any) -> jose.Key | None:
        try:
            return jose.load(self._seal.open(row.sealed, PURPOSE, row.kid))
        except (InvalidParams, ValueError):
            log.warning("the signing key %s can't be opened: the key file beside the database is another one", row.kid)
            return None
