"""End what belongs to people and clients whose access has been revoked.

A session, an open stream and a background command outlast the request whose token was verified. So every few seconds
the watch asks which of their grants are still valid, whichever process revoked the others, and ends the rest.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable

from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.principal import GrantKey, Principal
from toolgate.server.state.store import StateError

CHECK_INTERVAL = 10.0  # seconds between two looks: what was taken back ends within that and a few moments
AGAIN = 2  # looks at which somebody who is gone is ended: elsewhere their tokens die seconds later (`tokens.FRESH`)

log = logging.getLogger("toolgate.auth")


class RevocationWatch:
    """`stand(rights)` gives those that still hold; `see_off()` takes their access tokens from people who could not sign
    in any more, and gives their subjects; both may raise StateError. `rights()` are those by which something is open
    here; `end(rights)` ends that, `leave(name)` what a person has going on besides."""

    def __init__(
        self,
        find_valid: Callable[[Collection[GrantKey]], Awaitable[Collection[GrantKey]]],
        revoke_barred_people: Callable[[], Awaitable[Iterable[str]]],
        *,
        list_open: Callable[[], Iterable[GrantKey]],
        end_grants: Callable[[Collection[GrantKey]], Awaitable[None]],
        end_person: Callable[[str], Awaitable[None]],
    ) -> None:
        self._stand = find_valid
        self._see_off = revoke_barred_people
        self._rights = list_open
        self._end = end_grants
        self._leave = end_person
        self._left: dict[str, int] = {}  # names of people who are gone → how often they were ended

    async def run(self, every: float) -> None:
        """Look at once, since somebody may have been taken off while nothing was served, and then every so many
        seconds, until cancelled."""
        while True:
            try:
                await self.check_once()
            except StateError as error:
                log.warning("whose access has ended can't be told now, all goes on: %s", error)
            except Exception:
                log.exception("whose access has ended could not be told, all goes on")
            await asyncio.sleep(every)

    async def check_once(self) -> None:
        """End now what has to end: tokens first, so that nothing begins any more."""
        gone = {Principal(OWN_ISSUER, subject, "").name for subject in await self._see_off()}
        open_now = frozenset(self._rights())
        ended = open_now.difference(await self._stand(open_now)) if open_now else None
        if ended:
            log.info("ended what was open by %d grants, which have ended", len(ended))
            await self._end(ended)
        self._left = {name: self._left.get(name, 0) for name in gone}  # who came back may go again
        for name, times in self._left.items():
            if times < AGAIN:
                await self._leave(name)
                self._left[name] = times + 1
