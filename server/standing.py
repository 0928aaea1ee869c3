"""Ends what belongs to those who may not come any more. What lasts longer than a request is verified no more: so it is
asked every few seconds who of its callers still stands, whoever took that away, in this process or another.

Knows nothing of HTTP or of what a right is; `site` says who has something open, and what ends.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable

from toolgate.server.auth.principals import Principal
from toolgate.server.auth.tokens import OURS
from toolgate.server.state.store import StateError

EVERY = 10.0  # seconds between two looks: what was taken back ends within that and a few moments
AGAIN = 2  # looks at which somebody who is gone is ended: a token dies seconds later, and could begin something yet

log = logging.getLogger("toolgate.auth")

Pair = tuple[str, str]  # a subject and a client, as access tokens name them


class Standing:
    """`stand(pairs)` gives those that may go on, `gone()` the subjects of people who could not sign in any more; both
    may raise StateError. `callers()` are those that have something open here; `end(owner)` ends that, `leave(name)`
    what a person has going on besides."""

    def __init__(
        self,
        stand: Callable[[Collection[Pair]], Awaitable[Collection[Pair]]],
        gone: Callable[[], Awaitable[Iterable[str]]],
        *,
        callers: Callable[[], Iterable[Principal]],
        end: Callable[[str], None],
        leave: Callable[[str], Awaitable[None]],
    ) -> None:
        self._stand = stand
        self._gone = gone
        self._callers = callers
        self._end = end
        self._leave = leave
        self._left: dict[str, int] = {}  # names of people who are gone → how often they were ended

    async def follow(self, every: float) -> None:
        """Look every so many seconds, until cancelled."""
        while True:
            await asyncio.sleep(every)
            try:
                await self.look()
            except StateError as error:
                log.warning("whose access has ended can't be told now, all goes on: %s", error)
            except Exception:
                log.exception("whose access has ended could not be told, all goes on")

    async def look(self) -> None:
        """End now what has to end."""
        open_now = {(caller.subject, caller.client): caller.owner for caller in self._callers()}
        if open_now:
            stood = await self._stand(list(open_now))
            for pair, owner in open_now.items():
                if pair not in stood:
                    log.info("ended what was open for %s, whose access has ended", owner)
                    self._end(owner)
        for subject in await self._gone():
            name = Principal(OURS, subject, "").name
            if self._left.get(name, 0) < AGAIN:
                await self._leave(name)
                self._left[name] = self._left.get(name, 0) + 1
