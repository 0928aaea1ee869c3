"""The links that add this server to an editor: each carries the entry that `toolgate config` prints."""

import base64
import json
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from toolgate.server.features.clients.snippets import build_snippet, list_snippets, list_unreached

PUBLIC = "https://tools.example.com/ä b"


def read_cursor(link: str) -> tuple[str, dict[str, object]]:
    """Return the name and the entry, as Cursor reads them."""
    parts = urlsplit(link)
    assert (parts.scheme, parts.netloc, parts.path) == ("cursor", "anysphere.cursor-deeplink", "/mcp/install")
    fields = parse_qs(parts.query, strict_parsing=True)
    return fields["name"][0], json.loads(base64.b64decode(fields["config"][0], validate=True))


def read_vscode(link: str) -> tuple[str, dict[str, object]]:
    assert link.startswith("vscode:mcp/install?")
    entry = json.loads(unquote(link.partition("?")[2], errors="strict"))
    return entry.pop("name"), entry


@pytest.mark.parametrize(("client", "read"), [("cursor", read_cursor), ("vscode", read_vscode)])
@pytest.mark.parametrize("url", [None, PUBLIC])
def test_a_link_holds_the_printed_entry(client: str, read, url: str | None) -> None:
    snippet = build_snippet(client, ["--name", 'a "b" & c+/?#%'], url)
    assert snippet.link.isascii() and not set(snippet.link) & set(" \"'<>+")
    (servers,) = json.loads(snippet.text).values()
    assert read(snippet.link) == ("toolgate", servers["toolgate"])


def test_hosted_clients_come_first_or_are_named_as_left_out() -> None:
    hosted = ["ChatGPT", "claude.ai", "Claude Desktop"]
    assert [snippet.title for snippet in list_snippets("https://tools.example.com")][:3] == hosted
    assert list_unreached("https://tools.example.com") == [] and list_unreached("http://127.0.0.1:8080") == hosted


def test_only_editors_with_links_have_one() -> None:
    linked = {snippet.title for snippet in list_snippets("https://tools.example.com") if snippet.link}
    assert linked == {"Cursor", "VS Code"}
