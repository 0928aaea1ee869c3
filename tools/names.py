"""Turns host names into addresses. Knows nothing of which of them may be reached.

Not `loop.getaddrinfo`: its threads are shared with all other work, a few hung look-ups would hold that up,
and the end of the loop waits for them. These are daemon threads, and there is a limit to them.
"""

import asyncio
import contextlib
import socket
import threading

MAX_LOOKUPS = 64  # at once, the hung ones of abandoned calls included


class Names:
    """The system's resolver, for one event loop."""

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(MAX_LOOKUPS)

    async def addresses(self, host: str, port: int) -> list[str]:
        """All addresses of a host. Raises OSError, or UnicodeError for a name that can't be one."""
        with contextlib.suppress(OSError):
            return _asked(host, port, socket.AI_NUMERICHOST)  # an address, however spelled: no need to ask
        if not self._free.acquire(blocking=False):
            raise OSError(0, "too many look-ups are under way")
        answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._look_up, args=(host, port, answer), name=f"resolve {host}", daemon=True).start()
        return await answer

    def _look_up(self, host: str, port: int, answer: "asyncio.Future[list[str]]") -> None:
        addresses: list[str] = []
        failure: Exception | None = None
        try:
            addresses = _asked(host, port, 0)
        except (OSError, UnicodeError) as error:
            failure = error
        finally:
            self._free.release()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            answer.get_loop().call_soon_threadsafe(_settle, answer, addresses, failure)


def _settle(answer: "asyncio.Future[list[str]]", addresses: list[str], failure: Exception | None) -> None:
    if answer.done():  # cancelled meanwhile
        return
    if failure is None:
        answer.set_result(addresses)
    else:
        answer.set_exception(failure)


def _asked(host: str, port: int, flags: int) -> list[str]:
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [str(answer[4][0]) for answer in answers]
