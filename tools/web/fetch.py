"""The one way out to the web: fetches pages, each hop's address vetted first. Knows nothing of tools or HTML.

What is vetted is what is connected to: the host is resolved here, every answer is checked, and the connection
goes to the checked address while `Host` and TLS keep the name. Nothing is kept between calls but idle
connections: no cookies, no cache, no proxy or other setting from the environment.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from toolgate.tools.api.errors import ToolError
from toolgate.tools.fair_queue import FairQueue
from toolgate.tools.web.address_policy import AddressPolicy
from toolgate.tools.workers.pool import Workers

if TYPE_CHECKING:
    import ssl

    from toolgate.tools.browser.browser import Browser
    from toolgate.tools.web.vetted_client import VettedClient

MAX_BODY = 8 * 2**20  # decoded; a page larger than this is not read by a model
MAX_VISITS = (
    10  # pages that are read at once, from the first byte to the text: each may hold MAX_BODY, and more as text
)
SHARE = 6  # of them for one principal
MAX_LARGE = 3  # of them that may be larger than MAX_BODY
LARGE_SHARE = 2
LINE = 128  # of one principal's pages that wait: what is behind them would not be read in time
MAX_URL = 8_000  # characters; what servers and browsers take at most
REDIRECTS = frozenset({301, 302, 303, 307, 308})
# What may follow a redirect to another origin: the rest may hold a key meant for the first.
CROSS_ORIGIN_HEADERS = frozenset({"accept", "accept-language", "user-agent"})

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]  # (host, port) -> addresses; raises OSError


class Page(msgspec.Struct, frozen=True):
    """What came back at the end of the redirects.

    `url` is the final one; header names are lower case, repeated ones joined by ", "; `body` is unpacked from
    its content-encoding; `truncated` says that it went on after the limit.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool

    @property
    def content_type(self) -> str:
        """The bare media type in lower case, "" when none was sent."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class PageUnreachableError(ToolError):
    """The page could not be had: the name, the connection, TLS, the protocol, or too many redirects."""


class PageTimeoutError(PageUnreachableError):
    """It did not come in time."""


class AddressRefusedError(ToolError):
    """The address is not one that may be reached; the text names it and the option that decides."""


class Web:
    """A guarded HTTP client, shared by all calls of one event loop. Nothing is opened before the first fetch.

    `allow_private`: host names, addresses and networks that may be reached although they are not public;
    `refuse_networks`: those that may not be although they are. Raises ValueError for what is none of these.
    `verify` and `resolve` replace the certificates and the DNS.
    `workers` read what was fetched: they are here because they end with it. So is `browser`, by the same guard, where
    `chromium` is the path of one. Whoever has a page read for a model takes one of `visits` first, and one of `large`
    for what is larger than MAX_BODY: so what is in memory is bounded.
    """

    def __init__(
        self,
        allow_private: Sequence[str] = (),
        refuse_networks: Sequence[str] = (),
        *,
        verify: "ssl.SSLContext | None" = None,
        resolve: Resolve | None = None,
        chromium: str | None = None,
    ) -> None:
        self.allowed = AddressPolicy.parse(allow_private, refuse_networks)
        self._verify = verify
        self._resolve = resolve
        self._wire: VettedClient | None = None
        self.workers = Workers()
        self.visits = FairQueue(MAX_VISITS, "pages", per_principal=SHARE, max_waiting=LINE)
        self.large = FairQueue(MAX_LARGE, "large files", per_principal=LARGE_SHARE)
        self._chromium = chromium
        self._browser: Browser | None = None

    @property
    def browser(self) -> "Browser | None":
        """The one browser of all calls; None where there is none."""
        if self._browser is None and self._chromium is not None:
            from toolgate.tools.browser.browser import Browser  # start-up

            self._browser = Browser(self._chromium, self.allowed, self._resolve)
        return self._browser

    @property
    def browser_is_up(self) -> bool:
        return self._browser is not None and self._browser.is_up

    def depths(self) -> "list[tuple[str, tuple[int, int]]]":
        """By what is waited for: how many have their turn, and how many wait. `visits` are calls of ReadDocs, `pages`
        the browser's; the rest are jobs of workers."""
        pages = self._browser.depth if self._browser is not None else (0, 0)
        return [("visits", (self.visits.running, self.visits.waiting)), ("pages", pages), *self.workers.depths()]

    def normalise_url(self, url: str) -> str:
        """`url` as it may be asked for, in ASCII. Raises Unreachable and Refused."""
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
        redirects: int = 10,
        lane: str = "",
    ) -> Page:
        """Fetch `url`, following up to `redirects` redirects, within `timeout` seconds in all.

        A request with a `body` follows none: it was meant for one address. At most `limit` unpacked bytes of the
        answer are kept. `lane`: a name whose connections are its own, so that it never waits for those of others; there
        must be few. Any HTTP status is a Page. Raises Refused for what may not be reached (at any hop), TimedOut,
        and Unreachable for every other way to fail.
        """
        try:
            async with asyncio.timeout(timeout):
                if body:
                    wire = self._client()
                    return await wire.request(method, wire.parse_url(url), headers or {}, limit, body, lane)
                return await self._follow(url, method, dict(headers or {}), limit, redirects, lane)
        except TimeoutError:
            raise PageTimeoutError(f"{shorten_url(url)} did not come in full within {timeout:g} s") from None

    async def close(self) -> None:
        """Close the idle connections, end the workers and the browser. A later fetch opens new ones."""
        wire, self._wire = self._wire, None
        browser, self._browser = self._browser, None
        closing = [part.close() for part in (wire, browser, self.workers) if part is not None]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _follow(
        self, url: str, method: str, headers: dict[str, str], limit: int, redirects: int, lane: str
    ) -> Page:
        wire = self._client()
        target = wire.parse_url(url)
        for _ in range(redirects + 1):
            page = await wire.request(method, target, headers, limit, lane=lane)
            location = page.headers.get("location", "")
            if page.status not in REDIRECTS or not location:
                return page
            following = wire.parse_url(location, target)
            if (following.scheme, following.host, following.port) != (
                target.scheme,
                target.host,
                target.port,
            ):
                headers = {name: value for name, value in headers.items() if name.lower() in CROSS_ORIGIN_HEADERS}
            if page.status not in (307, 308) and method != "HEAD":
                method = "GET"
            target = following
        raise PageUnreachableError(
            f"{shorten_url(url)} redirects more than {redirects} times; the last was to {shorten_url(str(target))}"
        )

    def _client(self) -> "VettedClient":
        if self._wire is None:
            from toolgate.tools.web.vetted_client import VettedClient  # start-up: httpx and httpcore

            self._wire = VettedClient(self.allowed, self._verify, self._resolve)
        return self._wire


def shorten_url(url: str) -> str:
    """A URL for an error text: one line, not too long."""
    line = "".join(character if character.isprintable() else "?" for character in url)
    return line if len(line) <= 200 else f"{line[:200]}…"
