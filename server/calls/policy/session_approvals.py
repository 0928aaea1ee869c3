"""Remember the approvals for a session, one key for each principal: in memory, or on the bus of all replicas."""

import hashlib
from typing import TYPE_CHECKING

import msgspec

from toolgate.server.base.bus.bus import BusUnreachableError, Keys
from toolgate.server.base.errors import StateError

if TYPE_CHECKING:
    from toolgate.server.protocol.session import ApprovalRequest

SESSION_LIFETIME = 12 * 3600.0  # seconds: a working day; a client without sessions has no end of its own
MAX_IN_SESSIONS = 256  # of each principal: one more drops the oldest
TRIES = 20  # of writing what others change at the same time

Approvals = dict[str, float]  # digest of session and key → expiry, the newest last
_decode = msgspec.msgpack.Decoder(Approvals).decode


class SessionApprovals:
    """The approvals for a session, which is part of the request. Its methods raise StateError."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def has(self, principal: str, request: "ApprovalRequest", now: float) -> bool:
        try:
            data = await self._keys.get(_name(principal))
        except BusUnreachableError as error:
            raise StateError(f"the approvals can't be read: {error}") from None
        return data is not None and now < _decode(data).get(_digest(request), 0.0)

    async def add(self, principal: str, request: "ApprovalRequest", now: float) -> None:
        name, digest = _name(principal), _digest(request)
        try:
            for _ in range(TRIES):
                old = await self._keys.get(name)
                held = {} if old is None else _decode(old)
                held.pop(digest, None)
                held[digest] = now + SESSION_LIFETIME
                new = msgspec.msgpack.encode(dict(list(held.items())[-MAX_IN_SESSIONS:]))
                if old is None:
                    is_written = await self._keys.set_if_absent(name, new, SESSION_LIFETIME)
                else:
                    is_written = await self._keys.replace(name, old, new, SESSION_LIFETIME)
                if is_written:
                    return
        except BusUnreachableError as error:
            raise StateError(f"the approval can't be remembered: {error}") from None
        raise StateError("the approval can't be remembered: others change at the same time")

    async def end_all(self, principal: str) -> None:
        try:
            await self._keys.delete(_name(principal))
        except BusUnreachableError as error:
            raise StateError(f"the approvals can't be ended: {error}") from None


def _name(principal: str) -> str:
    return f"session approvals {principal}"


def _digest(request: "ApprovalRequest") -> str:
    return hashlib.sha256(f"{request.session}\n{request.key}".encode("utf-8", "surrogatepass")).hexdigest()
