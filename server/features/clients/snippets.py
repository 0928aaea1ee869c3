"""Print the configuration that adds this server to an MCP client (`toolgate config CLIENT`), ready to paste."""

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import suggest
from toolgate.server.features.clients import links, program
from toolgate.server.features.clients.clients import CLIENTS, FILE_CLIENTS, NAME, TOML_COMMENTS, ClientEntry, ClientSpec
from toolgate.server.features.clients.locations import PLACES


class Snippet(NamedTuple):
    """A client's title, the text to paste, the place to paste it, and the link that adds the server, or ""."""

    title: str
    text: str
    where: str
    link: str = ""


def build_snippet(
    client: str,
    options: Sequence[str],
    public_url: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Snippet:
    """Return the configuration for a client, and the place to paste it.

    The client starts a server with `options`; `environment` is this program's, which says how it was started. Hosted
    clients, and those that read URLs, connect to `public_url`.
    Raises UsageError.
    """
    found = find_client(client, "config")
    if found.paste_where and _is_reachable(public_url):
        where = f"{found.paste_where}; toolgate doctor --url {public_url}/mcp checks that it will work"
        return Snippet(found.title, f"{public_url}/mcp", where)
    if public_url is not None and found.from_url is not None:
        return _by_url(client, found, f"{public_url}/mcp")
    if found.from_command is None:
        raise UsageError(
            f"config: {client} can't start a server on this machine: add --public-url with the https URL of your server"
        )
    entry = found.from_command([*program.find_program(environment), *options])
    return Snippet(found.title, write_entry(found, entry), found.where, links.build_install_link(client, entry))


def find_client(name: str, command: str) -> ClientSpec:
    """Return the client of this name. Raises UsageError."""
    if name not in CLIENTS:
        known = CLIENTS if command == "config" else FILE_CLIENTS
        by_program = {place.program: client for client, place in PLACES.items() if place.program}
        is_begun = any(client.startswith(f"{name}-") for client in known)
        near = f" (did you mean {by_program[name]}?)" if name in by_program and not is_begun else suggest(name, known)
        raise UsageError(f"{command}: unknown client {name!r}{near}; clients are {', '.join(known)}")
    return CLIENTS[name]


def list_snippets(public_url: str) -> list[Snippet]:
    """Return a snippet for each client that can reach a server at this URL, hosted ones first."""
    url = f"{public_url}/mcp"
    hosted = _list_hosted() if _is_reachable(public_url) else []
    own = [_by_url(name, client, url) for name, client in CLIENTS.items() if client.from_url is not None]
    return [*(Snippet(client.title, url, client.paste_where) for client in hosted), *own]


def list_unreached(public_url: str) -> list[str]:
    """Return the titles of hosted clients that can't reach a server at this URL."""
    return [] if _is_reachable(public_url) else [client.title for client in _list_hosted()]


def _list_hosted() -> list[ClientSpec]:
    return [client for _, client in sorted(CLIENTS.items()) if client.paste_where]


def write_entry(client: ClientSpec, entry: ClientEntry) -> str:
    """Return the entry in the notation that the client reads."""
    return NOTATIONS[client.notation](client.container, entry)


def _by_url(name: str, client: ClientSpec, url: str) -> Snippet:
    entry = client.from_url(url) if client.from_url is not None else {}
    where = client.where + client.sign_in
    return Snippet(client.title, write_entry(client, entry), where, links.build_install_link(name, entry))


def _is_reachable(public_url: str | None) -> bool:
    """Return whether hosted clients can reach the server."""
    return public_url is not None and public_url.startswith("https://")


def _write_json(container: str, entry: ClientEntry) -> str:
    return msgspec.json.format(msgspec.json.encode({container: {NAME: entry}}), indent=2).decode()


def _write_toml(container: str, entry: ClientEntry) -> str:
    from toolgate.server.config.files.toml_table import format_table  # start-up: the first page shows it

    return format_table((container, NAME), entry, TOML_COMMENTS).rstrip("\n")


def _write_shell(_: str, entry: ClientEntry) -> str:
    """Return the command that adds the server to Claude Code."""
    if "url" in entry:
        return shlex.join(["claude", "mcp", "add", "--transport", "http", NAME, entry["url"]])
    return shlex.join(["claude", "mcp", "add", NAME, "--", entry["command"], *entry["args"]])


NOTATIONS = {"json": _write_json, "toml": _write_toml, "shell": _write_shell}
