"""Ask our own server, or one at a URL, and print the answer (`toolgate call`, `toolgate tools`).

The person at the terminal answers the server's questions.
"""

import asyncio
import base64
import os
import shlex
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.base.progress import TerminalProgress, terminal_progress
from toolgate.server.base.text import escape_invisible, escape_lines, escape_unprintable, suggest
from toolgate.server.calls.terminal import TerminalElicitation
from toolgate.server.cli.commands.offered_parts import (
    convert,
    format_signature,
    list_all,
    open_client,
    parse_arguments,
    print_part,
)
from toolgate.server.cli.mcp_client.client import ConnectionLostError, McpClientError, QuestionHandler
from toolgate.server.config.load import Config


async def call(
    config: Config, *, tool: str, arguments: Sequence[str], url: str | None, json: bool, output: str | None
) -> int:
    """Call a tool with `key=value` words; 1 if it refuses, or the server does not answer."""
    _check_output(output)
    person = TerminalElicitation()
    waiting = WaitingLine(tool, terminal_progress(config.environment), person.answer)
    async with open_client(config, url, waiting.answer, waiting.note) as (client, _):
        tools = {each.name: each for each in await list_all(client, "tools/list", "tools")}
        if tool not in tools:
            raise UsageError(f"call: unknown tool {tool!r}{suggest(tool, tools)}; tools are {', '.join(tools)}")
        values = parse_arguments("call", tools[tool].input_schema, arguments)
        try:
            async with waiting.show_line():
                result = await client.call(tool, values, **waiting.meta)
            content = convert(result.get("content"), list[dict[str, Any]], "tools/call")
        except McpClientError as fault:
            print(f"toolgate: {escape_unprintable(str(fault))}", file=sys.stderr)
            if isinstance(fault, ConnectionLostError):
                words = ["toolgate", "call", *(["--url", url] if url is not None else []), "ListBgTasks"]
                print(f"What the call ran may go on. To see that: {shlex.join(words)}", file=sys.stderr)
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
    async with open_client(config, url) as (client, hello):
        for tool in await list_all(client, "tools/list", "tools"):
            print_part(format_signature(tool), tool)
        capabilities = convert(hello.get("capabilities"), dict[str, Any], "the first answer")
        if "prompts" in capabilities:
            print("\nPrompts:")
            for prompt in await list_all(client, "prompts/list", "prompts"):
                names = ", ".join(each.name + ("*" if each.required else "") for each in prompt.arguments or [])
                print_part(f"{prompt.name}({names})", prompt)
        if "resources" in capabilities:
            print("\nResources:")
            for template in await list_all(client, "resources/templates/list", "resourceTemplates"):
                print_part(template.uri_template, template)
            for resource in await list_all(client, "resources/list", "resources"):
                print_part(resource.uri, resource)
    return 0


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
