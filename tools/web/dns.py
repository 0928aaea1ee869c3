"""Resolve host names with the system's resolver, in threads."""

import asyncio
import contextlib
import socket

from toolgate.tools.api.threads import Threads, ThreadsBusyError

MAX_LOOKUPS = 64  # at once, the hung ones of abandoned calls included


class Resolver:
    """The system's resolver, for one event loop. A name that is being looked up is not looked up a second time."""

    def __init__(self, most: int = MAX_LOOKUPS) -> None:
        self._threads = Threads(most)
        self._lookups: dict[tuple[str, int], asyncio.Task[list[str]]] = {}

    async def addresses(self, host: str, port: int) -> list[str]:
        """All addresses of a host. Raises OSError, or UnicodeError for a name that can't be one."""
        with contextlib.suppress(OSError):
            return _getaddrinfo(host, port, socket.AI_NUMERICHOST)  # an address, however spelled: no need to ask
        asking = self._lookups.get((host, port))
        if asking is None:
            asking = self._lookups[host, port] = asyncio.ensure_future(self._look_up(host, port))
            asking.add_done_callback(lambda task: self._forget(host, port, task))
        return list(await asyncio.shield(asking))

    async def _look_up(self, host: str, port: int) -> list[str]:
        try:
            return await self._threads.run(lambda: _getaddrinfo(host, port, 0))
        except ThreadsBusyError:
            raise OSError(0, "too many look-ups are under way") from None

    def _forget(self, host: str, port: int, task: "asyncio.Task[list[str]]") -> None:
        del self._lookups[host, port]
        if not task.cancelled():
            task.exception()  # heard of, though nobody may wait any more


def _getaddrinfo(host: str, port: int, flags: int) -> list[str]:
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [str(answer[4][0]) for answer in answers]
