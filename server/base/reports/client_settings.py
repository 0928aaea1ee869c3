"""Describe how clients connect, for the first page."""

from collections.abc import Sequence

import msgspec


class ClientSettings(msgspec.Struct, frozen=True):
    """What clients read. `snippets` holds each client's configuration (title, text, where it belongs, the link that
    adds it or ""); `unreached` are the titles of hosted clients that can't reach this server."""

    snippets: Sequence[tuple[str, str, str, str]] = ()
    unreached: Sequence[str] = ()
