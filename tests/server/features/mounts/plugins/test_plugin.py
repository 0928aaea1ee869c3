"""Isolated plugins behave like plugins in the server's process."""

import json
import re
import sqlite3
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import ROOT, STATELESS, Refusal, Server, eventually
from tests.clients.raw_http_client import site, spoken
from tests.servers.isolated_plugins import Start, hosts, isolated, plugin_folder

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("echo", {"text": "é\ud83d\ude00 words"}),
    ("echo", {}),
    ("echo", {"text": 1, "more": 2}),
    ("plain", {"word": "word"}),
    ("typed", {"count": 3.0, "ratio": 1, "kind": "b", "tags": ["x"], "point": {"x": 1, "y": 2}}),
    ("typed", {"count": 10**30}),
    ("typed", {"count": 1, "point": {"x": "no"}}),
    ("where", {}),
    ("numbers", {}),
    ("raw", {"word": "word"}),
    ("raw", {"word": "WORD"}),
    ("everything", {}),
    ("refuse", {}),
    ("refuse_in_group", {}),
    ("crash", {}),
    ("leave", {}),
    ("odd", {}),
    ("large", {"size": 300_000}),
    ("change", {}),
    ("mirror", {"region": "eu", "place": {"town": "x"}}),
    ("drops_its_own_task", {}),
    ("raises_odd", {}),
    ("interrupts", {}),
    ("exits_in_group", {}),
    ("runs_dry", {}),
    ("unencodable", {}),
    ("ask", {}),
    ("blocks", {"seconds": 0.01}),
]


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("tools/list", {}),
    ("prompts/list", {}),
    ("prompts/get", {"name": "greeting", "arguments": {"name": "Ada", "times": "2"}}),
    ("prompts/get", {"name": "greeting", "arguments": {"name": "Ada", "times": "two"}}),
    ("prompts/get", {"name": "greeting", "arguments": {"nobody": "x"}}),
    ("prompts/get", {"name": "greeting"}),
    ("prompts/get", {"name": "conversation"}),
    ("prompts/get", {"name": "reluctant"}),
    ("prompts/get", {"name": "broken_prompt"}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    *[
        ("resources/read", {"uri": f"test://{name}"})
        for name in ("text", "bytes", "several", "json", "crash", "refused")
    ],
    ("resources/read", {"uri": "note://one"}),
    ("resources/read", {"uri": "note://none"}),
    *[
        ("completion/complete", {"ref": ref, "argument": {"name": name, "value": "w"}})
        for name in ("name", "tone", "none")
        for ref in ({"type": "ref/prompt", "name": "greeting"}, {"type": "ref/resource", "uri": "note://{name}"})
    ],
]


def outcome(server: Server, method: str, params: dict[str, Any]) -> Any:
    """Return the result, or the error without its random reference."""
    try:
        found = server.request(method, params)
    except Refusal as refusal:
        return refusal.code, re.sub("reference [0-9a-f]+", "reference", refusal.message), refusal.data
    found.pop("requestState", None)  # sealed anew each time
    return found


def both(start: Start, folder: Path, **how: Any) -> list[Server]:
    """Return two servers with the tests' plugins: in its own process, and isolated."""
    return [start("-p", str(ROOT / "tests" / "plugins"), *options, **how) for options in ((), ("--isolate-plugins",))]


@pytest.mark.brief("2025-11-25", STATELESS)
@pytest.mark.parametrize("revision", ["2025-03-26", "2025-11-25", STATELESS])
def test_a_client_sees_the_same_of_a_plugin_in_another_process(start: Start, tmp_path: Path, revision: str) -> None:
    here, there = both(start, tmp_path, revision=revision)

    calls = [("tools/call", {"name": name, "arguments": arguments}) for name, arguments in CALLS]
    for method, params in [*OTHERS, *calls]:
        assert outcome(there, method, params) == outcome(here, method, params), (method, params)


def test_progress_and_log_are_the_same(start: Start, tmp_path: Path) -> None:
    here, there = both(start, tmp_path)

    for server in (here, there):
        server.request("logging/setLevel", {"level": "debug"})
        server.text("climb", progressToken="climb")
        server.text("talk")
    for kind in ("notifications/progress", "notifications/message"):
        assert there.notes(kind) == here.notes(kind) != []


def test_questions_are_asked_and_answered_in_the_era_of_sessions(start: Start, tmp_path: Path) -> None:
    answers = {
        "elicitation/create": {"action": "accept", "content": {"name": "Ada"}},
        "roots/list": {"roots": [{"uri": "file:///work"}]},
        "sampling/createMessage": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "that"}},
    }
    can = {"elicitation": {}, "roots": {}, "sampling": {}}
    here, there = both(start, tmp_path, capabilities=can, answer=lambda method, params: answers[method])

    for tool in ("ask", "ask_together", "ask_in_group"):
        assert there.text(tool) == here.text(tool)
    get = {"name": "personal"}
    assert there.request("prompts/get", get) == here.request("prompts/get", get)


def test_questions_end_the_call_and_it_runs_again_in_the_stateless_era(start: Start, tmp_path: Path) -> None:
    seen = []
    for server in both(start, tmp_path, revision=STATELESS, capabilities={"elicitation": {}}):
        asked, carried = [], {}
        for _ in range(3):
            result = server.request("tools/call", {"name": "ask", "arguments": {}, **carried})
            if result["resultType"] != "input_required":
                break
            asked.append(result["inputRequests"])
            given = {key: {"action": "accept", "content": {"name": key}} for key in result["inputRequests"]}
            carried = {"requestState": result["requestState"], "inputResponses": given}
        grouped = server.request("tools/call", {"name": "ask_in_group", "arguments": {}})["inputRequests"]
        seen.append((asked, result["content"], grouped))

    assert seen[1] == seen[0]
    assert [list(requests) for requests in seen[1][0]] == [["question-1"], ["second"]]


def test_a_function_that_asks_twice_at_once_ends_with_both_questions(start: Start, tmp_path: Path) -> None:
    body = """
    @tool
    async def two(ctx: Context) -> str:
        "Ask two things at once."
        form = {"type": "object", "properties": {"name": {"type": "string"}}}
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.elicit("a?", form, key="a"))
            group.create_task(ctx.elicit("b?", form, key="b"))
        return ""
    """
    server = isolated(start, tmp_path, body, revision=STATELESS, capabilities={"elicitation": {}})

    result = server.request("tools/call", {"name": "two", "arguments": {}})
    assert list(result["inputRequests"]) == ["a", "b"]


def test_watches_and_updates_reach_the_subscribers(start: Start, tmp_path: Path) -> None:
    server = start("-p", str(ROOT / "tests" / "plugins"), "--isolate-plugins")
    server.request("resources/subscribe", {"uri": "note://one"})
    server.request("resources/subscribe", {"uri": "test://text"})

    server.text("write_note", {"name": "one", "text": "new"})
    server.wait(lambda said: said.get("params") == {"uri": "note://one"})
    server.text("touch", {"uri": "test://text"})
    server.wait(lambda said: said.get("params") == {"uri": "test://text"})
    server.request("resources/unsubscribe", {"uri": "note://one"})
    assert server.text("echo", {"text": "alive"}) == "alive"
    server.close()
    assert "never retrieved" not in server.log() and "was stopped" not in server.log()


def test_what_the_caller_owns_is_at_hand(start: Start, tmp_path: Path) -> None:
    body = """
    @tool
    async def use(ctx: Context) -> dict[str, object]:
        "Use what there is."
        task = await ctx.todos.create("a task")
        task = await ctx.todos.add(task.id, "a step")
        try:
            await ctx.todos.add(99, "none")
        except KeyError as error:
            missing = repr(error)
        plan = await ctx.plan.enter("a goal", None)
        await ctx.plan.reset()
        run = await ctx.workspace.start("echo out; pwd", cwd=ctx.workspace.root)
        await ctx.workspace.wait(run, timeout=20)
        new = await ctx.workspace.take(run, 1000)
        _, end = await ctx.workspace.execute("echo é; exit 3", wait=30, limit=100)
        written = await ctx.workspace.write_file("a.txt", b"\\xffbytes", suffix=".txt")
        refused = []
        from toolgate.tools.builtin.skills.skills import Skills
        from toolgate.tools.reading.workers.pool import Workers
        for get in (lambda: ctx.service(Workers), lambda: ctx.workspace.limits, lambda: ctx.workspace.close):
            try:
                get()
            except ToolError as error:
                refused.append(error.text)
        try:
            await ctx.web.fetch("http://127.0.0.1:1/")
        except ToolError as error:
            web = type(error).__name__
        return {
            "task": [task.name, [step.text for step in task.steps]], "missing": missing, "goal": plan.goal,
            "year": plan.started_at.year, "output": new.text == f"out\\n{ctx.workspace.root}\\n", "more": new.has_more,
            "end": [end.gone, end.excerpt.text, end.run.exit_code],
            "status": (await ctx.workspace.run(run)).status, "written": written.read_bytes().decode("latin-1"),
            "refused": refused, "web": web, "skills": sorted(ctx.service(Skills).catalogue())[:1] != [],
            "principal": ctx.principal, "hold": ctx.settings.hold, "slots": len(await ctx.callbacks.list()),
        }
    """
    server = isolated(start, tmp_path, body)

    found = json.loads(server.text("use"))
    assert found.pop("year") >= 2026
    assert found == {
        "task": ["a task", ["a step"]],
        "missing": "KeyError(99)",
        "goal": "a goal",
        "output": True,
        "more": False,
        "end": [True, "é\n", 3],
        "status": "exited",
        "written": "\xffbytes",
        "refused": [
            "ctx.service(Workers) is not available in a plugin's own process",
            "ctx.workspace.limits is not available in a plugin's own process",
            "ctx.workspace.close is not available in a plugin's own process",
        ],
        "web": "AddressRefusedError",
        "skills": True,
        "principal": "local",
        "hold": 43.0,
        "slots": 0,
    }


def test_a_plan_holds_the_tools_of_a_plugin_in_another_process_too(start: Start, tmp_path: Path) -> None:
    body = """
    @tool(in_plan="read-only")
    async def look(ctx: Context) -> list[bool]:
        "Tell whether it may change something."
        return [ctx.is_read_only, await ctx.plan.active()]

    @tool(in_plan=True)
    async def jot(ctx: Context) -> list[bool]:
        "The same, of a tool that an active plan leaves alone."
        return [ctx.is_read_only, await ctx.plan.active()]

    @tool
    async def act() -> str:
        "Change something."
        return "changed"
    """
    folder = str(plugin_folder(tmp_path, body))
    for options in ((), ("--isolate-plugins",)):
        server = start("-p", folder, *options)
        assert [server.text(name) for name in ("look", "jot", "act")] == ["[false,false]", "[false,false]", "changed"]
        server.text("PlanMode", {"action": "enter", "goal": "look"})
        assert [server.text(name) for name in ("look", "jot")] == ["[true,true]", "[false,true]"]
        assert "act is refused while a plan is active" in server.call("act")["content"][0]["text"]
        server.text("PlanMode", {"action": "exit"})
        assert [server.text(name) for name in ("look", "act")] == ["[false,false]", "changed"]


def test_the_process_has_the_environment_of_commands_and_no_standard_streams_of_ours(
    start: Start, tmp_path: Path
) -> None:
    body = """
    print("at import", flush=True)

    @tool
    async def look() -> list[str]:
        "Look around."
        print("in a call", flush=True)
        os.system("echo from a child")
        import logging
        logging.getLogger("toolgate.mine").warning("a record")
        with open("/proc/self/oom_score_adj") as file:
            score = file.read().strip()
        return [sys.stdin.read(), score, *(name for name in os.environ if name.startswith("TOOLGATE"))]
    """
    server = isolated(start, tmp_path, body, env={"TOOLGATE_NAME": "secret"})

    assert server.text("look") == '["","1000"]'
    assert eventually(lambda: "toolgate.mine: a record" in server.log())
    for word in ("at import", "in a call", "from a child"):
        assert word in server.log()


def test_a_plugin_can_ask_for_a_process_itself(start: Start, tmp_path: Path) -> None:
    body = """
    @tool
    async def pid{0}() -> int:
        "The process."
        return os.getpid()
    """
    home = plugin_folder(tmp_path, "__isolate__ = True\n" + textwrap.dedent(body.format(1)), "one")
    plugin_folder(tmp_path, body.format(2), "two")
    server = start("-p", str(home))

    assert server.text("pid2") == str(server.process.pid) != server.text("pid1")


def test_a_changed_plugin_gets_a_new_process_and_calls_under_way_end_in_the_old_one(
    start: Start, tmp_path: Path
) -> None:
    body = """
    @tool
    async def version(wait: bool = False, ctx: Context = None) -> str:
        "The version."
        if wait:
            await ctx.elicit("go on?", {{"type": "object", "properties": {{}}}})
        return "{0}"
    """
    gone: list[dict[str, Any]] = []

    def answer(method: str, params: Any) -> Any:
        gone.append(params)
        return None

    server = isolated(start, tmp_path, body.format("first"), capabilities={"elicitation": {}}, answer=answer)
    (old,) = hosts(server)
    call = server.begin("tools/call", {"name": "version", "arguments": {"wait": True}})
    asked = server.wait(lambda said: said.get("method") == "elicitation/create")

    plugin_folder(tmp_path, body.format("second"))
    assert eventually(lambda: server.text("version") == "second")
    assert old in hosts(server)
    server.send({"id": asked["id"], "result": {"action": "accept", "content": {}}})
    assert server.result(call)["content"][0]["text"] == "first"
    assert eventually(lambda: len(hosts(server)) == 1 and old not in hosts(server))


def test_a_changed_plugin_is_served_without_a_review(tmp_path: Path) -> None:
    body = """
    @tool
    async def version() -> str:
        "The {0}."
        return "{0}"
    """
    home = plugin_folder(tmp_path, body.format("first"))
    options = ("--auth", "none", "-p", str(home), "--isolate-plugins")
    with site(tmp_path, *options) as listening, spoken(listening, "http") as client:
        assert client.text("version") == "first"
        plugin_folder(tmp_path, body.format("second"))
        assert eventually(lambda: client.text("version") == "second"), listening.log()
        told = {each["name"]: each["description"] for each in client.request("tools/list")["tools"]}
        assert told["version"] == "The second." and "mount review" not in listening.log()
        with closing(sqlite3.connect(listening.state / "state.db")) as database:
            assert database.execute("SELECT count(*) FROM mount_pin").fetchone() == (0,)


def test_a_plugin_of_any_number_of_parts_is_listed(start: Start, tmp_path: Path) -> None:
    body = """
    SCHEMA = {"type": "object", "properties": {f"a{number}": {"enum": [number]} for number in range(300)}}

    for number in range(101):
        @tool(name=f"tool_{number}", input=SCHEMA)
        async def each(**arguments: object) -> str:
            "One of many."
            return "called"
        globals()[f"tool_{number}"] = each
    """
    server = isolated(start, tmp_path, body)

    assert server.text("tool_100", {"a7": 7}) == "called"
    names = {tool["name"] for tool in server.request("tools/list")["tools"]}
    assert len([name for name in names if name.startswith("tool_")]) == 101


def test_many_calls_at_once_come_back_in_any_order(start: Start, tmp_path: Path) -> None:
    body = """
    @tool
    async def nap(number: int) -> int:
        "Sleep a little."
        await asyncio.sleep((number * 7 % 10) / 100)
        return number
    """
    server = isolated(start, tmp_path, body)

    calls = [server.begin("tools/call", {"name": "nap", "arguments": {"number": number}}) for number in range(300)]
    assert [server.result(call)["content"][0]["text"] for call in calls] == [str(number) for number in range(300)]


def test_where_a_plugin_moves_its_caller_its_commands_run(start: Start, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir(exist_ok=True)
    (tmp_path / "work" / "inner").mkdir()
    body = """
    @tool
    async def move(ctx: Context) -> str:
        "Move."
        ctx.caller_state.cwd = ctx.workspace.root / "inner"
        return ""
    """
    server = isolated(start, tmp_path, body)

    server.call("move")
    assert server.text("Bash", {"command": "pwd"}).strip().endswith("/inner")
