"""Have far servers revoke what a person has ended. It stays in the state, sealed, until that is done or given up."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from toolgate.server.features.mounts.sign_in.store import ConnectionStore, EndedConnection, MountConnection, SignInFault

REVOKE_WITHIN = 10.0  # seconds
GIVE_UP_AFTER = 86_400.0  # seconds: a server that is down is back by then
AT_ONCE = 32

log = logging.getLogger("toolgate.mounts")


class Revocations:
    """The revocations of all servers on a state. `send(held)` has one sent, and returns whether it is done."""

    def __init__(self, store: ConnectionStore, send: Callable[[MountConnection], Awaitable[bool]]) -> None:
        self._store = store
        self._send = send

    async def send_due(self) -> None:
        """Send those that are due, each by one server at a time. Raises StateError."""
        while due := await self._store.take_due(AT_ONCE):
            await asyncio.gather(*map(self._try, due))

    async def _try(self, ended: EndedConnection) -> None:
        is_done = await send_in_time(self._send, ended.held)
        is_over = self._store.now() > ended.ended_at + GIVE_UP_AFTER
        if is_done or is_over:
            await self._store.forget_ended(ended)
        if not is_done:
            told = "is left" if is_over else "is tried again"
            log.info("mount %s: the far server took no revocation of what was ended: it %s", ended.held.mount, told)


async def send_in_time(send: Callable[[MountConnection], Awaitable[bool]], held: MountConnection) -> bool:
    """Return whether a revocation is done."""
    try:
        async with asyncio.timeout(REVOKE_WITHIN):
            return await send(held)
    except (TimeoutError, SignInFault):
        return False
