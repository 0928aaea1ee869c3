"""Fetch, check and cache what clients publish: metadata documents and key sets.

Anyone can name a document, so everything has a limit: concurrent fetches, also per host; size, time, rate. A failed
fetch is not cached: the next request tries again. Copies of well-known clients serve servers without a way out. Source:
draft-ietf-oauth-client-id-metadata-document sections 3, 4 and 6; RFC 9111 section 5.2.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from toolgate.server.auth.address_blocks import AddressLimiter
from toolgate.server.auth.clients import model
from toolgate.server.auth.clients.document_copies import DOCUMENT_COPIES, DocumentCopy
from toolgate.server.auth.clients.fetching import FetchSlots, NoFreeSlotError, Reachability
from toolgate.server.auth.clients.model import ClientRejectedError, ClientUnreachableError, OAuthClient
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.access_tokens import UnavailableError
from toolgate.server.auth.tokens.external_issuer import Fetch
from toolgate.server.auth.tokens.jose import InvalidTokenError, JoseKey
from toolgate.server.base.bus.memory_keys import MemoryKeys
from toolgate.server.base.errors import StateError
from toolgate.server.base.limits.rate_limit import SPAN
from toolgate.server.state.rows import clients as client_rows
from toolgate.tools.api.context.services import Page
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.outbound.errors import AddressRefusedError

if TYPE_CHECKING:
    from toolgate.server.base.bus.bus import Counters
    from toolgate.server.state.store import Connection, Store

DOCUMENT, KEY_SET = "the client's metadata document", "the client's key set"
MAX_DOCUMENT = 5 * 1024  # bytes: what the draft recommends (section 6.6)
MAX_DOCUMENTS = 10_000  # stored; the unapproved are dropped first, but not within the time a consent request lasts
MAX_KEYS = 64 * 1024  # bytes of a key set
WITHIN = 5.0  # seconds for one fetch: a person waits
HOST_AT_ONCE, AT_ONCE = 2, 16  # fetches per host, which may be slow on purpose, and in total
WAIT = 2.0  # seconds to wait for a slot; then the client should retry later
NEW, ALL_NEW = 60, 600  # fetches a minute of uncached documents: per address, which many people may share, and in total
RETRY = 5.0  # seconds after which a client may retry
FLOOR, USUAL, CEILING = 60.0, 600.0, 86_400.0  # seconds a document is cached: at least, by default, at most
OLD = 86_400.0  # seconds that a document stays valid for its users after fetching it has failed
PAUSE = 30.0  # seconds between two fetches of a key set for an unknown key
KEYS = 600.0  # seconds a key set is cached
MAX_REMEMBERED = 1_000  # key sets in memory
MAX_AGE = re.compile(r"(?:^|[,\s])max-age\s*=\s*\"?([0-9]{1,9})", re.IGNORECASE)

Load = Callable[[str], Coroutine[Any, Any, None]]

log = logging.getLogger("toolgate.auth")


class KeySet(msgspec.Struct, frozen=True):
    """A client's keys. They were fetched at `fetched_at`. `tried_at` is the last try, which may have failed."""

    keys: list[JoseKey]
    fetched_at: float
    tried_at: float


class MetadataDocuments:
    """The documents and key sets of clients.

    - `hosts`: accepts only documents of these hosts and their subdomains; if empty, of any.
    - `served`: as for the authorization server. `well_known`: URL → copy of its document.
    - `consequence`: as for Reachability. New documents are counted by `counters`.
    """

    def __init__(
        self,
        store: "Store",
        fetch: Fetch,
        served: Callable[[], Sequence[str]],
        hosts: Sequence[str] = (),
        now: Callable[[], float] = time.time,
        *,
        copies: Mapping[str, DocumentCopy] = DOCUMENT_COPIES,
        consequence: str = "",
        counters: "Counters | None" = None,
    ) -> None:
        self._store = store
        self._fetch = fetch
        self._served = served
        self._hosts = tuple(hosts)
        self._now = now
        self._fetches = AddressLimiter("documents", NEW, ALL_NEW, counters if counters is not None else MemoryKeys(now))
        self._document_slots = FetchSlots(HOST_AT_ONCE, AT_ONCE, WAIT)
        self._key_slots = FetchSlots(HOST_AT_ONCE, AT_ONCE, WAIT)  # apart from those for strangers' documents
        self._under_way: dict[tuple[Load, str], asyncio.Task[None]] = {}  # by URL, shared by all callers
        self._keys: dict[str, KeySet] = {}
        self._copies = {url: copy for url, copy in copies.items() if is_accepted_host(url, hosts) and copy.is_intact}
        self.reachability = Reachability(self._copies, partial(fetch_json, fetch), consequence, now)

    async def refresh(self, id: str, address: str, *, accept_stale: bool = False) -> None:
        """Store the document of client `id` in the database, if `id` is a document's URL. `address` is the caller's.

        With `accept_stale` an outdated document is used while it is fetched again, unless that has failed for a day.
        Raises ClientRejectedError, UnavailableError.
        """
        if not model.is_document_url(id):
            return
        if not is_accepted_host(id, self._hosts):
            raise ClientRejectedError("invalid_client", "this server accepts no clients from that host")
        row, now = await self._store.read(lambda connection: client_rows.find_client(connection, id)), self._now()
        if row is not None and row.fresh_until > now:
            return
        fetching = await self._fetching(id, self._load, address, held=row is not None)
        holds = row is not None and (row.failing_since is None or now < row.failing_since + OLD)
        if accept_stale and row is not None and holds and now < row.fresh_until + OLD:
            return
        try:
            await asyncio.shield(fetching)
        except UnavailableError:
            if not holds:
                raise
        except ClientRejectedError:
            if not (accept_stale and holds):
                raise
            log.warning("the metadata document of a client can't be fetched: the stored one stays valid")

    async def find_client_keys(self, client: OAuthClient, assertion: str, address: str) -> list[JoseKey]:
        """Return the keys that `client` signs with, fetched from `jwks_uri`. They are fetched again if `assertion`
        names an unknown one. `address` is the caller's. Raises ClientRejectedError, UnavailableError."""
        if client.jwks_uri is None:
            return _public_keys(client.jwks) if client.jwks is not None else []
        url, now = client.jwks_uri, self._now()
        key_set = self._keys.get(url)
        if key_set is not None and now < key_set.fetched_at + KEYS:
            if now < key_set.tried_at + PAUSE or _is_known(assertion, key_set.keys):
                return key_set.keys
        elif key_set is not None and now < key_set.tried_at + PAUSE:
            raise ClientRejectedError("invalid_client", f"{KEY_SET} can't be fetched now")
        await asyncio.shield(await self._fetching(url, self._load_keys, address, held=key_set is not None))
        return self._keys[url].keys

    async def close(self) -> None:
        """Cancel the running fetches."""
        for task in (under_way := list(self._under_way.values())):
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self.reachability.close()

    async def _fetching(self, url: str, load: Load, address: str, *, held: bool) -> "asyncio.Task[None]":
        """Return the fetch of `url`, started if there is none. Raises UnavailableError above the rate."""
        key = load, url
        if key not in self._under_way and not held and not await self._fetches.take(address):
            raise UnavailableError(SPAN)
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.get_running_loop().create_task(load(url))
            task.add_done_callback(partial(self._on_fetched, key))
        return task

    def _on_fetched(self, key: tuple[Load, str], task: "asyncio.Task[None]") -> None:
        del self._under_way[key]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ClientRejectedError | UnavailableError | StateError):
            log.error("what a client publishes could not be read", exc_info=error)

    async def _load(self, id: str) -> None:
        """Fetch a document and store it, or note that this failed."""
        try:
            try:
                page = await self._get(id, MAX_DOCUMENT, DOCUMENT, self._document_slots)
            except ClientUnreachableError:
                if id not in self._copies:
                    raise
                log.info("%s of %s can't be reached: using a copy", DOCUMENT, _host(id))
                await self._keep(id, msgspec.json.decode(self._copies[id].text), USUAL, is_copy=True)
            else:
                await self._keep(id, _json(page, DOCUMENT), _lifetime(page.headers.get("cache-control", "")))
        except ClientRejectedError:
            now = self._now()
            await self._store.transact(lambda connection: client_rows.mark_failing(connection, id, now), alone=None)
            raise

    async def _keep(self, id: str, document: Any, lifetime: float, *, is_copy: bool = False) -> None:
        """Store a document for `lifetime`. A copy of ours does not replace a document fetched before."""
        metadata = msgspec.json.encode(model.parse_metadata_document(document, id, self._served())).decode()
        now = self._now()

        def put(connection: "Connection") -> None:
            stored = client_rows.find_client(connection, id)
            if stored is None and not client_rows.make_room(connection, "document", MAX_DOCUMENTS):
                raise ClientRejectedError("invalid_client", "this server has too many clients")
            row = {
                "kind": "document",
                "metadata": stored.metadata if is_copy and stored is not None else metadata,
                "made_at": now,
                "fresh_until": now + lifetime,
                "failing_since": None,
            }
            client_rows.save_client(connection, id, **row)

        await self._store.transact(put, alone="oauth")

    async def _load_keys(self, url: str) -> None:
        """Fetch a key set, or note that this was tried."""
        key_set = self._keys.get(url, KeySet([], float("-inf"), float("-inf")))
        try:
            page = await self._get(url, MAX_KEYS, KEY_SET, self._key_slots)
            key_set = KeySet(_public_keys(_json(page, KEY_SET)), self._now(), self._now())
        except ClientRejectedError:
            key_set = replace(key_set, tried_at=self._now())
            raise
        finally:
            self._keys.pop(url, None)
            self._keys[url] = key_set
            while len(self._keys) > MAX_REMEMBERED:
                del self._keys[next(iter(self._keys))]

    async def _get(self, url: str, limit: int, what: str, slots: FetchSlots) -> Page:
        try:
            async with slots.acquire(_host(url)):
                page = await fetch_json(self._fetch, url, limit)
        except NoFreeSlotError:
            raise UnavailableError(RETRY) from None
        except ToolError as error:
            if what == DOCUMENT and (url in self._copies or not isinstance(error, AddressRefusedError)):
                self.reachability.report_failure()  # a forbidden address proves nothing
            log.info("%s can't be reached: %s", what, error.text)
            raise ClientUnreachableError("invalid_client", f"{what} can't be reached from this server") from None
        self.reachability.report_answer(url)
        if page.status != 200 or page.truncated:
            raise _unusable(what, f"status {page.status}" if page.status != 200 else f"more than {limit} bytes")
        return page


async def fetch_json(fetch: Fetch, url: str, limit: int = MAX_DOCUMENT) -> Page:
    """Return the JSON at `url`, requested like a client's metadata document. Raises ToolError."""
    return await fetch(url, headers={"accept": "application/json"}, limit=limit, timeout=WITHIN, redirects=0)


def is_accepted_host(id: str, hosts: Sequence[str]) -> bool:
    """Return whether `id` is at one of `hosts` or below; if there are none, any host counts."""
    return not hosts or any(f".{_host(id)}".endswith(f".{host.lower()}") for host in hosts)


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _unusable(what: str, why: str) -> ClientRejectedError:
    """Return one error for all malformed answers; the log says which."""
    log.info("%s is malformed: %s", what, why)
    return ClientRejectedError("invalid_client", f"{what} is malformed: its URL does not return the expected JSON")


def _public_keys(document: Any) -> list[JoseKey]:
    try:
        return jose.parse_jwks(document, model.MAX_KEYS)
    except ValueError as error:
        raise _unusable(KEY_SET, str(error)) from None


def _json(page: Page, what: str) -> Any:
    if page.content_type != "application/json" and not page.content_type.endswith("+json"):
        raise _unusable(what, "not served as application/json")
    try:
        return msgspec.json.decode(page.body)
    except (ValueError, RecursionError):
        raise _unusable(what, "no JSON") from None


def _lifetime(cache_control: str) -> float:
    """Return how long a document is cached, by its server's headers within our limits."""
    if "no-store" in cache_control.lower() or "no-cache" in cache_control.lower():
        return FLOOR
    max_age = MAX_AGE.search(cache_control)
    return min(CEILING, max(FLOOR, float(max_age[1]))) if max_age is not None else USUAL


def _is_known(assertion: str, keys: Sequence[JoseKey]) -> bool:
    try:
        kid = jose.read_header(assertion).get("kid")
    except InvalidTokenError:
        return True  # no key can make it valid
    return kid is None or any(key.kid == kid for key in keys)
