"""Ask our own server, or one at a URL, and print the answer (`toolgate call`, `toolgate tools`).

The person at the terminal answers the server's questions.
"""

import asyncio
import base64
import os
import re
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from toolgate.server.calls.terminal import TerminalElicitation
from toolgate.server.cli.mcp_client.client import (
    McpClient,
    McpClientError,
    NotificationHandler,
    QuestionHandler,
    spawn_server,
)
from toolgate.server.cli.style import choose_style
from toolgate.server.config.load import Config
from toolgate.server.progress import TerminalProgress, terminal_progress
from toolgate.server.protocol.errors import UsageError
from toolgate.server.text import escape_invisible, escape_lines, escape_unprintable, suggest

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


async def call(
    config: Config, *, tool: str, arguments: Sequence[str], url: str | None, json: bool, output: str | None
) -> int:
    """Call a tool with `key=value` words; 1 if it refuses, or the server does not answer."""
    _check_output(output)
    person = TerminalElicitation()
    waiting = WaitingLine(tool, terminal_progress(config.environment), person.answer)
    async with _open_client(config, url, waiting.answer, waiting.note) as (client, _):
        tools = {each.name: each for each in await _list_all(client, "tools/list", "tools")}
        if tool not in tools:
            raise UsageError(f"call: unknown tool {tool!r}{suggest(tool, tools)}; tools are {', '.join(tools)}")
        values = _parse_arguments(tools[tool].input_schema, arguments)
        try:
            async with waiting.show_line():
                result = await client.call(tool, values, **waiting.meta)
            content = _convert(result.get("content"), list[dict[str, Any]], "tools/call")
        except McpClientError as fault:
            print(f"toolgate: {escape_unprintable(str(fault))}", file=sys.stderr)
            return 1
    if json:
        text = msgspec.json.encode(result).decode()
        print(escape_invisible(text) if sys.stdout.isatty() else text)  # its escapes are those of JSON
    else:
        for block in content:
            _print_block(block)
    if output is not None and not result.get("isError"):
        _save_pictures(content, Path(output))
    return 1 if result.get("isError") or person.has_declined else 0


async def list_parts(config: Config, *, url: str | None) -> int:
    """Print what a server offers: its tools with their parameters (`*` = required), its prompts, its resources."""
    async with _open_client(config, url) as (client, hello):
        for tool in await _list_all(client, "tools/list", "tools"):
            schema = tool.input_schema
            names = ", ".join(name + ("*" if name in schema.required else "") for name in schema.properties)
            _print_part(f"{tool.name}({names})", tool)
        capabilities = _convert(hello.get("capabilities"), dict[str, Any], "the first answer")
        if "prompts" in capabilities:
            print("\nPrompts:")
            for prompt in await _list_all(client, "prompts/list", "prompts"):
                names = ", ".join(each.name + ("*" if each.required else "") for each in prompt.arguments or [])
                _print_part(f"{prompt.name}({names})", prompt)
        if "resources" in capabilities:
            print("\nResources:")
            for template in await _list_all(client, "resources/templates/list", "resourceTemplates"):
                _print_part(template.uri_template, template)
            for resource in await _list_all(client, "resources/list", "resources"):
                _print_part(resource.uri, resource)
    return 0


async def _list_all(client: McpClient, method: str, field: str) -> list[OfferedPart]:
    """Return all items of a paged list. Raises McpClientError."""
    found: list[OfferedPart] = []
    params: dict[str, Any] = {}
    for _ in range(MAX_PAGES):
        answer = await client.request(method, params)
        found += _convert(answer.get(field), list[OfferedPart], method)
        if answer.get("nextCursor") is None:
            break
        params = {"cursor": answer["nextCursor"]}
    return found


def _convert(value: Any, kind: type[T], method: str) -> T:
    """Return what a server answered as this type. Raises McpClientError."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise McpClientError(f"the server's answer to {method} is not valid: {error}") from None


def _print_part(name: str, part: OfferedPart) -> None:
    """Print a part's name and the first sentence of its description."""
    paragraph = " ".join((part.description or "").strip().partition("\n\n")[0].split())
    sentence = re.match(r".+?[.!?](?= |$)", paragraph)
    print(escape_unprintable(name))
    if paragraph:
        told = escape_unprintable(sentence[0] if sentence else paragraph)
        print(" " * INDENT + choose_style(sys.stdout, {}).wrap(told, INDENT))


def _open_client(
    config: Config,
    url: str | None,
    question: QuestionHandler | None = None,
    note: NotificationHandler | None = None,
) -> AbstractAsyncContextManager[tuple[McpClient, dict[str, Any]]]:
    if url is None:
        return spawn_server(config.to_flags(), config.server_environment, note=note, question=question)
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


def _parse_arguments(schema: InputSchema, pairs: Sequence[str]) -> dict[str, Any]:
    """Return `key=value` words as arguments. A value is JSON unless the schema says string."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"call: {pair!r} is not ARGUMENT=VALUE, such as {_example(schema)}")
        about = schema.properties.get(key)
        kind = about.get("type", "string") if isinstance(about, dict) else "string"
        if key == "url" and re.fullmatch(BARE_ADDRESS, value):
            value = f"https://{value}"
        try:
            arguments[key] = value if kind == "string" else msgspec.json.decode(value)
        except msgspec.DecodeError:
            arguments[key] = value  # the server's error says what it expected
    return arguments


def _example(schema: InputSchema) -> str:
    return f"{next(iter(schema.properties), 'name')}=…"


def _print_block(block: dict[str, Any]) -> None:
    """Print a block of content. A terminal gets no control characters."""
    text = _format_block(block)
    if sys.stdout.isatty():
        text = escape_lines(text)
    print(text, end="" if text.endswith("\n") else "\n")


def _format_block(block: dict[str, Any]) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image" | "audio", "mimeType": kind, "data": str(data)}:
            return f"[{kind}, {len(data) * 3 // 4} bytes; --output FILE saves it]"
        case {"type": "resource_link", "name": name, "uri": uri}:
            return f"{name}: {uri}"
        case _:
            return msgspec.json.encode(block).decode()


def _check_output(output: str | None) -> None:
    if output is not None and os.path.isdir(output):
        raise UsageError(f"--output: {output} is a folder: name a file")


def _save_pictures(content: Sequence[dict[str, Any]], file: Path) -> None:
    """Save the images and sounds of an answer: the first to `file`, others beside it with a number. Raises
    McpClientError, OSError."""
    pictures = [block for block in content if block.get("type") in ("image", "audio")]
    if not pictures:
        raise McpClientError("--output: the answer has no image")
    for number, block in enumerate(pictures, start=1):
        place = file if number == 1 else file.with_name(f"{file.stem}-{number}{file.suffix}")
        try:
            data = base64.b64decode(block["data"])
        except (KeyError, TypeError, ValueError):
            raise McpClientError(f"--output: the {block['type']} in the answer is not valid base64") from None
        place.write_bytes(data)
        print(f"saved {place}", file=sys.stderr)


class WaitingLine:
    """Show on a terminal that a call runs: for how long, and its last progress. `answer` is asked for questions."""

    def __init__(self, tool: str, progress: TerminalProgress, answer: QuestionHandler) -> None:
        self._tool = tool
        self._progress = progress
        self._answer = answer
        self._message = ""
        self._is_asking = False
        self.meta: dict[str, Any] = {"_meta": {"progressToken": "call"}} if progress.is_shown else {}

    def note(self, method: str, params: dict[str, Any]) -> None:
        """Take a notification of the server."""
        if method == "notifications/progress":
            lines = str(params.get("message") or "").strip().splitlines()
            self._message = lines[-1] if lines else self._message

    async def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer a question; meanwhile the terminal is the person's."""
        self._is_asking = True
        self._progress.clear()
        try:
            return await self._answer(method, params)
        finally:
            self._is_asking = False

    @asynccontextmanager
    async def show_line(self) -> AsyncGenerator[None]:
        """Show the line until the call is answered."""
        if not self._progress.is_shown:
            yield
            return
        with self._progress.show(self._tool):
            ticking = asyncio.create_task(self._tick())
            try:
                yield
            finally:
                ticking.cancel()

    async def _tick(self) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            if not self._is_asking:
                self._progress.update(f"{self._tool} … {time.monotonic() - began:.0f} s  {self._message}")
