"""Tasks with several callers and small limits: the HTTP endpoint in this process."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.clients.raw_client import PATIENCE, STATELESS
from tests.servers.http_in_process import Exchange, Inside, inside, named
from tests.tools.fake_web_site import Request, site
from toolgate.server.calls import tasks as deferrals_module
from toolgate.server.state.rows import tasks as ledger_module
from toolgate.tools.api.errors import ToolError
from toolgate.tools.reading.pages.local_page_reader import LocalPageReader

TASKS = "io.modelcontextprotocol/tasks"
KNOWS = {"extensions": {TASKS: {}}, "elicitation": {}}


def run(folder: Path, body: Callable[[Inside], Coroutine[Any, Any, None]], **limits: Any) -> None:
    async def bounded() -> None:
        async with inside(folder, **limits) as held:
            held.app.host.server().task_after = 0.0
            await asyncio.wait_for(body(held), PATIENCE)

    asyncio.run(bounded())


def begin(held: Inside, method: str, user: str = "ada", **params: Any) -> Exchange:
    prefix = "io.modelcontextprotocol/"
    meta = {prefix + "protocolVersion": STATELESS, prefix + "clientCapabilities": KNOWS}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    name = params.get("name") or params.get("taskId")
    told = {"mcp_name": name} if name else {}
    return held.ask("POST", message, mcp_protocol_version=STATELESS, mcp_method=method, x_user=user, **told)


async def ask(held: Inside, method: str, user: str = "ada", **params: Any) -> Any:
    exchange = await begin(held, method, user, **params).started()
    if exchange.headers[b"content-type"] == b"application/json":
        return await exchange.json()
    return (await exchange.messages())[-1]


async def created(held: Inside, tool: str, **arguments: Any) -> str:
    answer = await ask(held, "tools/call", name=tool, arguments=arguments)
    assert answer["result"]["resultType"] == "task", answer
    id: str = answer["result"]["taskId"]
    return id


async def ended(held: Inside, id: str) -> Any:
    """Return the task after its work has ended."""
    deferral = held.app.host.call_tasks().find_running(named("ada"), id)
    if deferral is not None and deferral.work is not None:
        await asyncio.wait([deferral.work])
    return (await ask(held, "tasks/get", taskId=id))["result"]


def test_a_task_is_its_principals_alone(tmp_path: Path) -> None:
    async def body(held: Inside) -> None:
        file = tmp_path / "go"
        under_way = await created(held, "job", file=str(file))
        over = await created(held, "only_a_job")
        await ended(held, over)
        for id in (under_way, over):
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                refused = await ask(held, method, "bob", taskId=id, inputResponses={})
                unknown = await ask(held, method, "bob", taskId="x" * len(id), inputResponses={})
                assert refused["error"]["code"] == -32602
                assert refused["error"]["message"].replace(id, "x" * len(id)) == unknown["error"]["message"]
        listening = begin(held, "subscriptions/listen", "bob", notifications={"taskIds": [under_way, over]})
        event = await listening.first("notifications/subscriptions/acknowledged")
        assert '"notifications":{}' in event["data"]
        file.touch()
        assert (await ended(held, under_way))["status"] == "completed"
        await listening.hang_up()

    run(tmp_path, body)


def test_a_task_expires(tmp_path: Path) -> None:
    async def body(held: Inside) -> None:
        id = await created(held, "only_a_job")
        await ended(held, id)
        began = held.app.host.call_tasks().now()
        held.app.host.call_tasks().now = lambda: began + deferrals_module.LIFETIME - 60
        assert (await ask(held, "tasks/get", taskId=id))["result"]["status"] == "completed"
        held.app.host.call_tasks().now = lambda: began + deferrals_module.LIFETIME
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            assert (await ask(held, method, taskId=id, inputResponses={}))["error"]["code"] == -32602

    run(tmp_path, body)


def test_work_that_takes_for_ever_is_stopped_and_said_to_be(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(deferrals_module, "LONGEST", 0.2)

    async def body(held: Inside) -> None:
        failed = await ended(held, await created(held, "job", file=str(tmp_path / "never")))
        assert failed["status"] == "failed"
        assert failed["error"]["code"] == -32603 and "was stopped" in failed["statusMessage"]

    run(tmp_path, body)


def test_a_page_that_takes_long_is_read_in_a_task(tmp_path: Path) -> None:
    async def body(held: Inside) -> None:
        go = asyncio.Event()

        async def page(request: Request) -> None:
            await go.wait()
            await request.send(200, {"content-type": "text/plain", "connection": "close"}, b"words")

        async with site({"/": page}) as place:
            assert isinstance(held.app.host.page_reader(), LocalPageReader)
            held.app.host.page_reader().web = type(held.app.host.web())(["127.0.0.1"])
            id = await created(held, "ReadDocs", url=place.url())
            assert (await ask(held, "tasks/get", taskId=id))["result"]["status"] == "working"
            go.set()
            done = await ended(held, id)
        assert "words" in done["result"]["content"][0]["text"]

    run(tmp_path, body)


def test_a_search_that_takes_long_goes_on_in_a_task(tmp_path: Path) -> None:
    async def body(held: Inside) -> None:
        go = asyncio.Event()

        async def fetch(*_: Any, **__: Any) -> Any:
            await go.wait()
            raise ToolError("no network here")

        held.app.host.web().fetch = fetch  # type: ignore[method-assign]
        id = await created(held, "WebSearch", query="words")
        go.set()
        done = await ended(held, id)
        assert (done["status"], done["result"]["isError"]) == ("completed", True)
        assert {row["status"] for row in done["result"]["structuredContent"]["engines"]} == {"error"}

    run(tmp_path, body)


def test_work_that_ends_before_its_task_is_stored_is_no_task(tmp_path: Path) -> None:
    async def body(held: Inside) -> None:
        file = tmp_path / "go"
        put = held.app.host.call_tasks().rows.add

        async def slowly(*given: Any) -> Any:
            kept = await put(*given)
            file.touch()
            (work,) = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == "_run_work"]
            await asyncio.wait([work])
            return kept

        held.app.host.call_tasks().rows.add = slowly  # type: ignore[method-assign]
        answer = await ask(held, "tools/call", name="slow", arguments={"file": str(file)})
        assert answer["result"]["content"][0]["text"] == "there"
        await held.app.host.call_tasks().close(0)
        count = await held.app.host.store().transact(
            lambda connection: connection.exec_driver_sql("SELECT count(*) FROM deferral").scalar()
        )
        assert count == 0

    run(tmp_path, body)


def test_a_call_that_can_be_no_task_is_held_like_any_other(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ledger_module, "MAX_LIVE", 0)

    async def body(held: Inside) -> None:
        answer = await ask(held, "tools/call", name="Bash", arguments={"command": "sleep 0.2; echo done"})
        assert answer["result"]["content"][0]["text"] == "done\n"
        refused = await ask(held, "tools/call", name="only_a_job", arguments={})
        assert refused["result"]["isError"] is True
        assert "0 tasks are under way, the most there can be" in refused["result"]["content"][0]["text"]

    run(tmp_path, body)


def test_a_command_that_can_be_no_task_becomes_a_background_task(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ledger_module, "MAX_LIVE", 0)

    async def body(held: Inside) -> None:
        held.app.host.settings = replace(held.app.host.settings, hold=1.5)
        answer = await ask(held, "tools/call", name="Bash", arguments={"command": "sleep 86415", "timeout": 600_000})
        assert "as background task 1: " in answer["result"]["content"][0]["text"]

    run(tmp_path, body)


def test_hanging_up_while_the_task_is_being_made_calls_it_off(tmp_path: Path) -> None:
    async def body(held: Inside) -> None:
        made, go_on = asyncio.Event(), asyncio.Event()
        put = held.app.host.call_tasks().rows.add

        async def slowly(*given: Any) -> Any:
            kept = await put(*given)
            made.set()
            await go_on.wait()
            return kept

        held.app.host.call_tasks().rows.add = slowly  # type: ignore[method-assign]
        calling = begin(held, "tools/call", name="job", arguments={"file": str(tmp_path / "never")})
        await made.wait()
        await calling.started()  # silent for so long that it is a stream, which can be hung up
        await calling.hang_up()
        go_on.set()
        while held.streamable.running.tasks:
            await asyncio.wait(held.streamable.running.tasks)
        await held.app.host.call_tasks().close(0)
        count = await held.app.host.store().transact(
            lambda connection: connection.exec_driver_sql("SELECT count(*) FROM deferral").scalar()
        )
        assert count == 0
        assert not (tmp_path / "never.runs").exists()

    run(tmp_path, body, patience=0.05)
