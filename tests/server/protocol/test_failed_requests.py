"""A request that fails is freed at once, however it fails: its sender could fill the memory with a few of them."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, Refusal, Server, eventually, served
from tests.clients.raw_http_client import NAMED, Http, site, spoken
from tests.server.features.nodes.nodes import running_node
from tests.servers import uncollected_server
from tests.servers.isolated_plugins import needs_isolation, plugin_folder
from tests.servers.uncollected_server import LARGE, ask_holders
from toolgate.tools.api.tool import MAX_ARGUMENT

ASKED: dict[str, Any] = {"roots": {}}  # the client answers with an error
TEXT = "x" * (MAX_ARGUMENT // 2)  # built-in tools take it
assert len(TEXT) >= LARGE

PLUGIN = """
    @tool
    async def refuse(text: str) -> str:
        "Refuse."
        raise ToolError("no")

    @tool
    async def refuse_later(text: str) -> str:
        "Refuse after a while."
        await asyncio.sleep(0.01)
        raise ToolError("no")

    @tool
    def refuse_in_thread(text: str) -> str:
        "Refuse."
        raise ToolError("no")

    @tool
    async def refuse_in_group(text: str) -> str:
        "Refuse in a task group."
        async with asyncio.TaskGroup() as group:
            group.create_task(refuse.function.call(text=text))
        return ""

    @tool
    async def fail(text: str) -> str:
        "Fail."
        try:
            raise LookupError("one")
        except LookupError as error:
            raise ValueError("two") from error

    @tool(as_task=True)
    async def fail_as_task(text: str) -> str:
        "Fail."
        raise ValueError("no")

    @tool
    async def fail_in_group(text: str) -> str:
        "Fail in a task group."
        async with asyncio.TaskGroup() as group:
            group.create_task(fail.function.call(text=text))
            await asyncio.sleep(9)
        return ""

    @tool
    async def refuse_shared(text: str) -> str:
        "Refuse with an error that a future of this call holds."
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(ToolError("no"))
        return await answer

    @tool
    async def ask(text: str, ctx: Context) -> str:
        "Ask the client."
        return str(await ctx.roots())

    @tool
    async def pass_over(text: str, ctx: Context) -> str:
        "Pass over failures."
        for attempt in (refuse_in_thread, refuse_in_group, ask):
            try:
                given = {"text": text, "ctx": ctx} if attempt is ask else {"text": text}
                await attempt.function(given, ctx)
            except ToolError:
                pass
        return ""

    @tool
    async def return_rubbish(text: str):
        "Return what JSON can't hold."
        return object()

    @prompt
    async def refused(text: str) -> str:
        "Refuse."
        raise ToolError("no")

    @refused.completion("text")
    async def complete(value: str) -> list[str]:
        raise ToolError("no")

    @resource("probe://{name}")
    async def missing(name: str) -> str:
        "Refuse."
        raise NotFound("no")
"""


def call(tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "tools/call", {"name": tool, "arguments": arguments}


ERRORS = {  # requests that end in an error of JSON-RPC
    "unknown method": ("nope", {"x": TEXT}),
    "unknown tool": call("nope", x=TEXT),
    "a tool's name that is none": ("tools/call", {"name": {}, "arguments": {"x": TEXT}}),
    "arguments that are none": ("tools/call", {"name": "Bash", "arguments": TEXT}),
    "unknown resource": ("resources/read", {"uri": TEXT}),
    "a refused resource": ("resources/read", {"uri": f"probe://{TEXT}"}),
    "a file's resource": ("resources/read", {"uri": f"file:///{TEXT}"}),
    "unknown prompt": ("prompts/get", {"name": "nope", "arguments": {"x": TEXT}}),
    "a refused prompt": ("prompts/get", {"name": "refused", "arguments": {"text": TEXT}}),
    "wrong arguments of a prompt": ("prompts/get", {"name": "refused", "arguments": {"x": TEXT}}),
    "completion": ("completion/complete", {"ref": {"type": "ref/prompt", "name": TEXT}, "argument": {}}),
    "a refused completion": (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "refused"}, "argument": {"name": "text", "value": TEXT}},
    ),
    "cursor": ("tools/list", {"cursor": TEXT}),
    "event": ("events/poll", {"name": TEXT}),
    "task": ("tasks/get", {"taskId": TEXT}),
    "fail": call("fail", text=TEXT),
    "fail_in_group": call("fail_in_group", text=TEXT),
    "fail_as_task": call("fail_as_task", text=TEXT),
    "return_rubbish": call("return_rubbish", text=TEXT),
}
REFUSALS = {  # calls whose result is an error of the tool
    "wrong argument": call("Bash", nope=TEXT),
    "long argument": call("Bash", command=TEXT * 3),
    "page": call("ReadDocs", url=f"http://127.0.0.1/{TEXT}"),
    "picture": call("ReadImage", file_path=f"/{TEXT}"),
    "file outside": call("Write", file_path="/proc/x", content=TEXT),
    "file not read": call("Write", file_path="there", content=TEXT),
    "change of nothing": call("Edit", file_path="there", old_string=TEXT, new_string="y"),
    "skill": call("InvokeSkill", skill_name=TEXT),
    **{
        tool: call(tool, text=TEXT)
        for tool in ("refuse", "refuse_later", "refuse_in_thread", "refuse_in_group", "refuse_shared")
    },
}
OTHERS = {  # calls whose result differs by the revision
    "ask": call("ask", text=TEXT),
    "pass_over": call("pass_over", text=TEXT),
}
UNREADABLE = {  # bodies that are no message
    "not JSON": b"{" + TEXT.encode(),
    "not UTF-8": b'{"jsonrpc": "2.0", "id": 1, "method": "\xff' + TEXT.encode() + b'"}',
    "too many values": b'{"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"x": [' + b"1," * LARGE + b"1]}}",
    "a batch": b'[{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "' + TEXT.encode() + b'"}}]',
    "no version": b'{"id": 1, "method": "' + TEXT.encode() + b'"}',
    "a long id": b'{"jsonrpc": "2.0", "id": "' + TEXT.encode() + b'", "method": "ping"}',
    "an answer to nothing": b'{"jsonrpc": "2.0", "id": 7, "result": {"x": "' + TEXT.encode() + b'"}}',
    "notification": b'{"jsonrpc": "2.0", "method": "x", "params": {"x": "' + TEXT.encode() + b'"}}',
    "not initialized": b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"x": "'
    + TEXT.encode()
    + b'"}}',
    "too large": b"x" * (16 * 2**20 + 1),
}
HEADERS: list[dict[str, str]] = [
    {},
    {"mcp_session_id": "nope"},
    {"content_type": "text/plain"},
    {"accept": "text/html"},
    {"mcp_protocol_version": "1900-01-01"},
    {"mcp_protocol_version": STATELESS, "mcp_method": "nope"},
]
ROUTES = ("stdio", "http", "sse", STATELESS)


def mark(value: Any, name: str) -> Any:
    """Return the value with the name of its failure at the end of its texts."""
    match value:
        case dict():
            return {key: mark(each, name) for key, each in value.items()}
        case str() if len(value) >= LARGE:
            return f"{value} {name}"
        case _:
            return value


def command(folder: Path) -> tuple[str, ...]:
    return sys.executable, str(Path(uncollected_server.__file__)), str(folder / "holders.sock")


@contextlib.contextmanager
def opened(route: str, folder: Path, *options: str) -> Iterator[Server]:
    """Yield a client of a server without the garbage collector."""
    options = ("-p", str(plugin_folder(folder, PLUGIN)), "-p", "builtin:files", *options)
    with contextlib.ExitStack() as stack:
        if route == "stdio":
            yield stack.enter_context(served(folder, *options, capabilities=ASKED, command=command(folder)))
            return
        listening = stack.enter_context(site(folder, *options, command=command(folder), workspace=False))
        transport, revision = ("http", STATELESS) if route == STATELESS else (route, "2025-11-25")
        yield stack.enter_context(spoken(listening, transport, revision=revision, capabilities=ASKED))


def send_failures(server: Server) -> None:
    server.call("Bash", {"command": "touch there"})
    for name, (method, params) in ERRORS.items():
        if fits_headers(server, method, params):
            with pytest.raises(Refusal):
                server.request(method, mark(params, name))
    for name, (method, params) in REFUSALS.items():
        assert server.request(method, mark(params, name)).get("isError"), name
    for name, (method, params) in OTHERS.items():
        server.request(method, mark(params, name))
    server.call("PlanMode", {"action": "status"})  # the last request of a connection is over


def fits_headers(server: Server, method: str, params: dict[str, Any]) -> bool:
    """Return whether a header can repeat what it must of the request."""
    return server.revision != STATELESS or len(params.get(NAMED.get(method, ""), "")) < LARGE


def find_holders(folder: Path) -> list[str]:
    """Return what holds texts of failed requests."""
    found: list[str] = []

    def is_freed() -> bool:
        found[:] = ask_holders(folder / "holders.sock")
        return not found

    eventually(is_freed)
    return found


@pytest.mark.brief("stdio", "http", STATELESS)
@pytest.mark.parametrize("route", ROUTES)
def test_a_failed_request_is_freed_without_the_garbage_collector(tmp_path: Path, route: str) -> None:
    with opened(route, tmp_path) as server:
        send_failures(server)
        assert find_holders(tmp_path) == []


@needs_isolation
def test_a_failed_call_of_an_isolated_plugin_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    with opened("http", tmp_path, "--isolate-plugins") as server:
        send_failures(server)
        assert find_holders(tmp_path) == []


def test_a_failed_call_at_a_node_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    with (
        running_node(tmp_path / "node", "--sandbox", "none", "--browser", "none") as node,
        opened("http", tmp_path, "--node", str(node.address)) as server,
    ):
        send_failures(server)
        node.kill()
        server.error("Write", {"file_path": "x", "content": TEXT})
        server.error("Write", {"file_path": "x", "content": TEXT})
        assert find_holders(tmp_path) == []


def test_an_unreadable_request_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    with site(tmp_path, command=command(tmp_path), workspace=False) as listening, spoken(listening, "http") as server:
        assert isinstance(server, Http)
        sessions = {"mcp_session_id": server.session or "", "mcp_protocol_version": "2025-11-25"}
        for headers in (sessions, *HEADERS):
            for body in UNREADABLE.values():
                with contextlib.suppress(ConnectionError):  # of a body that is too large
                    listening.ask("POST", "/mcp", body, **headers)
        assert find_holders(tmp_path) == []


def test_an_unreadable_line_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    with opened("stdio", tmp_path) as server:
        for body in UNREADABLE.values():
            server.write(body + b"\n")
        server.request("ping")
        assert find_holders(tmp_path) == []
