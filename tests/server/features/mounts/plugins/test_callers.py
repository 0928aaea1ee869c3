"""An isolated plugin has one process for all callers, and each call has what belongs to its caller."""

import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pytest

from tests.clients.raw_client import eventually
from tests.clients.raw_http_client import site
from tests.server.auth.minted_tokens import Signed, asked
from tests.servers.isolated_plugins import Start, isolated, plugin_folder

BODY = """
    INSIDE = 0
    BOTH = asyncio.Event()

    @tool
    async def meet(ctx: Context) -> dict[str, object]:
        "Wait for the other caller, then use what belongs to this one."
        global INSIDE
        INSIDE += 1
        if INSIDE == 2:
            BOTH.set()
        await BOTH.wait()
        await ctx.todos.create(ctx.principal)
        await ctx.workspace.write_file("mine.txt", ctx.principal.encode(), suffix=".txt")
        return {
            "principal": ctx.principal,
            "todos": [todo.name for todo in await ctx.todos.all()],
            "file": (await ctx.workspace.read_file(str(ctx.workspace.root / "mine.txt"), 100, anywhere=False)).decode(),
            "pid": os.getpid(),
        }

    @tool
    async def fetch(ctx: Context, url: str, times: int) -> str:
        "Fetch a page as often."
        pages = await asyncio.gather(*(ctx.web.fetch(url) for _ in range(times)))
        return pages[0].body.decode()

    @tool(scope="shop:write")
    async def buy() -> str:
        "Buy something."
        return "bought"
"""


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[Signed]:
    """Start a server with sign-in, whose plugin is isolated."""
    options = ("--auth", "oauth", "-p", str(plugin_folder(tmp_path, BODY)), "--isolate-plugins")
    private = ("--sandbox", "none", "--allow-private", "127.0.0.1")
    with site(tmp_path / "server", *options, *private, workspace=False) as listening:
        yield Signed(listening)


def call(
    signed: Signed, who: str, tool: str, arguments: Mapping[str, object] = MappingProxyType({}), **how: str
) -> tuple[int, Any]:
    params = {"name": tool, "arguments": dict(arguments)}
    response, _, answered = asked(signed, signed.token(who, **how), "tools/call", params)
    return response.status, answered


class _Pages(http.server.BaseHTTPRequestHandler):
    """Answer at once, but for /slow, which waits for `is_over`."""

    is_over = threading.Event()
    waiting: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        if self.path == "/slow":
            self.waiting.append(self.path)
            self.is_over.wait(60)
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"page")

    def log_message(self, *words: object) -> None: ...


@pytest.fixture
def pages() -> Iterator[str]:
    """Yield the address of pages."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as listening:
        threading.Thread(target=listening.serve_forever).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        _Pages.is_over.set()
        listening.shutdown()


def test_one_who_waits_for_slow_pages_holds_up_nobody_else(signed: Signed, pages: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(call, signed, "ada", "fetch", {"url": f"{pages}/slow", "times": 12})
        assert eventually(lambda: bool(_Pages.waiting))
        _, answered = call(signed, "bob", "fetch", {"url": f"{pages}/quick", "times": 1})
        assert answered["result"]["content"][0]["text"] == "page"
        assert not slow.done()
        _Pages.is_over.set()
        assert slow.result()[1]["result"]["content"][0]["text"] == "page"


def test_two_people_who_call_at_once_have_each_their_own(signed: Signed) -> None:
    with ThreadPoolExecutor(2) as threads:
        answers = threads.map(lambda who: call(signed, who, "meet"), ("ada", "bob"))
    ada, bob = (json.loads(answered["result"]["content"][0]["text"]) for _, answered in answers)
    assert ada["pid"] == bob["pid"] and ada["principal"] != bob["principal"]
    for each in (ada, bob):
        assert (each["todos"], each["file"]) == ([each["principal"]], each["principal"])


def test_a_call_needs_the_scope_of_its_tool(signed: Signed) -> None:
    status, _ = call(signed, "ada", "buy", scope="tools:plugins")
    assert status == 403
    status, answered = call(signed, "ada", "buy", scope="shop:write")
    assert (status, answered["result"]["content"][0]["text"]) == (200, "bought")


@pytest.mark.parametrize("rule", ["plugin:it", "buy", "scope:shop:write"])
def test_a_rule_for_a_plugin_fits_its_process(start: Start, tmp_path: Path, rule: str) -> None:
    server = isolated(start, tmp_path, BODY, "--deny", rule)
    names = {tool["name"] for tool in server.request("tools/list")["tools"]}
    assert "buy" not in names and ("meet" in names) == (rule != "plugin:it")
