"""Replay the session on each server through the official Python client, and count."""

import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import Client
from mcp.client.stdio import stdio_client

from tests.bench.session.project import FINISHED, PAGES, write_project
from tests.bench.session.sides import PEERS, Call, Side, prepared
from tests.interop.node import node
from tests.tools.fake_web_site import site

DEFINITIONS, BUILD, BUILT = "definitions", "build in the background", "read the finished build"
LONG_ENOUGH = 5.0  # seconds after its start the build is finished, and read
PAUSE = 1.0  # between two reads of a build that is not
READS = 20  # a build that is not finished after this many is an error


@dataclass
class Step:
    """What one step took. `texts`: what the model reads; `asked`: the arguments it writes; `structured`: the results as
    a client shows them that prefers structured ones. `instead`: what a model does where the server has no tool."""

    calls: int = 0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    structured: list[str] = field(default_factory=list)
    instead: str = ""


@dataclass
class Session:
    """One server's session. `steps` begins with the definitions, which are no call; `tools`: how many it lists."""

    version: str
    tools: int
    steps: dict[str, Step]


def measure(folder: Path, tell: Callable[[str], None]) -> dict[str, Session]:
    """Return each server's session."""
    return asyncio.run(_measure(folder, tell))


async def _measure(folder: Path, tell: Callable[[str], None]) -> dict[str, Session]:
    async with site(PAGES) as pages:
        sessions = {}
        for name, side in prepared(folder, pages.url("/discounts")).items():
            tell(f"the session on {name}")
            write_project(folder / name)
            sessions[name] = await _replay(side)
        return sessions


async def _answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Choose the first option of each question, as a person would by one click."""
    assert isinstance(params, types.ElicitRequestFormParams)
    properties = params.requested_schema["properties"]
    chosen = {key: _first(schema) for key, schema in properties.items() if "enum" in schema or "oneOf" in schema}
    return types.ElicitResult(action="accept", content=chosen)


def _first(schema: dict[str, Any]) -> str:
    return str(schema["enum"][0] if "enum" in schema else schema["oneOf"][0]["const"])


async def _replay(side: Side) -> Session:
    with tempfile.TemporaryFile("w+") as log:
        transport = stdio_client(side.server, errlog=log)
        begun = time.perf_counter()
        async with asyncio.timeout(120), Client(transport, mode="legacy", elicitation_callback=_answer) as client:
            tools = (await client.list_tools()).tools
            definitions = Step(seconds=time.perf_counter() - begun, texts=[definition(tool) for tool in tools])
            if client.instructions:
                definitions.texts.append(client.instructions)
            steps = {DEFINITIONS: definitions}
            started, finished = "", 0.0
            for name, calls in side.steps.items():
                if isinstance(calls, str):
                    steps[name] = Step(instead=calls)
                    continue
                steps[name] = await _step(client, calls)
                if name == BUILD:
                    started, finished = steps[name].texts[0], time.perf_counter() + LONG_ENOUGH
            await asyncio.sleep(max(0.0, finished - time.perf_counter()))
            steps[BUILT] = await _read_build(client, side.poll(started))
            return Session(side.version, len(tools), steps)


def definition(tool: types.Tool) -> str:
    """Return what a model is given of a tool: name, description and the schema of its arguments."""
    shown = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return json.dumps(shown, separators=(",", ":"), ensure_ascii=False)


async def _step(client: Client, calls: Sequence[Call]) -> Step:
    step = Step()
    for call in calls:
        await _call(client, call, step)
    return step


async def _read_build(client: Client, call: Call) -> Step:
    """Read the background command until its last line, with a pause between two reads."""
    step = Step()
    for _ in range(READS):
        await _call(client, call, step)
        if FINISHED in step.texts[-1]:
            return step
        await asyncio.sleep(PAUSE)
    step.errors.append("the build's last line never came")
    return step


async def _call(client: Client, call: Call, step: Step) -> None:
    name, arguments = call
    begun = time.perf_counter()
    result = await client.call_tool(name, arguments)
    step.seconds += time.perf_counter() - begun
    step.calls += 1
    text = "\n".join(block.text for block in result.content if isinstance(block, types.TextContent))
    if result.is_error:
        step.errors.append(text)
    step.texts.append(text)
    step.asked.append(json.dumps({"name": name, "arguments": arguments}, separators=(",", ":")))
    structured = result.structured_content
    step.structured.append(text if structured is None else json.dumps(structured, separators=(",", ":")))


def count_tokens(texts: Sequence[str]) -> list[int]:
    """Return each text's tokens by cl100k. Raises RuntimeError if the tokenizer is missing."""
    if not (PEERS / "node_modules" / "gpt-tokenizer").exists():
        raise RuntimeError("the tokenizer is missing; install it with: make peers")
    command = [node(), str(PEERS / "tokens.mjs")]
    ended = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    counts: list[int] = json.loads(ended.stdout)
    return counts
