"""Connect to our own server, or to one at a URL, and read what it offers, for the commands that use it."""

import re
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import escape_unprintable
from toolgate.server.cli.mcp_client.client import (
    McpClient,
    McpClientError,
    NotificationHandler,
    QuestionHandler,
    spawn_server,
)
from toolgate.server.cli.terminal.style import choose_style
from toolgate.server.config.load import Config
from toolgate.tools.api.schema.conversion import convert_value
from toolgate.tools.api.text.json_text import JsonError, decode_json

BARE_ADDRESS = r"(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}(?::[0-9]+)?(?:[/?#].*)?"  # a URL as people type it: example.com/page
INDENT = 4  # columns before a description
MAX_PAGES = 100  # a longer list never ends: the server is broken
T = TypeVar("T")


class OfferedArgument(msgspec.Struct):
    """An argument of a prompt."""

    name: str
    required: bool | None = None


class InputSchema(msgspec.Struct):
    """The parameters of a tool."""

    properties: dict[str, Any] = {}
    required: list[str] = []


class OfferedPart(msgspec.Struct, rename="camel"):
    """A tool, prompt, resource or resource template that a server lists."""

    name: str = ""
    uri: str = ""
    uri_template: str = ""
    description: str | None = None
    input_schema: InputSchema = msgspec.field(default_factory=InputSchema)
    arguments: list[OfferedArgument] | None = None


def open_client(
    config: Config,
    url: str | None,
    question: QuestionHandler | None = None,
    note: NotificationHandler | None = None,
) -> AbstractAsyncContextManager[tuple[McpClient, dict[str, Any]]]:
    """Yield a client of our own server, or of the one at a URL, and the server's first answer."""
    if url is None:
        flags, environment = config.to_server()
        return spawn_server(flags, environment, note=note, question=question)
    return _connect(config, url, question, note)


@asynccontextmanager
async def _connect(
    config: Config, url: str, question: QuestionHandler | None, note: NotificationHandler | None
) -> AsyncGenerator[tuple[McpClient, dict[str, Any]]]:
    """Connect with the token of TOOLGATE_TOKEN or of a sign-in. A refused token of a sign-in is renewed once."""
    # start-up: most use their own server
    from toolgate.server.cli.mcp_client.http import SignInRequiredError, connect, parse_url
    from toolgate.server.cli.sign_in.credentials import find_token, renew_token
    from toolgate.server.cli.sign_in.requests import normalize_url

    parse_url(url)
    url = normalize_url(url)
    token = await find_token(config, url)
    async with AsyncExitStack() as stack:
        try:
            opened = await stack.enter_async_context(connect(url, token=token.text, note=note, question=question))
        except SignInRequiredError:
            if not token.is_stored:
                raise
            token = await renew_token(config, token)
            opened = await stack.enter_async_context(connect(url, token=token.text, note=note, question=question))
        yield opened


async def list_all(client: McpClient, method: str, field: str) -> list[OfferedPart]:
    """Return all parts of a paged list. Raises McpClientError."""
    return convert(await list_items(client, method, field), list[OfferedPart], method)


async def list_items(client: McpClient, method: str, field: str) -> list[dict[str, Any]]:
    """Return all items of a paged list as they came. Raises McpClientError."""
    found: list[dict[str, Any]] = []
    params: dict[str, Any] = {}
    for _ in range(MAX_PAGES):
        answer = await client.request(method, params)
        found += convert(answer.get(field), list[dict[str, Any]], method)
        if answer.get("nextCursor") is None:
            break
        params = {"cursor": answer["nextCursor"]}
    return found


def convert(value: Any, kind: type[T], method: str) -> T:
    """Return what a server answered as this type. Raises McpClientError."""
    try:
        return convert_value(value, kind)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise McpClientError(f"the server's answer to {method} is not valid: {error}") from None


def format_signature(part: OfferedPart) -> str:
    """Return the name of a tool or an event with its parameters: "call(a*, b)", where `*` is for required."""
    schema = part.input_schema
    names = ", ".join(name + ("*" if name in schema.required else "") for name in schema.properties)
    return f"{part.name}({names})"


def print_part(name: str, part: OfferedPart) -> None:
    """Print a name and the first sentence of its description."""
    paragraph = " ".join((part.description or "").strip().partition("\n\n")[0].split())
    sentence = re.match(r".+?[.!?](?= |$)", paragraph)
    print(escape_unprintable(name))
    if paragraph:
        told = escape_unprintable(sentence[0] if sentence else paragraph)
        print(" " * INDENT + choose_style(sys.stdout, {}).wrap(told, INDENT))


def parse_arguments(command: str, schema: InputSchema, pairs: Sequence[str]) -> dict[str, Any]:
    """Return `key=value` words as arguments. A value is JSON unless the schema says string. Raises UsageError."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"{command}: {pair!r} is not ARGUMENT=VALUE, such as {_example(schema)}")
        if key in arguments:
            raise UsageError(f"{command}: {key} is given twice")
        about = schema.properties.get(key)
        kind = about.get("type", "string") if isinstance(about, dict) else "string"
        if key == "url" and re.fullmatch(BARE_ADDRESS, value):
            value = f"https://{value}"
        try:
            arguments[key] = value if kind == "string" else decode_json(value)
        except JsonError:
            arguments[key] = value  # the server's error says what it expected
    return arguments


def _example(schema: InputSchema) -> str:
    return f"{next(iter(schema.properties), 'name')}=…"
