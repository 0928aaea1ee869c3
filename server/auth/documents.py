"""What clients publish about themselves: metadata documents and key sets, fetched, checked and kept for a while. Knows
no HTTP but the `fetch` it is given, which guards where it goes.

Anybody can name a document, so all of it is bounded: what is fetched at a time, how large, how long, how often.
Source: draft-ietf-oauth-client-id-metadata-document sections 3, 4 and 6; RFC 9111 section 5.2.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.server.auth import clients, jose
from toolgate.server.auth.clients import Client, Rejected
from toolgate.server.auth.jose import InvalidToken, Key
from toolgate.server.auth.outside import Fetch
from toolgate.server.state import clients as rows
from toolgate.tools.errors import ToolError
from toolgate.tools.web import Page

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection, Store

MAX_DOCUMENT = 5 * 1024  # bytes: what the draft recommends (section 6.6)
MAX_DOCUMENTS = 5_000  # kept; those nobody approved give way
MAX_KEYS = 64 * 1024  # bytes of a key set
WITHIN = 5.0  # seconds for one fetch: a person waits
AT_ONCE = 8  # fetches: requests of strangers must not take all connections
FLOOR, USUAL, CEILING = 60.0, 600.0, 86_400.0  # seconds a document is kept: at least, when it doesn't say, at most
PAUSE = 30.0  # seconds after a failure before the same document is asked for again, and between looks for a new key
KEYS = 600.0  # seconds a key set is kept
MAX_REMEMBERED = 1_000  # failures and key sets in memory
MAX_AGE = re.compile(r"(?:^|[,\s])max-age\s*=\s*\"?([0-9]{1,9})", re.IGNORECASE)

log = logging.getLogger("toolgate.auth")


class Documents:
    """`hosts`: whose documents are taken, with all below them; none given: everybody's. `served` as for
    Authorization."""

    def __init__(
        self,
        store: "Store",
        fetch: Fetch,
        served: Callable[[], Sequence[str]],
        hosts: Sequence[str] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._fetch = fetch
        self._served = served
        self._hosts = tuple(host.lower() for host in hosts)
        self._now = now
        self._room = asyncio.Semaphore(AT_ONCE)
        self._failed: dict[str, tuple[float, Rejected]] = {}  # until when it is not tried again
        self._locks: dict[str, asyncio.Lock] = {}
        self._keys: dict[str, tuple[float, list[Key]]] = {}  # when they were fetched

    async def refresh(self, id: str, *, old: bool = False) -> None:
        """Have the document of the client `id` in the database, when `id` is the URL of one. With `old`, one that is
        overdue will do where the new one can't be had. Raises Rejected."""
        if not clients.is_document_url(id):
            return
        host = clients.Client(id, "document", "", ()).host or ""
        if self._hosts and not any(f".{host.partition(':')[0]}".endswith(f".{allowed}") for allowed in self._hosts):
            raise Rejected("invalid_client", "this server takes no clients from that host")
        lock = self._locks.setdefault(id, asyncio.Lock())
        try:
            async with lock:
                await self._refresh(id, old)
        finally:
            if not lock.locked():
                self._locks.pop(id, None)

    async def _refresh(self, id: str, old: bool) -> None:
        row = await self._store.transact(lambda connection: rows.find(connection, id))
        if row is not None and row.fresh_until > self._now():
            return
        until, failure = self._failed.get(id, (0.0, None))
        if failure is None or self._now() >= until:
            failure = await self._load(id)
            if failure is None:
                return
            _remember(self._failed, id, (self._now() + PAUSE, failure))
        if row is None or not old:
            raise failure
        log.warning("the metadata document of a client can't be had: the one kept goes on to hold")

    async def _load(self, id: str) -> Rejected | None:
        """Fetch the document and keep it. What is not taken is given back, to be remembered."""
        try:
            await self._fetch_and_keep(id)
        except Rejected as rejected:
            return rejected
        return None

    async def _fetch_and_keep(self, id: str) -> None:
        page = await self._get(id, MAX_DOCUMENT, "the client's metadata document")
        kept = clients.documented(_json(page, "the client's metadata document"), id, self._served())
        now = self._now()
        row = {
            "kind": "document",
            "metadata": msgspec.json.encode(kept).decode(),
            "made_at": now,
            "fresh_until": now + _lifetime(page.headers.get("cache-control", "")),
        }

        def put(connection: "Connection") -> None:
            if rows.find(connection, id) is None and not rows.make_room(connection, "document", MAX_DOCUMENTS):
                raise Rejected("invalid_client", "this server knows too many clients")
            rows.put(connection, id, **row)

        await self._store.transact(put)

    async def keys_of(self, client: Client, assertion: str) -> list[Key]:
        """The keys that `client` signs with, those of `jwks_uri` fetched; anew, when `assertion` names one that is not
        among them. Raises Rejected."""
        if client.jwks_uri is None:
            return jose.public_keys(client.jwks) if client.jwks is not None else []
        fetched, keys = self._keys.get(client.jwks_uri, (float("-inf"), []))
        age = self._now() - fetched
        if age < PAUSE or (age < KEYS and _is_known(assertion, keys)):
            return keys
        page = await self._get(client.jwks_uri, MAX_KEYS, "the client's key set")
        try:
            keys = jose.public_keys(_json(page, "the client's key set"))
        except ValueError:
            raise Rejected("invalid_client", "the client's key set is none") from None
        _remember(self._keys, client.jwks_uri, (self._now(), keys))
        return keys

    async def _get(self, url: str, limit: int, what: str) -> Page:
        try:
            async with self._room:
                page = await self._fetch(
                    url, headers={"accept": "application/json"}, limit=limit, timeout=WITHIN, redirects=0
                )
        except ToolError as error:
            log.info("%s could not be fetched: %s", what, error.text)
            raise Rejected("invalid_client", f"{what} could not be fetched") from None
        if page.status != 200:
            raise Rejected("invalid_client", f"{what} was not answered with 200")
        if page.truncated:
            raise Rejected("invalid_client", f"{what} is too large")
        return page


def _json(page: Page, what: str) -> Any:
    if page.content_type != "application/json" and not page.content_type.endswith("+json"):
        raise Rejected("invalid_client", f"{what} is not served as application/json")
    try:
        return msgspec.json.decode(page.body)
    except (ValueError, RecursionError):
        raise Rejected("invalid_client", f"{what} is no JSON") from None


def _lifetime(cache_control: str) -> float:
    """How long a document is kept, by what its server says, within our bounds."""
    if "no-store" in cache_control.lower() or "no-cache" in cache_control.lower():
        return FLOOR
    found = MAX_AGE.search(cache_control)
    return min(CEILING, max(FLOOR, float(found[1]))) if found is not None else USUAL


def _is_known(assertion: str, keys: Sequence[Key]) -> bool:
    try:
        kid = jose.header_of(assertion).get("kid")
    except InvalidToken:
        return True  # no key will make it a good one
    return kid is None or any(key.kid == kid for key in keys)


def _remember(held: dict[str, Any], key: str, value: Any) -> None:
    held.pop(key, None)
    held[key] = value
    while len(held) > MAX_REMEMBERED:
        del held[next(iter(held))]
