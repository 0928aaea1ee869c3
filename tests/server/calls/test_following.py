"""BackgroundBash and SetCallback as tasks, for clients that wake their model when a task ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.clients.raw_client import STATELESS, Server, eventually
from tests.clients.raw_http_client import site, spoken
from tests.clients.raw_task_client import KNOWS, created, ended, get, text
from tests.server.calls.test_tasks_after_restart import killed
from tests.server.calls.test_tasks_in_process import ask, run
from tests.server.calls.test_tasks_in_process import created as created_inside
from tests.server.features.nodes.nodes import running_node
from tests.servers.http_in_process import Inside, named
from toolgate.server.state.rows import tasks as task_rows

Start = Callable[..., Server]
WOKEN = ("--wake-client", "tests", "--sandbox", "none")
HOW = {"revision": STATELESS, "capabilities": KNOWS}
REMINDER = {"action": "set", "message": "look at the lamp", "delay_seconds": 1, "repeat_count": 1}
LATER = {**REMINDER, "delay_seconds": 3600}


def test_a_command_in_the_background_is_a_task_until_it_ends(probe: Start, tmp_path: Path) -> None:
    server, file = probe(*WOKEN, **HOW), tmp_path / "go"
    command = f"echo begun; until [ -e {file} ]; do sleep 0.05; done; seq 3000; exit 3"
    result = server.call("BackgroundBash", {"command": command})
    assert (result["resultType"], result["status"]) == ("task", "working")
    assert result["statusMessage"] == "background task 1: ReadBgOutput reads its output, KillBgTask ends it"
    assert result["taskId"].startswith("bg-1~") and result["taskId"].endswith(".BackgroundBash")
    assert "begun" in server.text("ReadBgOutput", {"task_id": 1})
    assert get(server, result["taskId"])["statusMessage"] == result["statusMessage"]
    file.touch()
    done = ended(server, result["taskId"])
    assert "bytes before this are left out" in text(done)
    assert "2999\n3000\n[task 1 exited with code 3 after " in text(done)
    content = done["result"]["structuredContent"]
    assert content == {"task_id": 1, "sandbox": "none", "note": text(done)}
    tools = {tool["name"]: tool for tool in server.request("tools/list")["tools"]}
    jsonschema_rs.validate(tools["BackgroundBash"]["outputSchema"], content)
    assert "Meanwhile" not in server.text("echo", {"text": "x"})  # the client has read it
    assert "1\n2\n3\n" in server.text("ReadBgOutput", {"task_id": 1})  # its position stayed


def test_a_callback_is_a_task_until_it_fires_first(probe: Start) -> None:
    server = probe(*WOKEN, **HOW)
    id = created(server, "SetCallback", **REMINDER)
    assert id.startswith("callback-0~")
    assert get(server, id)["statusMessage"] == "callback 0 fires once in 1s; SetCallback cancels it"
    done = ended(server, id)
    assert text(done) == "callback 0 fired: look at the lamp"
    assert done["result"]["structuredContent"] == {"callbacks": [], "note": text(done)}
    assert "Meanwhile" not in server.text("echo", {"text": "x"})
    id = created(server, "SetCallback", **{**REMINDER, "repeat_count": 3})
    assert text(ended(server, id)).startswith("callback 0 fired: look at the lamp\n(it fires again, every 1s: ")
    assert eventually(lambda: "callback 0 fired" in server.text("echo", {"text": "x"}))


def test_other_clients_get_the_answer_that_they_always_got(probe: Start) -> None:
    for options, how in (
        ((), HOW),
        (("--wake-client", "*"), {"revision": STATELESS}),
        (("--wake-client", "none"), HOW),
    ):
        server = probe("--sandbox", "none", *options, **how)
        answer = server.call("BackgroundBash", {"command": "true"})
        id = answer["structuredContent"]["task_id"]
        assert answer["structuredContent"] == {"task_id": id, "sandbox": "none"}
        assert answer["content"][0]["text"] == f"background task {id} started (sandbox: none)"
        said = server.text("SetCallback", REMINDER)
        assert said.startswith("Callback scheduled: fires once in 1s.")
        assert server.close() == 0


def test_cancelling_the_task_ends_what_it_waits_for(probe: Start) -> None:
    server = probe(*WOKEN, **HOW)
    command, callback = (
        created(server, "BackgroundBash", command="sleep 86415"),
        created(server, "SetCallback", **LATER),
    )
    assert server.request("tasks/cancel", {"taskId": command}) and server.request("tasks/cancel", {"taskId": callback})
    for id in (command, callback):
        assert get(server, id)["statusMessage"] == "cancelled by the client, which also ends what it waited for"
    assert server.call("ListBgTasks")["structuredContent"]["tasks"][0]["status"] == "killed"
    assert server.text("SetCallback", {"action": "list"}) == "No callbacks are set."
    command, callback = (
        created(server, "BackgroundBash", command="sleep 86415"),
        created(server, "SetCallback", **LATER),
    )
    server.call("KillBgTask", {"task_id": 2})
    server.call("SetCallback", {"action": "cancel"})
    assert "[task 2 was killed after " in text(ended(server, command))
    assert text(ended(server, callback)) == "callback 0 was cancelled before it fired: look at the lamp"


def test_after_each_kill_the_task_is_followed_on_or_says_what_was_lost(probe: Start) -> None:
    server = probe(*WOKEN, **HOW)
    command = created(server, "BackgroundBash", command="echo begun; sleep 86416")
    callback = created(server, "SetCallback", **{**REMINDER, "delay_seconds": 6})
    assert eventually(lambda: "begun" in server.text("ReadBgOutput", {"task_id": 1}))
    for _ in range(2):
        killed(server)
        server = probe(*WOKEN, **HOW)
        assert get(server, callback)["statusMessage"].startswith("callback 0 fires once")
    assert "begun\n[task 1 is lost" in text(ended(server, command))
    assert text(ended(server, callback)) == "callback 0 fired: look at the lamp"


def test_a_command_at_a_node_outlasts_two_gateways_and_so_does_its_task(tmp_path: Path) -> None:
    file, command = tmp_path / "go", "until [ -e {} ]; do sleep 0.05; done; echo lit"
    with running_node(tmp_path / "node", "--sandbox", "none") as node:

        def gateway() -> Any:
            words = ("--node", str(node.address), "--wake-client", "tests")
            return site(tmp_path / "gateway", *words, workspace=False)

        with gateway() as site_1, spoken(site_1, "http", **HOW) as client:
            id = created(client, "BackgroundBash", command=command.format(file))
            killed(client)  # with kill -9
        with gateway() as site_2, spoken(site_2, "http", **HOW) as client:
            assert get(client, id)["status"] == "working"
            assert site_2.stop() == 0  # in order
        with gateway() as site_3, spoken(site_3, "http", **HOW) as client:
            assert get(client, id)["status"] == "working"
            file.touch()
            assert text(ended(client, id)).startswith("lit\n[task 1 exited with code 0 after ")


def test_a_task_too_many_is_no_task_and_a_revoked_grant_ends_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_rows, "MAX_LIVE", 1)

    async def body(held: Inside) -> None:
        held.app.host.server().wake_clients = frozenset("*")
        id = await created_inside(held, "BackgroundBash", command="sleep 86417")
        second = await ask(held, "tools/call", name="BackgroundBash", arguments={"command": "sleep 86417"})
        assert second["result"]["structuredContent"]["task_id"] == 2
        task = held.app.host.call_tasks().find_running(named("ada"), id)
        assert task is not None
        await held.app.host.call_tasks().cancel(task, "withdrawn")
        listed = await ask(held, "tools/call", name="ListBgTasks", arguments={})
        assert [row["status"] for row in listed["result"]["structuredContent"]["tasks"]] == ["running", "running"]

    run(tmp_path, body)
