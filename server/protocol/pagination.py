"""Pages of a list, and the opaque cursors between them. Pure.

A cursor names the last item of its page, so that items that come or go elsewhere move nobody's place.
Source: MCP server/utilities/pagination.
"""

import base64
from collections.abc import Sequence

import msgspec

from toolgate.server.protocol.errors import InvalidParams

PAGE = 250  # items: few clients ask for a second page, and none should need one for what people really have
MAX_CURSOR = 16_384  # characters; a URI of 8 KiB fits


def page_start(cursor: object, what: str, keys: Sequence[str]) -> int:
    """Where the page begins that `cursor` (None for the first) asks for in the list `what`. Raises InvalidParams."""
    if cursor is None:
        return 0
    refusal = InvalidParams("unknown cursor: ask for the first page again")
    if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR:
        raise refusal
    try:
        raw = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)
        listed, index, key = msgspec.json.decode(raw, type=tuple[str, int, str])
    except (ValueError, msgspec.MsgspecError):
        raise refusal from None
    if listed != what or not index > 0:
        raise refusal
    if index <= len(keys) and keys[index - 1] == key:
        return index
    try:
        return keys.index(key) + 1
    except ValueError:
        return min(index - 1, len(keys))  # the item has gone: what came behind it moved up


def page_end(begin: int, what: str, keys: Sequence[str], size: int = PAGE) -> tuple[int, str | None]:
    """Where that page ends, and the cursor of the next one; None for the last."""
    index = begin + size
    if index >= len(keys):
        return len(keys), None
    return index, base64.urlsafe_b64encode(msgspec.json.encode((what, index, keys[index - 1]))).decode()
