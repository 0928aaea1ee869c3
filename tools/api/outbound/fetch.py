"""Fetch web pages, and vet the address of every hop first: all web requests of tools go through `Web`.

The host is resolved here, every address is checked, and the connection goes to a checked address. `Host` and TLS keep
the name. Only idle connections outlive a call: there are no cookies, no cache, and no proxy or other setting from the
environment. Requests to clients' URLs are sent the same way.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from toolgate.tools.api.context.services import Page
from toolgate.tools.api.outbound.address_policy import AddressPolicy
from toolgate.tools.api.outbound.errors import REDIRECTS, PageTimeoutError, PageUnreachableError, Resolve, shorten_url

if TYPE_CHECKING:
    import ssl

    from toolgate.tools.api.outbound.vetted_client import VettedClient

MAX_BODY = 8 * 2**20  # decoded; a model reads no larger page
# Headers that may follow a redirect to another origin: the rest may hold a key for the first.
CROSS_ORIGIN_HEADERS = frozenset({"accept", "accept-language", "user-agent"})


class Web:
    """A guarded HTTP client, shared by all calls of one event loop. The first fetch opens the first connection.

    `allow_private`: host names, addresses and networks that are allowed although not public. `refuse_networks`: public
    networks that are refused. Raises ValueError for a bad entry. `verify` and `resolve` replace the certificates and
    the DNS. `max_received` makes each connection serve a single request, and bounds the bytes that are read from it.
    """

    def __init__(
        self,
        allow_private: Sequence[str] = (),
        refuse_networks: Sequence[str] = (),
        *,
        verify: "ssl.SSLContext | None" = None,
        resolve: Resolve | None = None,
        max_received: int | None = None,
    ) -> None:
        self.allowed = AddressPolicy.parse(allow_private, refuse_networks)
        self._verify = verify
        self.resolve = resolve
        self._max_received = max_received
        self._vetted: VettedClient | None = None

    def normalise_url(self, url: str) -> str:
        """Return `url` in ASCII, ready to be requested. Raises PageUnreachableError and AddressRefusedError."""
        return str(self._client().parse_url(url))

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        limit: int = MAX_BODY,
        timeout: float = 30.0,
        redirects: int | None = 10,
        lane: str = "",
        allow_incomplete: bool = False,
    ) -> Page:
        """Fetch `url`, following up to `redirects` redirects, within `timeout` seconds in all.

        With None a redirect is returned as it is. So it is for a request with a `body`, which was meant for one
        address. At most `limit` decoded bytes are kept. `lane` names a separate pool of connections, which never waits
        for other lanes; there must be few. Any HTTP status is a Page. With `allow_incomplete` a body that breaks off is
        returned as far as it came. Raises AddressRefusedError (at any hop), PageTimeoutError, PageTlsError, and
        PageUnreachableError for every other failure.
        """
        try:
            async with asyncio.timeout(timeout):
                if body or redirects is None:
                    client = self._client()
                    return await client.request(method, client.parse_url(url), headers or {}, limit, body, lane)
                return await self._follow(url, method, dict(headers or {}), limit, redirects, lane, allow_incomplete)
        except TimeoutError:
            raise PageTimeoutError(f"{shorten_url(url)} did not come in full within {timeout:g} s") from None

    async def close(self) -> None:
        """Close the idle connections. A later fetch opens new ones."""
        client, self._vetted = self._vetted, None
        if client is not None:
            await client.close()

    async def _follow(
        self,
        url: str,
        method: str,
        headers: dict[str, str],
        limit: int,
        hops: int,
        lane: str,
        allow_incomplete: bool,
    ) -> Page:
        client = self._client()
        target = client.parse_url(url)
        for _ in range(hops + 1):
            page = await client.request(method, target, headers, limit, lane=lane, allow_incomplete=allow_incomplete)
            location = page.headers.get("location", "")
            if page.status not in REDIRECTS or not location:
                return page
            following = client.parse_url(location, target)
            origins = {(each.scheme, each.host, each.port) for each in (target, following)}
            if len(origins) > 1:
                headers = {name: value for name, value in headers.items() if name.lower() in CROSS_ORIGIN_HEADERS}
            if page.status not in (307, 308) and method != "HEAD":
                method = "GET"
            target = following
        raise PageUnreachableError(
            f"{shorten_url(url)} redirects more than {hops} times; the last was to {shorten_url(str(target))}"
        )

    def _client(self) -> "VettedClient":
        if self._vetted is None:
            from toolgate.tools.api.outbound.vetted_client import VettedClient  # start-up: httpx and httpcore

            self._vetted = VettedClient(self.allowed, self._verify, self.resolve, self._max_received)
        return self._vetted
