"""Turns host names into addresses. Knows nothing of which of them may be reached."""

import contextlib
import socket

from toolgate.tools.threads import Busy, Threads

MAX_LOOKUPS = 64  # at once, the hung ones of abandoned calls included


class Names:
    """The system's resolver, for one event loop."""

    def __init__(self) -> None:
        self._threads = Threads(MAX_LOOKUPS)

    async def addresses(self, host: str, port: int) -> list[str]:
        """All addresses of a host. Raises OSError, or UnicodeError for a name that can't be one."""
        with contextlib.suppress(OSError):
            return _asked(host, port, socket.AI_NUMERICHOST)  # an address, however spelled: no need to ask
        try:
            return await self._threads.run(lambda: _asked(host, port, 0))
        except Busy:
            raise OSError(0, "too many look-ups are under way") from None


def _asked(host: str, port: int, flags: int) -> list[str]:
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [str(answer[4][0]) for answer in answers]
