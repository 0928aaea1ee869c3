"""Ask our own server, or one at a URL, and print the answer (`toolgate call`, `toolgate tools`).

The person at the terminal answers the server's questions.
"""

import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from toolgate.server.calls.terminal import TerminalElicitation
from toolgate.server.cli.mcp_client.client import McpClient, McpClientError, QuestionHandler, spawn_server
from toolgate.server.config.load import Config
from toolgate.server.protocol.errors import UsageError
from toolgate.server.text import suggest

MAX_PAGES = 100  # a longer list never ends: the server is broken


async def call(config: Config, *, tool: str, arguments: Sequence[str], url: str | None) -> int:
    """Call a tool with `key=value` words; 1 if it refuses, or the server does not answer."""
    person = TerminalElicitation()
    async with _open_client(config, url, person.answer) as (client, _):
        tools = {each["name"]: each for each in await _list_all(client, "tools/list", "tools")}
        if tool not in tools:
            raise UsageError(f"call: unknown tool {tool!r}{suggest(tool, tools)}; tools are {', '.join(tools)}")
        values = _parse_arguments(tools[tool]["inputSchema"], arguments)
        try:
            result = await client.call(tool, values)
        except McpClientError as fault:
            print(f"toolgate: {fault}", file=sys.stderr)
            return 1
    for block in result["content"]:
        print(_format_block(block))
    return 1 if result.get("isError") or person.has_declined else 0


async def list_parts(config: Config, *, url: str | None) -> int:
    """Print what a server offers: its tools with their parameters (`*` = required), its prompts, its resources."""
    async with _open_client(config, url) as (client, hello):
        for tool in await _list_all(client, "tools/list", "tools"):
            schema = tool["inputSchema"]
            required = schema.get("required", [])
            names = ", ".join(name + ("*" if name in required else "") for name in schema.get("properties", {}))
            _print_part(f"{tool['name']}({names})", tool)
        if "prompts" in hello["capabilities"]:
            print("\nPrompts:")
            for prompt in await _list_all(client, "prompts/list", "prompts"):
                arguments = prompt.get("arguments", [])
                names = ", ".join(each["name"] + ("*" if each.get("required") else "") for each in arguments)
                _print_part(f"{prompt['name']}({names})", prompt)
        if "resources" in hello["capabilities"]:
            print("\nResources:")
            for template in await _list_all(client, "resources/templates/list", "resourceTemplates"):
                _print_part(template["uriTemplate"], template)
            for resource in await _list_all(client, "resources/list", "resources"):
                _print_part(resource["uri"], resource)
    return 0


async def _list_all(client: McpClient, method: str, field: str) -> list[dict[str, Any]]:
    """Return all items of a paged list."""
    found: list[dict[str, Any]] = []
    params: dict[str, Any] = {}
    for _ in range(MAX_PAGES):
        answer = await client.request(method, params)
        found += answer[field]
        if answer.get("nextCursor") is None:
            break
        params = {"cursor": answer["nextCursor"]}
    return found


def _print_part(name: str, part: dict[str, Any]) -> None:
    lines = (part.get("description") or "").splitlines()
    print(f"{name}\n    {lines[0]}" if lines else name)


def _open_client(
    config: Config, url: str | None, question: QuestionHandler | None = None
) -> AbstractAsyncContextManager[tuple[McpClient, dict[str, Any]]]:
    if url is None:
        return spawn_server(config.to_flags(), config.server_environment, question=question)
    from toolgate.server.cli.mcp_client.http import connect  # start-up: most use their own server

    return connect(url, token=config.access_token, question=question)


def _parse_arguments(schema: dict[str, Any], pairs: Sequence[str]) -> dict[str, Any]:
    """Return `key=value` words as arguments. A value is JSON unless the schema says string."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"call: {pair!r} is not ARGUMENT=VALUE, such as {_example(schema)}")
        kind = schema.get("properties", {}).get(key, {}).get("type", "string")
        try:
            arguments[key] = value if kind == "string" else msgspec.json.decode(value)
        except msgspec.DecodeError:
            arguments[key] = value  # the server's error says what it expected
    return arguments


def _example(schema: dict[str, Any]) -> str:
    return f"{next(iter(schema.get('properties', {})), 'name')}=…"


def _format_block(block: dict[str, Any]) -> str:
    match block["type"]:
        case "text":
            return str(block["text"])
        case "image" | "audio":
            return f"[{block['mimeType']}, {len(block['data']) * 3 // 4} bytes]"
        case "resource_link":
            return f"{block['name']}: {block['uri']}"
        case _:
            return msgspec.json.encode(block).decode()
