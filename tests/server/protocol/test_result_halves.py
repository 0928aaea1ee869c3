"""Each half of a result is the whole answer: some clients show their model only `content`, others only
`structuredContent`. Each scenario names the facts that the model must see."""

import asyncio
import base64
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.clients.raw_client import STATELESS, Server, eventually
from tests.servers.isolated_plugins import EACH_WAY, plugin_folder
from toolgate.server.cli.commands.demo import bitmap, small_web

Start = Callable[..., Server]
Result = dict[str, Any]
FULL = ("--structured-output", "full")
LEAN = {"Bash", "ReadBgOutput", "ReadImage", "ReadDocs", "InvokeSkill"}
WAYS = {  # era and structure; `make test` takes each transport, era and structure once at least
    "lean-2025-11-25": ("2025-11-25", ()),
    "lean-2026-07-28": (STATELESS, ()),
    "full-2025-11-25": ("2025-11-25", FULL),
    "full-2026-07-28": (STATELESS, FULL),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[str, tuple[str, ...]]:
    return WAYS[request.param]


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """Run a few pages and a search engine that lists them; yield the address."""
    found: list[str] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with small_web() as address:
            found.append(address)
            ready.set()
            await asyncio.to_thread(over.wait)

    server = threading.Thread(target=asyncio.run, args=(serve(),))
    server.start()
    assert ready.wait(60)
    yield found[0]
    over.set()
    server.join(20)


@dataclass
class Client:
    """A client that checks each result against its schema, and for the facts in each half."""

    server: Server
    work: Path
    web: str

    def __post_init__(self) -> None:
        tools = self.server.request("tools/list")["tools"]
        self.schemas = {tool["name"]: tool["outputSchema"] for tool in tools if "outputSchema" in tool}

    def call(self, name: str, *facts: str, is_error: bool = False, **arguments: Any) -> Result:
        return self.check(name, self.server.call(name, arguments), *facts, is_error=is_error)

    def check(self, name: str, result: Result, *facts: str, is_error: bool = False) -> Result:
        assert result["isError"] is is_error, result
        if "structuredContent" in result:
            assert jsonschema_rs.is_valid(self.schemas[name], result["structuredContent"]), result
        else:
            assert is_error or name not in self.schemas, f"{name} has a schema and sent nothing that fits it"
        for half, said in halves(result).items():
            lacking = [fact for fact in facts if fact not in said]
            assert not lacking, f"{name}: {half} lacks {lacking}: {said[:2000]}"
        return result

    def news(self) -> None:
        """Cause an event that the next result reports."""
        begun = self.call("BackgroundBash", command="true # the news")
        task = begun["structuredContent"]["task_id"]
        uri = f"bg://{task}/output"
        read = self.server.request
        assert eventually(lambda: "exited" in read("resources/read", {"uri": uri})["contents"][0]["text"])


def halves(result: Result) -> dict[str, str]:
    """Return what a model sees if its client drops the other half."""
    text = "\n".join(block.get("text", "") for block in result["content"])
    if "structuredContent" not in result:
        return {"content": text}
    return {"content": text, "structuredContent": "\n".join(leaves(result["structuredContent"]))}


def leaves(value: Any) -> Iterator[str]:
    """Return all scalar values of a JSON value, one a line."""
    if isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, list):
        for part in value:
            yield from leaves(part)
    else:
        yield str(value)


# -- the thirteen


def bash(client: Client) -> None:
    client.call("Bash", "out-fact", "exit code: 3", command="echo out-fact; exit 3")
    more = "for what takes longer use a larger timeout (at most 600000 ms), or BackgroundBash"
    slow = {"command": "echo begun; sleep 86417", "timeout": 300}
    client.call("Bash", "begun", "timed out after 300 ms", more, is_error=True, **slow)
    long = client.call("Bash", "characters dropped", "all of it is in ", command="seq 100000")
    first, *_, last = long["content"][0]["text"].splitlines()
    assert "all of it is in /" in first and "all of it is in /" in last
    for tool in ("BackgroundBash", "Bash"):
        client.call("Bash", command="mkdir gone; cd gone")
        (client.work / "gone").rmdir()
        client.call(tool, "gone is gone: ran in", command="true")


def background(client: Client) -> None:
    client.call("Bash", "up", "left running: 1 process", "ReadBgOutput reads on", command="sleep 86419 & echo up")
    begun = client.call("BackgroundBash", "none", command="echo written; exec sleep 86420")
    task = begun["structuredContent"]["task_id"]
    assert f"background task {task} started" in halves(begun)["content"]
    said = []
    assert eventually(
        lambda: said.append(client.call("ReadBgOutput", "running", task_id=task)) or "written" in str(said)
    )
    (written,) = (result for result in said if "written" in str(result))
    client.check("ReadBgOutput", written, "written", f"[task {task} is running for ")
    client.call("ListBgTasks", "echo written; exec sleep 86420", "running", str(task))
    client.call("KillBgTask", "killed", "143", str(task), task_id=task)
    client.call("KillBgTask", "killed", "it had ended before", task_id=task)
    client.call("ReadBgOutput", "was killed after", task_id=task)
    for each in client.call("ListBgTasks")["structuredContent"]["tasks"]:
        client.call("KillBgTask", task_id=each["task_id"])


def pictures(client: Client) -> None:
    (client.work / "a.bmp").write_bytes(bitmap(96, 64))
    seen = client.call("ReadImage", "png", "96", "64", file_path=str(client.work / "a.bmp"))
    assert base64.b64decode(seen["content"][0]["data"]).startswith(b"\x89PNG")


def pages(client: Client) -> None:
    page = f"{client.web}/lighthouses"
    client.call("ReadDocs", "Pharos", page, "scripts did not run", url=page)
    client.call("WebSearch", "Fresnel", "hackernews", "ok", "http", query="lighthouse lens")


def notes(client: Client) -> None:
    def manage(action: str, *facts: str, **more: Any) -> None:
        client.call("TaskManager", *facts, action=action, query="", **more)

    manage("list", "There is no task.")
    manage("create", "Task 1 created, now current: Repair the lamp", text="Repair the lamp")
    manage("add", "Step 1 added to task 1 (Repair the lamp).", text="Order a bulb")
    manage("list", "Repair the lamp", "Order a bulb")
    manage("complete", "Step 1 of task 1 completed. No step left: complete the task itself", step_id=1)
    client.call("PlanMode", "Plan mode is on: Paint. Leave it with exit.", "plan.md", **entering("Paint", "plan.md"))
    client.call("BackgroundBash", "refused while a plan is active", is_error=True, command="true")
    client.call("PlanMode", "a plan is active already", is_error=True, **entering("Again", "plan.md"))
    client.call("PlanMode", "Plan mode is on for", "Paint", "plan.md", action="status")
    client.call("PlanMode", "Plan mode is off after", "The plan is in plan.md.", action="exit")


def entering(goal: str, plan_file: str) -> dict[str, str]:
    return {"action": "enter", "goal": goal, "plan_file": plan_file}


def skills(client: Client) -> None:
    place = (str(client.work.parent / "skills" / "mend"), "tools.txt")
    client.call("InvokeSkill", "# Mend", "Look at the lamp first", *place, skill_name="mend", arguments="the lamp")


def callbacks(client: Client) -> None:
    told = "Callback scheduled: fires every 3600s, repeats 20 times."
    client.call("SetCallback", told, action="set", message="look again", delay_seconds=3600)
    client.call("SetCallback", "look again", "3600", "20", action="list")
    client.call("SetCallback", "Cancelled: 0.", action="cancel")
    client.call("SetCallback", action="set", message="remember the milk", delay_seconds=1, repeat_count=1)
    results: list[Result] = []
    read = {"action": "pending", "query": ""}
    assert eventually(
        lambda: results.append(client.call("TaskManager", **read)) or "remember the milk" in str(results[-1])
    )
    client.check("TaskManager", results[-1], "remember the milk")


def meanwhile(client: Client) -> None:
    """Check that news is in every kind of result: structured, text only, and an error."""
    over = "(true # the news) exited with code 0"
    for name, arguments, is_error in (
        ("Bash", {"command": "echo x"}, False),
        ("TaskManager", {"action": "list", "query": ""}, False),
        ("PlanMode", {"action": "status"}, False),
        ("SetCallback", {"action": "list"}, False),
        ("InvokeSkill", {"skill_name": "mend"}, False),
        ("KillBgTask", {"task_id": 999}, True),
    ):
        client.news()
        told = client.call(name, over, is_error=is_error, **arguments)
        assert told["content"][-1]["text"].startswith("\nMeanwhile:\n- background task ")
        if "structuredContent" in told:
            (line,) = told["structuredContent"]["meanwhile"]
            assert f"- {line}" in told["content"][-1]["text"]
        assert "Meanwhile" not in str(client.call("ListBgTasks"))  # it is told once


def questions(client: Client) -> None:
    asked = '[{"question": "Which colour?", "options": ["red", "white"]}]'
    client.call("AskUserQuestion", "Which colour?", "white", questions_json=asked)


SCENARIOS = (bash, background, pictures, pages, notes, skills, callbacks, meanwhile)


@contextlib.contextmanager
def visited(connect: Start, tmp_path: Path, web: str, way: tuple[str, tuple[str, ...]]) -> Iterator[Client]:
    revision, options = way
    mend = tmp_path / "skills" / "mend"
    mend.mkdir(parents=True)
    (mend / "SKILL.md").write_text("---\nname: mend\ndescription: x\n---\n# Mend\n\nLook at $ARGUMENTS first.\n")
    (mend / "tools.txt").touch()
    fast = ("--browser", "none", "--allow-private", "127.0.0.1", "--engines", f"hackernews={web}")
    server = connect(*fast, "--skills", str(mend.parent), *options, revision=revision)
    yield Client(server, tmp_path / "work", web)


@pytest.mark.brief("http-lean-2026-07-28", "stdio-full-2025-11-25")
def test_a_model_sees_the_payload_whichever_half_its_client_drops(
    connect: Start, way: tuple[str, tuple[str, ...]], web: str, tmp_path: Path
) -> None:
    with visited(connect, tmp_path, web, way) as client:
        assert LEAN.isdisjoint(client.schemas) is (way[1] == ())
        for scenario in SCENARIOS:
            scenario(client)


@pytest.mark.brief("stdio-lean-2025-11-25", "http-full-2026-07-28")
def test_a_command_that_goes_on_says_so_in_each_half(
    connect: Start, way: tuple[str, tuple[str, ...]], tmp_path: Path
) -> None:
    client = Client(connect("--hold", "2", *way[1], revision=way[0]), tmp_path / "work", "")
    facts = ("begun", "goes on, with its timeout of 30000 ms, as background task 1", "ReadBgOutput reads on")
    client.call("Bash", *facts, command="echo begun; sleep 86418")


def test_a_client_without_forms_sees_the_questions(connect: Start, tmp_path: Path) -> None:
    questions(Client(connect("--structured-output", "full"), tmp_path / "work", ""))


# -- plugins

PLUGINS = """
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict
import msgspec

class Struct(msgspec.Struct, forbid_unknown_fields=True):
    word: str

@dataclass
class Data:
    word: str

class Typed(TypedDict):
    word: str

class Newsy(msgspec.Struct):
    word: str
    meanwhile: list[str] = []

class Taken(msgspec.Struct):
    meanwhile: str

@tool
def struct() -> Struct:
    "A struct."
    return Struct("lantern")

@tool
def record() -> Data:
    "A dataclass."
    return Data("lantern")

@tool
def sheet() -> Typed:
    "A TypedDict."
    return {"word": "lantern"}

@tool
def mapping() -> dict[str, str]:
    "A dict."
    return {"word": "lantern"}

@tool
def bare() -> dict:
    "A dict of anything."
    return {"word": "lantern"}

@tool
def noted() -> Annotated[dict[str, Any], "words"]:
    "A dict with a note on it."
    return {"word": "lantern"}

@tool
def newsy() -> Newsy:
    "A struct with news of its own."
    return Newsy("lantern", ["old news"])

@tool
def taken() -> Taken:
    "A struct whose field has the name."
    return Taken("lantern")

@tool
def many() -> list[str]:
    "A list."
    return ["lantern"]

@tool
def pieces() -> list[Text | Image]:
    "A list of blocks is content."
    return [Text("lantern")]

@tool
def unsure() -> dict[str, Image]:
    "Something that no schema can say."
    return {}

LOOSE = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}

@tool(output=LOOSE)
def loose() -> Output:
    "Data alone, with a raw schema."
    return Output([], {"word": "lantern"})

@tool(output={**LOOSE, "additionalProperties": False})
def strict() -> Output:
    "A raw schema without room."
    return Output([Text("lantern")], {"word": "lantern"})

@tool(output=LOOSE, lean=True)
def lean() -> Output:
    "A text that is all."
    return Output([Text("lantern, and more")], {"word": "lantern"})

@tool
def no() -> Struct:
    "Says no."
    raise ToolError("no lantern")
"""
OBJECTS = {"struct", "record", "sheet", "mapping", "bare", "noted", "newsy", "taken", "loose", "strict", "no"}
ROOMY = ("struct", "record", "sheet", "mapping", "bare", "noted", "newsy", "loose")


@pytest.fixture(params=EACH_WAY)
def plugins(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    return ("-p", str(plugin_folder(tmp_path, PLUGINS)), *request.param)


@pytest.mark.brief("stdio-inline-lean-2025-11-25", "http-inline-full-2026-07-28", "stdio-isolated-lean-2026-07-28")
def test_a_plugins_result_is_in_each_half(
    connect: Start, plugins: tuple[str, ...], way: tuple[str, tuple[str, ...]], tmp_path: Path
) -> None:
    revision, options = way
    client = Client(connect(*plugins, *options, revision=revision), tmp_path / "work", "")
    structured = OBJECTS | ({"many"} if revision == STATELESS else set()) | ({"lean"} if options else set())
    here = {*OBJECTS, "many", "pieces", "lean"}
    assert {name for name in client.schemas if name in here} == structured
    for name in sorted(here - {"no"}):
        client.call(name, "lantern")
    client.call("no", "no lantern", is_error=True)
    assert "structuredContent" not in client.server.call("no")


@pytest.mark.brief("stdio-inline-lean-2025-11-25", "http-inline-full-2026-07-28", "stdio-isolated-lean-2026-07-28")
def test_news_waits_for_a_result_that_can_say_it_in_each_half(
    connect: Start, plugins: tuple[str, ...], way: tuple[str, tuple[str, ...]], tmp_path: Path
) -> None:
    revision, options = way
    client = Client(connect(*plugins, *options, revision=revision), tmp_path / "work", "")
    over = "exited with code 0"
    for name in ROOMY:
        client.news()
        client.call(name, "lantern", over)
    client.news()
    for name in ("strict", "taken", *(["many"] if revision == STATELESS else [])):
        assert over not in str(client.call(name, "lantern")), name
    old = client.call("newsy", "lantern", "old news", over)["structuredContent"]["meanwhile"]
    assert old[0] == "old news" and len(old) == 2
    client.news()
    client.call("no", "no lantern", over, is_error=True)


def test_a_revision_without_structure_hears_news_with_any_result(connect: Start, tmp_path: Path) -> None:
    server = connect("-p", str(plugin_folder(tmp_path, PLUGINS)), revision="2025-03-26")
    server.call("BackgroundBash", {"command": "true"})
    assert eventually(lambda: "exited with code 0" in str(server.call("strict")))
