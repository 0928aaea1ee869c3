"""Build the links that add this server to an editor: opened on the person's machine, the editor asks, and adds it.

Sources: cursor.com/docs/mcp/install-links and code.visualstudio.com/api/extension-guides/ai/mcp.
"""

from base64 import b64encode
from collections.abc import Callable
from urllib.parse import quote

import msgspec

from toolgate.server.features.clients.clients import NAME, ClientEntry


def build_install_link(client: str, entry: ClientEntry) -> str:
    """Return the link that adds `entry` to a client, or "" for a client without such links."""
    return LINKS[client](entry) if client in LINKS else ""


def _link_to_cursor(entry: ClientEntry) -> str:
    config = quote(b64encode(msgspec.json.encode(entry)), safe="")
    return f"cursor://anysphere.cursor-deeplink/mcp/install?name={NAME}&config={config}"


def _link_to_vscode(entry: ClientEntry) -> str:
    return f"vscode:mcp/install?{quote(msgspec.json.encode({'name': NAME, **entry}), safe='')}"


LINKS: dict[str, Callable[[ClientEntry], str]] = {"cursor": _link_to_cursor, "vscode": _link_to_vscode}
