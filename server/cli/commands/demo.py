"""Call every tool over stdio, then some over HTTP+SSE and Streamable HTTP (`toolgate demo`).

The tools work on data made in a temporary folder. The exit code is 0 only if all of it worked.
"""

import asyncio
import contextlib
import os
import shlex
import shutil
import stat
import struct
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import msgspec

from toolgate.server.base.progress import TerminalProgress, terminal_progress
from toolgate.server.cli.mcp_client import http
from toolgate.server.cli.mcp_client.client import McpClient, McpClientError, NotificationHandler, spawn_server
from toolgate.server.cli.terminal.style import Style, choose_style
from toolgate.server.config.feature_rows import FEATURES, ROOM
from toolgate.server.config.load import Config
from toolgate.server.protocol.request_meta import SERVER

WIDTH = 78  # characters of a line shown
PAGE = """<!doctype html><html><head><title>Lighthouses</title></head><body><nav>Home | About</nav><article>
<h1>Lighthouses</h1><p>A lighthouse is a tower that shows a light to ships at night. The first large one stood at
Alexandria and was seen from fifty kilometres away, as <a href="/pharos">travellers reported</a>.</p>
<table><tr><th>Tower</th><th>Metres</th></tr><tr><td>Pharos</td><td>100</td></tr><tr><td>Jeddah</td><td>133</td></tr>
</table><p>Today most of them are automatic, and some are museums that people visit for the view.</p></article></body>
</html>"""
STORIES = {
    "hits": [
        {"objectID": "1", "title": "How a Fresnel lens works", "url": "https://example.org/fresnel", "story_text": ""},
        {"objectID": "2", "title": "Keepers of the light", "url": "https://example.org/keepers", "story_text": ""},
    ]
}


class DemoError(Exception):
    """A step of the tour did not do what it should."""


class Screen:
    """Print the tour, in colour on a terminal that wants it. `progress` shows what is being waited for."""

    def __init__(self, style: Style, progress: TerminalProgress) -> None:
        self._paint = style.paint
        self.progress = progress

    @contextmanager
    def chapter(self, title: str) -> Generator[None]:
        self._print(f"\n{self._paint('1;36', title)}\n{self._paint('2', '─' * min(len(title), WIDTH))}")
        with self.progress.show(title):
            yield

    def print_step(self, what: str, took: float) -> None:
        self._print(f"{self._paint('32', '✓')} {self._paint('1', what)} {self._paint('2', f'{took * 1000:.0f} ms')}")

    def print_text(self, text: str, lines: int = 6) -> None:
        shown = [line for line in text.splitlines() if line.strip()]
        for line in shown[:lines]:
            self._print("    " + (line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"))
        if len(shown) > lines:
            self._print(self._paint("2", f"    … {len(shown) - lines} more lines"))

    def print_failure(self, what: str) -> None:
        self._print(f"{self._paint('31', '✗')} {what}")

    async def answer(self, _method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Take the first choice of every question."""
        properties = params["requestedSchema"]["properties"]
        content = {name: field["enum"][0] for name, field in properties.items() if "enum" in field}
        self.print_text(f"the client asks its person: {params['message']} → {', '.join(content.values())}")
        return {"action": "accept", "content": content}

    def _print(self, line: str) -> None:
        self.progress.clear()
        print(line)


class Tour:
    """One visit: `client` talks to the server, `notes` are its notifications, `work` is the workspace."""

    client: McpClient

    def __init__(self, screen: Screen, work: Path, web: str, notes: list[str]) -> None:
        self.screen = screen
        self.work = work
        self.web = web
        self.notes = notes

    def greet(self, client: McpClient, hello: dict[str, Any], begun: float) -> None:
        """Go on with `client`; `hello` is the server's first answer."""
        self.client = client
        who = hello.get("serverInfo") or hello["_meta"][SERVER]
        revision = hello.get("protocolVersion") or hello["supportedVersions"][0]
        self.screen.print_step(f"{who['name']} {who['version']}, revision {revision}", time.perf_counter() - begun)

    async def call_tool(self, name: str, expect: str, lines: int = 6, **arguments: Any) -> dict[str, Any]:
        """Call a tool that must work, show what came, and check that `expect` is in it."""
        begun = time.perf_counter()
        step = f"{name} {' '.join(f'{key}={_shorten(value)}' for key, value in arguments.items())}"
        with self.screen.progress.show(step):
            result = await self.client.call(name, arguments, _meta={"progressToken": name})
        text = "\n".join(_format_block(block) for block in result["content"])
        if result.get("isError") or expect not in text:
            raise DemoError(f"{step}: expected {expect!r}, got: {text[:500]}")
        self.screen.print_step(step, time.perf_counter() - begun)
        self.screen.print_text(text, lines)
        return result


async def run_tour(config: Config) -> int:
    """Give the tour with a server that has these options; 0 when all worked."""
    screen = Screen(choose_style(sys.stdout, config.environment), terminal_progress(config.environment))
    folder = _make_folder()
    begun = time.perf_counter()
    try:
        await _visit(config, screen, folder)
    except (DemoError, McpClientError, TimeoutError, OSError) as error:
        screen.print_failure(str(error) or type(error).__name__)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    took = time.perf_counter() - begun
    print(f"\nAll of it worked, in {took:.1f} s. Connect a client: toolgate install claude-code")
    return 0


def _make_folder() -> Path:
    """Make a folder for the tour. As root's server has users of their own run commands, they can pass through it; some
    systems close root's folder for temporary files to them."""
    if os.geteuid() != 0:
        return Path(tempfile.mkdtemp(prefix="toolgate-demo-"))
    places = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path("/tmp")]  # noqa: S108  # mkdtemp makes it ours alone
    place = next((each for each in places if _is_passable(each)), places[0])
    folder = Path(tempfile.mkdtemp(prefix="toolgate-demo-", dir=place))
    folder.chmod(0o711)
    return folder


def _is_passable(folder: Path) -> bool:
    """Return whether every user can pass through the folder and those above."""
    real = folder.resolve()
    return real.is_dir() and all(each.stat().st_mode & stat.S_IXOTH for each in (real, *real.parents))


async def _visit(config: Config, screen: Screen, folder: Path) -> None:
    work = folder / "work"
    work.mkdir(mode=0o700)
    notes: list[str] = []

    def note(method: str, params: dict[str, Any]) -> None:
        text = params.get("message") or params.get("data") or _format_progress(params)
        notes.append(": ".join(filter(None, (method.removeprefix("notifications/"), text))))

    async with small_web() as web:
        own = ["--state", str(folder / "state"), "--allow-private", "127.0.0.1", "--engines", f"hackernews={web}"]
        own += config.to_flags(without=("tools",))  # the tour shows all
        here, environment = [*own, "--workspace", str(work)], config.server_environment
        visit = Tour(screen, work, web, notes)
        begun = time.perf_counter()
        with screen.chapter("stdio: a client starts the server and talks to it"):
            spawning = spawn_server(here, environment, note=note, question=screen.answer)
            async with spawning as (client, hello):
                visit.greet(client, hello, begun)
                for title, chapter in CHAPTERS.items():
                    with screen.chapter(title):
                        await chapter(visit)
        async with http.spawn_http_server(own, environment) as base:
            for title, connect in over_http(base, note).items():
                begun = time.perf_counter()
                with screen.chapter(title):
                    async with connect() as (client, hello):
                        visit.greet(client, hello, begun)
                        await _visit_over_http(visit)
                    screen.print_text("the client has disconnected")
        for row in FEATURES:
            if row.demo:
                await resolve_name(f"{ROOM}.{row.demo}")(visit, folder, environment)


def _format_progress(params: dict[str, Any]) -> str:
    return f"{params['progress']:.2g}" if "progress" in params else ""


def over_http(
    base: str, note: NotificationHandler
) -> dict[str, Callable[[], AbstractAsyncContextManager[http.ConnectedClient]]]:
    """Return a chapter for each transport over HTTP: its title, and how to connect."""
    mcp, sse = f"{base}/mcp", f"{base}/sse"
    return {
        f"HTTP+SSE, {sse}": lambda: http.connect_sse(sse, note=note),
        f"Streamable HTTP with sessions, {mcp}": lambda: http.connect(mcp, "2025-11-25", note=note),
        f"Streamable HTTP without sessions, {mcp}": lambda: http.connect(mcp, "2026-07-28", note=note),
    }


async def _visit_over_http(tour: Tour) -> None:
    """Call some of the same tools over HTTP."""
    await _show_offer(tour)
    await tour.call_tool("Bash", "hello over HTTP", command="echo hello over HTTP")
    await tour.call_tool("BackgroundBash", "sandbox: ", command="true")
    await tour.call_tool("TaskManager", "Feed the gulls", action="create", query="", text="Feed the gulls")
    tour.notes.clear()
    await tour.call_tool("Bash", "ready", command="for s in ready steady go; do echo $s; sleep 0.15; done")
    if not any(note.startswith("progress") for note in tour.notes):
        raise DemoError("no progress was streamed")
    tour.screen.print_text("streamed while it ran → " + "; ".join(" ".join(note.split()) for note in tour.notes))
    await _show_errors(tour)


async def _show_offer(tour: Tour) -> None:
    begun = time.perf_counter()
    tools = (await tour.client.request("tools/list"))["tools"]
    size = len(msgspec.json.encode([[tool["name"], tool["description"], tool["inputSchema"]] for tool in tools]))
    tour.screen.print_step(f"{len(tools)} tools, {size:,} bytes of a model's context", time.perf_counter() - begun)
    names = [tool["name"] for tool in tools]
    tour.screen.print_text(", ".join(names[:7]) + ",\n" + ", ".join(names[7:]))


async def _show_shell(tour: Tour) -> None:
    await tour.call_tool("Bash", "hello from", command="echo hello from $(uname -s); mkdir -p notes && cd notes && pwd")
    await tour.call_tool("Bash", "notes", command="basename $PWD  # the directory sticks")
    lines = "for i in 1 2 3; do echo line $i; sleep 0.2; done; sleep 60"
    started = await tour.call_tool("BackgroundBash", "", command=lines)
    task_id = started["structuredContent"]["task_id"]
    await tour.call_tool("ListBgTasks", "running")
    await asyncio.sleep(0.8)
    await tour.call_tool("ReadBgOutput", "line 3", task_id=task_id)
    await tour.call_tool("KillBgTask", "", task_id=task_id)


async def _show_documents(tour: Tour) -> None:
    picture = tour.work / "sunset.bmp"
    picture.write_bytes(bitmap(96, 64))
    await tour.call_tool("ReadImage", "png", file_path=str(picture))
    await tour.call_tool("ReadDocs", "Pharos", 10, url=f"{tour.web}/lighthouses")
    await tour.call_tool("WebSearch", "Fresnel", query="lighthouse lens")


async def _show_workflow(tour: Tour) -> None:
    await tour.call_tool("TaskManager", "Repair", action="create", query="", text="Repair the lamp")
    await tour.call_tool("TaskManager", "Step 1", action="add", query="", text="Order a bulb")
    await tour.call_tool("TaskManager", "", action="complete", query="", step_id=1)
    await tour.call_tool("TaskManager", "Order a bulb", action="list", query="")
    await tour.call_tool("PlanMode", "", action="enter", goal="Paint the tower")
    refused = (await tour.client.call("Bash", {"command": "mkdir tower"}))["content"][0]["text"]
    if "while a plan is active" not in refused:
        raise DemoError("Bash made a folder although a plan is active")
    tour.screen.print_text("Bash while planning → " + refused)
    await tour.call_tool("PlanMode", "", action="exit", plan_file="plan.md")
    question = {"question": "Which colour?", "options": ["red and white", "plain white"]}
    await tour.call_tool("AskUserQuestion", "red and white", questions_json=msgspec.json.encode([question]).decode())
    await tour.call_tool("InvokeSkill", "", 4, skill_name="toolgate-tools")
    callback: dict[str, Any] = {"message": "look at the sea", "delay_seconds": 1, "repeat_count": 1}
    await tour.call_tool("SetCallback", "Callback scheduled", action="set", **callback)
    async with asyncio.timeout(10):
        while not any("look at the sea" in note for note in tour.notes):  # noqa: ASYNC110  # the note sets no event
            await asyncio.sleep(0.05)
    tour.screen.print_text("the server, on its own → " + next(note for note in tour.notes if "look at the sea" in note))
    await tour.call_tool("SetCallback", "Meanwhile", action="list")


async def _show_errors(tour: Tour) -> None:
    begun = time.perf_counter()
    wrong = await tour.client.call("Bash", {"comand": "ls"})
    if not wrong.get("isError"):
        raise DemoError("a misspelt argument was accepted")
    tour.screen.print_step("a misspelt argument, explained so that a model can fix it", time.perf_counter() - begun)
    tour.screen.print_text(wrong["content"][0]["text"])
    begun = time.perf_counter()
    try:
        await tour.client.call("NoSuchTool", {})
    except McpClientError as fault:
        tour.screen.print_step(f"an unknown tool: {fault}", time.perf_counter() - begun)
    else:
        raise DemoError("an unknown tool was accepted")


async def _show_cancel(tour: Tour) -> None:
    begun = time.perf_counter()
    sleeper = shlex.quote(str(tour.work / "sleeper"))
    command = f"echo $$ >{sleeper}; exec sleep 86400"
    id, answer = tour.client.send_request("tools/call", {"name": "Bash", "arguments": {"command": command}})
    await tour.client.call("Bash", {"command": f"until [ -s {sleeper} ]; do sleep 0.02; done"})
    tour.client.notify("notifications/cancelled", {"requestId": id, "reason": "the tour goes on"})
    look = f"sleep 0.3; kill -0 $(cat {sleeper}) && echo it goes on || echo nothing left of it"
    gone = await tour.client.call("Bash", {"command": f"{{ {look}; }} 2>/dev/null"})
    text = gone["content"][0]["text"]
    if answer.done() or "nothing left" not in text:
        raise DemoError(f"a cancelled command went on: {text}")
    tour.screen.print_step("a command that would sleep for a day, cancelled", time.perf_counter() - begun)
    tour.screen.print_text(text)


CHAPTERS: dict[str, Callable[[Tour], Awaitable[None]]] = {
    "The tools": _show_offer,
    "Shell and background tasks": _show_shell,
    "Images, pages, search": _show_documents,
    "Tasks, plans, questions, skills, callbacks": _show_workflow,
    "Errors are explained": _show_errors,
    "Cancelling a command": _show_cancel,
}


def _format_block(block: dict[str, Any]) -> str:
    if block["type"] == "text":
        return str(block["text"])
    return f"[{block['mimeType']}, {len(block['data']):,} characters]"


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 48 else text[:47] + "…"


@contextlib.asynccontextmanager
async def small_web() -> AsyncGenerator[str, None]:
    """Serve a page and a search engine's answer on loopback; yields the base URL."""
    stories = msgspec.json.encode(STORIES)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await reader.readuntil(b"\r\n\r\n")
            is_page = b" /lighthouses" in head.split(b"\r\n")[0]
            body, kind = (PAGE.encode(), "text/html; charset=utf-8") if is_page else (stories, "application/json")
            answer = (
                f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(answer.encode() + body)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def bitmap(width: int, height: int) -> bytes:
    """Return a sky from blue to orange, as an uncompressed 24-bit BMP."""
    shares = (y / height for y in range(height))
    rows = [bytes((int(60 + 150 * s), int(140 - 40 * s), int(255 - 200 * s))) * width for s in shares]
    pixels = b"".join(row + b"\0" * (-len(row) % 4) for row in rows)
    header = struct.pack("<2sIHHI", b"BM", 54 + len(pixels), 0, 0, 54)
    return header + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(pixels), 2835, 2835, 0, 0) + pixels
