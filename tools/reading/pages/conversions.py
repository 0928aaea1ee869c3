"""Keep the text of converted pages for a while, so that a page read in pieces is converted once.

A page is kept for its principal alone. Only a piece after the first uses it: a call that reads from the beginning loads
the page again.
"""

import asyncio
import sys
from typing import TYPE_CHECKING

import msgspec

from toolgate.tools.reading.pages.document import LoadedPage
from toolgate.tools.reading.pages.page_reader import Format, PageRequest

if TYPE_CHECKING:
    from toolgate.tools.reading.web.convert import ReadablePage  # start-up

KEEP = 60.0  # seconds since the last use
MAX_KEPT = 64 * 2**20  # bytes of all texts
MAX_OWN = 32 * 2**20  # of one principal: nobody pushes out all of the others
MAX_DIGESTS = 1_000  # texts by which a changed page is noticed

ConversionKey = tuple[str, Format, str]  # principal, format and URL


class Conversion(msgspec.Struct, frozen=True):
    """A loaded page, without its body, and its whole text.

    - `digest`: of the body and its type
    - `is_changed`: earlier pieces that the principal read may come from another text
    """

    loaded: LoadedPage
    readable: "ReadablePage"
    digest: bytes
    is_changed: bool = False

    @property
    def size(self) -> int:
        return sys.getsizeof(self.readable.text)

    @property
    def is_current(self) -> bool:
        """Return whether the page may be used without being loaded again (RFC 9111 section 5.2.2)."""
        said = self.loaded.page.headers.get("cache-control", "").lower()
        return "no-store" not in said and "no-cache" not in said


class Conversions:
    """The conversions of one page reader, the one used last at the end."""

    def __init__(self, keep: float = KEEP, max_kept: int = MAX_KEPT, max_own: int = MAX_OWN) -> None:
        self.keep = keep
        self.max_kept = max_kept
        self.max_own = max_own
        self._kept: dict[ConversionKey, tuple[Conversion, float]] = {}  # with the loop time of its end
        self._texts: dict[ConversionKey, int] = {}  # hashes of texts that were kept
        self._timer: asyncio.TimerHandle | None = None

    @property
    def size(self) -> int:
        """Return the bytes of all texts."""
        return self._size()

    def find(self, request: PageRequest) -> Conversion | None:
        """Return the kept conversion of the requested page, and keep it for longer."""
        key = _key(request, request.url)
        kept = self._kept.pop(key, None)
        if kept is None:
            return None
        self._kept[key] = kept[0], asyncio.get_running_loop().time() + self.keep
        return kept[0]

    def add(self, request: PageRequest, conversion: Conversion) -> Conversion:
        """Keep a conversion if it has more than one piece, and return it with what is known of earlier ones."""
        urls = {request.url, conversion.loaded.page.url}
        keys = [_key(request, url) for url in urls]
        text = hash(conversion.readable.text)
        is_continued = request.offset > 0 or any(key in self._kept for key in keys)
        if is_continued and any(self._texts.get(key, text) != text for key in keys):
            conversion = msgspec.structs.replace(conversion, is_changed=True)
        for key in keys:
            self._drop(key)
            self._keep(key, conversion, text)
        return conversion

    def _keep(self, key: ConversionKey, conversion: Conversion, text: int) -> None:
        loop = asyncio.get_running_loop()
        self._texts.pop(key, None)
        self._texts[key] = text
        if len(self._texts) > MAX_DIGESTS:
            del self._texts[next(iter(self._texts))]
        self._kept[key] = conversion, loop.time() + self.keep
        while self._size(key[0]) > self.max_own:
            self._drop(next(each for each in self._kept if each[0] == key[0]))
        while self._size() > self.max_kept:
            self._drop(next(iter(self._kept)))
        if self._timer is None:
            self._timer = loop.call_later(self.keep, self._expire)

    def close(self) -> None:
        """Drop all."""
        self._kept.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _size(self, principal: str | None = None) -> int:
        """Return the bytes of all texts, or of a principal's. A text under two URLs counts once."""
        found = {id(kept): kept for key, (kept, _) in self._kept.items() if principal is None or key[0] == principal}
        return sum(each.size for each in found.values())

    def _drop(self, key: ConversionKey) -> None:
        self._kept.pop(key, None)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        for key, (_, end) in list(self._kept.items()):
            if end > loop.time():
                self._timer = loop.call_at(end, self._expire)
                return
            self._drop(key)


def _key(request: PageRequest, url: str) -> ConversionKey:
    return request.principal, request.format, url
