"""The official Python client against the real server process, in each way it can negotiate.

What has nothing to do with the way is tried in one or two of them by `make test`."""

import asyncio
import contextlib
import io
import json
import os
import shlex
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp.client.stdio
import mcp_types as types
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ToolsListChanged
from mcp.shared.exceptions import MCPDeprecationWarning

from tests.clients.raw_client import COMMAND, PATIENCE, STATELESS, children, eventually, processes_with
from tests.clients.raw_http_client import site
from tests.conftest import PROBE
from tests.interop.official_clients import CARRIERS, LEAN, MODES, THIRTEEN, WAYS, Negotiation, told_apart

pytestmark = pytest.mark.pairs

QUESTION = json.dumps([{"question": "Tea or coffee?", "options": ["tea", "coffee"]}])
SKILL = "---\nname: {0}\ndescription: What {0} is for.\n---\nDo it.\n"

ways = pytest.mark.parametrize("way", told_apart(WAYS))
over_stdio = pytest.mark.parametrize("way", told_apart(WAYS[: len(MODES)]))


@contextlib.asynccontextmanager
async def connected(folder: Path, way: Negotiation, *arguments: str, **options: Any) -> AsyncIterator[Client]:
    """Yield the client of a server in `folder`, which holds its home, state, working directory and log."""
    async with asyncio.timeout(3 * PATIENCE), contextlib.AsyncExitStack() as stack:
        if way.carrier == "stdio":
            transport: Any = _spawned(folder, stack, *arguments)
        else:
            listening = await asyncio.to_thread(stack.enter_context, site(folder, *arguments))
            url = listening.url + ("/sse" if way.carrier == "sse" else "/mcp")
            transport = sse_client(url) if way.carrier == "sse" else streamable_http_client(url)
        yield await stack.enter_async_context(Client(transport, mode=way.mode, **options))


def _spawned(folder: Path, stack: contextlib.AsyncExitStack, *arguments: str) -> Any:
    for name in ("home", "work"):
        (folder / name).mkdir(exist_ok=True)
    server = StdioServerParameters(
        command=COMMAND,
        args=list(arguments),
        env={"HOME": str(folder / "home"), "TOOLGATE_STATE": str(folder / "state"), "LANG": "C.UTF-8"},
        cwd=folder / "work",
    )
    return stdio_client(server, errlog=stack.enter_context((folder / "stderr.log").open("a")))


def text(result: types.CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, types.TextContent))


async def answer_tea(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Answer as a person who picks the first choice of the first question."""
    assert isinstance(params, types.ElicitRequestFormParams)
    key, choices = next(iter(params.requested_schema["properties"].items()))
    assert choices["enum"] == ["tea", "coffee"]
    return types.ElicitResult(action="accept", content={key: "tea"})


async def decline(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="decline")


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_revision_is_the_newest_of_the_era_asked_for(tmp_path: Path, way: Negotiation) -> None:
    async def main() -> None:
        async with connected(tmp_path, way) as client:
            assert client.protocol_version == ("2025-11-25" if way.mode == "legacy" else STATELESS)
            if way.mode != STATELESS:  # a pinned client sends nothing before its first request
                assert client.server_info is not None
                assert client.server_info.name == "toolgate"
                assert client.server_capabilities.tools == types.ToolsCapability(list_changed=True)

    asyncio.run(main())


@pytest.mark.brief("http 2026-07-28")
@ways
def test_the_list_is_the_thirteen_in_order(tmp_path: Path, way: Negotiation) -> None:
    async def main() -> None:
        async with connected(tmp_path, way) as client:
            listed = await client.list_tools()
            assert [tool.name for tool in listed.tools] == THIRTEEN
            assert all(tool.title and tool.description for tool in listed.tools)
            assert {tool.name for tool in listed.tools if not tool.output_schema} == LEAN
            assert listed.next_cursor is None

    asyncio.run(main())


@pytest.mark.brief("stdio legacy", "sse auto")
@ways
def test_a_command_gives_text_and_structured_content_that_fits_its_schema(tmp_path: Path, way: Negotiation) -> None:
    async def main() -> None:
        async with connected(tmp_path, way, "--structured-output", "full") as client:
            await client.list_tools()  # the client validates structured content against the listed schema
            result = await client.call_tool("Bash", {"command": "echo out; echo err >&2; exit 3"})
            assert not result.is_error
            assert text(result) == "out\nerr\nexit code: 3"
            said = dict(result.structured_content or {})
            assert said.pop("duration_ms") >= 0
            assert said == {
                "stdout_and_stderr": "out\nerr\n",
                "exit_code": 3,
                "timed_out": False,
                "truncated": False,
                "output_file": None,
                "cwd": str(tmp_path / "work"),
                "sandbox": "none",
                "task_id": None,
                "note": "exit code: 3",
            }

    asyncio.run(main())


@pytest.mark.brief("http legacy")
@ways
def test_an_image_arrives_as_an_image(tmp_path: Path, way: Negotiation) -> None:
    from PIL import Image

    png = io.BytesIO()
    Image.new("RGB", (7, 5), "red").save(png, "PNG")
    file = tmp_path / "work" / "a.png"
    file.parent.mkdir()
    file.write_bytes(png.getvalue())

    async def main() -> None:
        async with connected(tmp_path, way) as client:
            await client.list_tools()
            result = await client.call_tool("ReadImage", {"file_path": str(file)})
            (image,) = (block for block in result.content if isinstance(block, types.ImageContent))
            assert image.mime_type == "image/png"
            assert "png, 7 × 5" in text(result) and result.structured_content is None

    asyncio.run(main())


@pytest.mark.brief("sse auto")
@ways
def test_a_task_is_made_added_to_and_completed(tmp_path: Path, way: Negotiation) -> None:
    async def main() -> None:
        async with connected(tmp_path, way) as client:
            await client.list_tools()

            async def do(action: str, **more: Any) -> dict[str, Any]:
                result = await client.call_tool("TaskManager", {"action": action, "query": "", **more})
                assert not result.is_error, text(result)
                return result.structured_content or {}

            made = await do("create", text="release")
            await do("add", text="write the notes")
            await do("complete", step_id=1)
            step = {"step_id": 1, "text": "write the notes", "completed": True}
            task = {
                "task_id": made["task_id"],
                "name": "release",
                "current": True,
                "completed": False,
                "steps": [step],
            }
            assert (await do("list"))["tasks"] == [task]

    asyncio.run(main())


@pytest.mark.brief("sse legacy")
@ways
def test_an_unknown_tool_is_invalid_params(tmp_path: Path, way: Negotiation) -> None:
    async def main() -> None:
        async with connected(tmp_path, way) as client:
            with pytest.raises(MCPError) as caught:
                await client.call_tool("NoSuchTool", {})
            assert caught.value.code == types.INVALID_PARAMS

    asyncio.run(main())


@pytest.mark.brief("http 2026-07-28")
@ways
def test_a_wrong_argument_is_an_error_of_the_tool_that_names_it(tmp_path: Path, way: Negotiation) -> None:
    async def main() -> None:
        async with connected(tmp_path, way) as client:
            result = await client.call_tool("Bash", {"command": "true", "timeout": "soon"})
            assert result.is_error
            assert "timeout" in text(result)

    asyncio.run(main())


@ways
def test_a_person_is_asked_through_the_client(tmp_path: Path, way: Negotiation) -> None:
    async def main() -> None:
        async with connected(tmp_path, way, elicitation_callback=answer_tea) as client:
            await client.list_tools()
            result = await client.call_tool("AskUserQuestion", {"questions_json": QUESTION})
            answers = [{"question": "Tea or coffee?", "selected": "tea"}]
            assert result.structured_content == {"answers": answers, "outcome": "answered", "note": None}
            assert json.loads(text(result)) == {"answers": answers}

    asyncio.run(main())


@pytest.mark.brief("http legacy")
@ways
def test_a_person_may_decline(tmp_path: Path, way: Negotiation) -> None:
    async def main() -> None:
        async with connected(tmp_path, way, elicitation_callback=decline) as client:
            result = await client.call_tool("AskUserQuestion", {"questions_json": QUESTION})
            assert not result.is_error
            assert result.structured_content == {"answers": [], "outcome": "declined", "note": text(result)}

    asyncio.run(main())


@pytest.mark.brief("http 2026-07-28")
@ways
def test_a_client_that_cannot_ask_gets_the_questions_back(tmp_path: Path, way: Negotiation) -> None:
    async def main() -> None:
        async with connected(tmp_path, way) as client:
            result = await client.call_tool("AskUserQuestion", {"questions_json": QUESTION})
            assert not result.is_error
            assert "Tea or coffee?" in text(result)
            assert result.structured_content == {"answers": [], "outcome": "unanswered", "note": text(result)}

    asyncio.run(main())


@ways
def test_output_comes_as_progress_while_the_command_runs(tmp_path: Path, way: Negotiation) -> None:
    told: list[tuple[float, str]] = []
    proceed = tmp_path / "proceed"

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message or ""))
        if "one" in (message or ""):
            proceed.touch()  # the command continues once its first line has arrived

    async def main() -> None:
        path = shlex.quote(str(proceed))
        command = f"echo one; until [ -e {path} ]; do sleep 0.05; done; echo two"
        async with connected(tmp_path, way) as client:
            result = await client.call_tool("Bash", {"command": command}, progress_callback=note)
            assert text(result) == "one\ntwo\n"
        assert [progress for progress, _ in told] == sorted({progress for progress, _ in told})

    asyncio.run(main())


@ways
def test_log_messages_arrive_from_the_level_asked_for(tmp_path: Path, way: Negotiation) -> None:
    heard: list[tuple[str, Any]] = []

    async def hear(params: types.LoggingMessageNotificationParams) -> None:
        heard.append((params.level, params.data))

    async def main() -> None:
        options: dict[str, Any] = {"logging_callback": hear}
        if way.mode != "legacy":
            options["log_level"] = "notice"
        async with connected(tmp_path, way, *PROBE, **options) as client:
            if way.mode == "legacy":
                with pytest.warns(MCPDeprecationWarning):
                    await client.set_logging_level("notice")
            assert text(await client.call_tool("talk")) == "talked"
        assert heard == [("notice", {"middle": 1}), ("error", ["high"])]

    asyncio.run(main())


@ways
def test_a_cancelled_call_takes_its_command_with_it(tmp_path: Path, way: Negotiation) -> None:
    seconds = f"61.{WAYS.index(way)}73"  # an odd number: it marks our processes

    async def main() -> None:
        async with connected(tmp_path, way) as client:
            call = asyncio.create_task(client.call_tool("Bash", {"command": f"sleep {seconds}; true"}))
            assert await asyncio.to_thread(eventually, lambda: bool(processes_with(seconds)))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await asyncio.to_thread(eventually, lambda: not processes_with(seconds))
            assert text(await client.call_tool("Bash", {"command": "echo still here"})) == "still here\n"

    asyncio.run(main())


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_new_skill_is_told_to_a_session(tmp_path: Path, carrier: str) -> None:
    async def main() -> None:
        changed = asyncio.Event()

        async def hear(message: object) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                changed.set()

        async with connected(tmp_path, Negotiation(carrier, "legacy"), message_handler=hear) as client:
            assert "brew" not in await _catalogue(client)
            _add_skill(tmp_path, "brew")
            async with asyncio.timeout(PATIENCE):
                await changed.wait()
            assert "brew" in await _catalogue(client)

    asyncio.run(main())


@pytest.mark.brief("http 2026-07-28", "sse auto")
@pytest.mark.parametrize("way", [way for way in WAYS if way.mode != "legacy"], ids=str)
def test_a_new_skill_is_told_to_a_subscription(tmp_path: Path, way: Negotiation) -> None:
    async def main() -> None:
        async with connected(tmp_path, way) as client:
            assert "brew" not in await _catalogue(client)
            async with client.listen(tools_list_changed=True) as news:
                assert news.honored.tools_list_changed is True
                _add_skill(tmp_path, "brew")
                async with asyncio.timeout(PATIENCE):
                    assert await anext(aiter(news)) == ToolsListChanged()
                assert "brew" in await _catalogue(client)

    asyncio.run(main())


@pytest.mark.brief("stdio 2026-07-28", "http legacy")
@ways
def test_eight_calls_at_once_are_answered_each_with_its_own(tmp_path: Path, way: Negotiation) -> None:
    async def main() -> None:
        async with connected(tmp_path, way) as client:
            began = time.monotonic()
            calls = (client.call_tool("Bash", {"command": f"sleep 1; echo {n}"}) for n in range(8))
            assert [text(result) for result in await asyncio.gather(*calls)] == [f"{n}\n" for n in range(8)]
            assert time.monotonic() - began < 8

    asyncio.run(main())


@ways
def test_a_large_text_survives_both_ways(tmp_path: Path, way: Negotiation) -> None:
    said = "é" * (2**18 if way.carrier == "sse" else 2**20)  # this client accepts events of up to 1 MiB

    async def main() -> None:
        async with connected(tmp_path, way, *PROBE) as client:
            assert text(await client.call_tool("echo", {"text": said})) == said

    asyncio.run(main())


@over_stdio
def test_closing_the_client_ends_everything_before_it_would_kill(
    tmp_path: Path, way: Negotiation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp.client.stdio, "PROCESS_TERMINATION_TIMEOUT", PATIENCE)  # then it sends SIGTERM
    seconds = f"62.{WAYS.index(way)}73"
    before = children(os.getpid())

    async def main() -> float:
        async with connected(tmp_path, way) as client:
            await client.call_tool("BackgroundBash", {"command": f"(setsid sleep {seconds} &); sleep {seconds}"})
            running = asyncio.create_task(client.call_tool("Bash", {"command": f"sleep {seconds}"}))
            assert await asyncio.to_thread(eventually, lambda: len(processes_with(seconds)) >= 3)
            began = time.monotonic()
        with pytest.raises(MCPError):
            await running
        return time.monotonic() - began

    taken = asyncio.run(main())
    assert taken < PATIENCE
    assert not processes_with(seconds)
    assert children(os.getpid()) <= before


def test_an_idle_server_ends_with_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp.client.stdio, "PROCESS_TERMINATION_TIMEOUT", PATIENCE)  # then it sends SIGTERM

    async def main() -> float:
        async with connected(tmp_path, Negotiation("stdio", "auto")) as client:
            await client.list_tools()
            began = time.monotonic()
        return time.monotonic() - began

    assert asyncio.run(main()) < PATIENCE


def _add_skill(folder: Path, name: str) -> None:
    skill = folder / "home" / ".claude" / "skills" / name
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(SKILL.format(name))


async def _catalogue(client: Client) -> str:
    listed = await client.list_tools(cache_mode="refresh")
    return next(tool.description or "" for tool in listed.tools if tool.name == "InvokeSkill")
