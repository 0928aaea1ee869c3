"""Resolve host names with the system's resolver, in threads, and vet the addresses."""

import asyncio
import contextlib
import re
import socket

from toolgate.tools.api.concurrency.threads import Threads, ThreadsBusyError
from toolgate.tools.api.outbound.address_policy import AddressPolicy, check_host, is_local
from toolgate.tools.api.outbound.errors import AddressRefusedError, PageUnreachableError, Resolve

MAX_LOOKUPS = 64  # at once, including hanging ones of abandoned calls
MAX_ADDRESSES = 4  # tried in turn; more would all be down together
MAX_HOST = 254  # characters, with a trailing dot
NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?")
V6 = re.compile(r"[0-9a-f:]+(\d+\.\d+\.\d+\.\d+)?")  # no zone: it would choose the interface


class Resolver:
    """The system's resolver, for one event loop. Concurrent lookups of a name share one."""

    def __init__(self, most: int = MAX_LOOKUPS) -> None:
        self._threads = Threads(most)
        self._lookups: dict[tuple[str, int], asyncio.Task[list[str]]] = {}

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return all addresses of a host. Raises OSError, or UnicodeError for an impossible name."""
        with contextlib.suppress(OSError):
            return _getaddrinfo(host, port, socket.AI_NUMERICHOST)  # an address needs no lookup
        asking = self._lookups.get((host, port))
        if asking is None:
            asking = self._lookups[host, port] = asyncio.ensure_future(self._look_up(host, port))
            asking.add_done_callback(lambda task: self._forget(host, port, task))
        return list(await asyncio.shield(asking))

    async def wait_until_idle(self, host: str, timeout: float) -> None:
        """Wait for the lookups of a host that abandoned calls left behind, at most `timeout` seconds."""
        lookups = [task for (name, _), task in self._lookups.items() if name == host]
        if lookups:
            await asyncio.wait(lookups, timeout=timeout)

    async def _look_up(self, host: str, port: int) -> list[str]:
        try:
            return await self._threads.run(lambda: _getaddrinfo(host, port, 0))
        except ThreadsBusyError:
            raise OSError(0, "too many look-ups are under way") from None

    def _forget(self, host: str, port: int, task: "asyncio.Task[list[str]]") -> None:
        del self._lookups[host, port]
        if not task.cancelled():
            task.exception()  # else asyncio logs it when no caller waits any more


def _getaddrinfo(host: str, port: int, flags: int) -> list[str]:
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [str(answer[4][0]) for answer in answers]


async def resolve_vetted(host: str, port: int, allowed: AddressPolicy, resolve: Resolve) -> list[str]:
    """Return the addresses of `host`, to be tried in turn. Raises AddressRefusedError if one is refused."""
    try:
        addresses = list(dict.fromkeys(await resolve(host, port)))
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a valid host name"
        raise PageUnreachableError(f"could not resolve {host}: {(why or 'no answer').lower()}") from None
    if not addresses:
        raise PageUnreachableError(f"could not resolve {host}: it has no address")
    finding = check_host(host, addresses, allowed, is_local)
    if finding is not None:
        address, kind = finding
        where = address if address == host else f"{host} has the address {address}, which"
        raise AddressRefusedError(f"refused: {where} is {kind}; {allowed.describe_remedy(host, address)}")
    return addresses[:MAX_ADDRESSES]


def is_usable_host(host: str) -> bool:
    """Return whether it is a host name or an address, as in a URL without brackets."""
    return len(host) <= MAX_HOST and bool(NAME.fullmatch(host) or (":" in host and V6.fullmatch(host)))
