"""An isolated plugin has one process for all callers, and each call has what belongs to its caller."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

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

    @tool(scope="shop:write")
    async def buy() -> str:
        "Buy something."
        return "bought"
"""


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[Signed]:
    """Start a server with sign-in, whose plugin is isolated."""
    options = ("--auth", "oauth", "-p", str(plugin_folder(tmp_path, BODY)), "--isolate-plugins")
    with site(tmp_path / "server", *options, "--sandbox", "none", workspace=False) as listening:
        yield Signed(listening)


def call(signed: Signed, who: str, tool: str, **how: str) -> tuple[int, Any]:
    response, _, answered = asked(signed, signed.token(who, **how), "tools/call", {"name": tool, "arguments": {}})
    return response.status, answered


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
