"""Faults of tools, plugins and clients cost only themselves: every request is answered, and the server lives."""

import asyncio
import gc
import json
import os
import subprocess
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import COMMAND, Refusal, Server, eventually
from toolgate.server.app.builtin_tools import TOOLS
from toolgate.server.protocol.dispatcher import NO_SCOPES, Dispatcher, Method
from toolgate.server.protocol.messages import Outbound, Request
from toolgate.server.protocol.session import Call, Session

Start = Callable[..., Server]
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


@pytest.mark.parametrize(
    "tool", ["drops_its_own_task", "raises_odd", "interrupts", "exits_in_group", "runs_dry", "unencodable"]
)
@pytest.mark.parametrize("revision", ["2025-03-26", "2025-11-25"])
def test_whatever_a_tool_raises_its_request_is_answered(probe: Start, tool: str, revision: str) -> None:
    server = probe(revision=revision)
    with pytest.raises(Refusal) as caught:
        server.call(tool)
    assert caught.value.code == -32603
    assert server.text("echo", {"text": "alive"}) == "alive"


@pytest.mark.parametrize("tool", ["drops_its_own_task", "raises_odd", "unencodable"])
def test_a_fault_in_a_batch_costs_its_own_answer_only(probe: Start, tool: str) -> None:
    server = probe(revision="2025-03-26")
    batch = [
        {"jsonrpc": "2.0", "id": "bad", "method": "tools/call", "params": {"name": tool}},
        {"jsonrpc": "2.0", "id": "good", "method": "ping"},
    ]
    server.write(json.dumps(batch).encode() + b"\n")
    assert server.result("good") == {}
    with pytest.raises(Refusal) as caught:
        server.result("bad")
    assert caught.value.code == -32603


def test_a_refusal_from_inside_a_task_group_is_a_refusal(probe: Start) -> None:
    assert probe().error("refuse_in_group") == "no, from a group"


def test_threads_that_hang_hold_up_neither_others_nor_the_end(probe: Start) -> None:
    server = probe("--grace", "0.3")
    hung = [server.begin("tools/call", {"name": "blocks", "arguments": {"seconds": 60}}) for _ in range(12)]
    for id in hung:
        server.notify("notifications/cancelled", {"requestId": id})
    assert server.text("Bash", {"command": "echo on"}) == "on\n"
    assert "not exist" in server.error("ReadImage", {"file_path": "/no/such.png"})
    assert server.text("plain", {"word": "on"}) == "ON"
    begun = time.monotonic()
    assert server.close() == 0
    assert time.monotonic() - begun < 15


def test_more_hanging_calls_of_a_plain_function_than_threads_are_refused(probe: Start) -> None:
    server = probe("--grace", "0.2")
    for _ in range(32):
        server.begin("tools/call", {"name": "blocks", "arguments": {"seconds": 60}})
    assert "still run" in server.error("blocks", {"seconds": 0})
    server.close()


def test_news_that_did_not_go_out_is_told_with_the_next_answer(probe: Start) -> None:
    server = probe()
    task = server.call("BackgroundBash", {"command": "exit 4"})["structuredContent"]["task_id"]
    record = server.state / "spool" / "local" / str(task) / "task.json"  # asking a tool would tell the news
    assert eventually(lambda: '"exited"' in record.read_text())
    with pytest.raises(Refusal):
        server.call("unencodable")  # takes the news along, and does not go out
    content = server.call("echo", {"text": "x"})["content"]
    assert f"background task {task}" in content[-1]["text"]
    assert len(server.call("echo", {"text": "x"})["content"]) == 1


def test_only_the_planners_own_tools_may_act_while_a_plan_is_active(probe: Start) -> None:
    server = probe()
    server.call("PlanMode", {"action": "enter", "goal": "think"})
    assert "plan" in server.error("sneaky")
    assert server.text("idle") == ""


def test_many_answers_in_one_write_are_all_given(start: Start) -> None:
    server = start()
    lines = b"".join(b'{"jsonrpc":"2.0","id":"b%d","method":"tools/list"}\n' % n for n in range(1_500))
    for n in range(1_500):
        server._methods[f"b{n}"] = "tools/list"
    server.write(lines)
    server.wait(lambda message: message.get("id") == "b1499", 60)
    assert sum("result" in message for message in server.messages) == 1_501


def test_all_is_answered_when_the_input_ends_before_the_answers_are_read(tmp_path: Path) -> None:
    lines = [json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO})]
    lines += [json.dumps({"jsonrpc": "2.0", "id": n, "method": "tools/list"}) for n in range(1, 2_001)]
    done = subprocess.run(
        [COMMAND, "--state", str(tmp_path / "state")],
        input="\n".join(lines).encode() + b"\n",
        capture_output=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 0
    assert sorted(json.loads(line)["id"] for line in done.stdout.splitlines()) == list(range(2_001))


def test_a_client_that_hangs_up_without_reading_is_noticed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [COMMAND, "--state", str(tmp_path / "state"), "--grace", "0.2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    assert process.stdin and process.stdout
    try:
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}
        lines = [json.dumps(hello)] + [
            json.dumps({"jsonrpc": "2.0", "id": n, "method": "tools/list"}) for n in range(600)
        ]
        process.stdin.write("\n".join(lines).encode() + b"\n")
        process.stdin.close()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_huge_batch_of_nothing_is_refused_at_once_and_costs_no_memory(start: Start) -> None:
    server = start(handshake=False)
    server.write(b"[" + b"1," * 2**20 + b"1]\n")
    answer = server.wait(lambda message: "error" in message)
    assert answer["error"]["code"] == -32600
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < 100 * 1024  # KiB


def test_half_an_emoji_is_replaced_and_the_rest_served(probe: Start) -> None:
    server = probe()
    params = rb'{"name":"echo","arguments":{"text":"a\ud83d b"}}'
    call = b'{"jsonrpc":"2.0","id":"half","method":"tools/call","params":' + params + b"}"
    server._methods["half"] = "tools/call"
    server.write(call + b"\n")
    assert server.result("half")["content"][0]["text"] == "a? b"


def test_a_number_beyond_all_bounds_is_refused_under_its_id(start: Start) -> None:
    server = start()
    server.write(b'{"jsonrpc":"2.0","id":"big","method":"ping","params":{"x":1e400}}\n')
    with pytest.raises(Refusal) as caught:
        server.result("big")
    assert caught.value.code == -32600


def test_arguments_nested_beyond_the_validator_are_an_error_of_the_tool(probe: Start) -> None:
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    assert "nested" in probe().error("typed", {"count": deep})


def test_callbacks_keep_to_the_sessions_log_level(start: Start) -> None:
    server = start()
    server.request("logging/setLevel", {"level": "error"})
    server.call("SetCallback", {"action": "set", "message": "psst", "delay_seconds": 1, "repeat_count": 1})

    def fired() -> bool:
        return any("psst" in block["text"] for block in server.call("ListBgTasks")["content"][1:])

    assert eventually(fired)
    assert server.notes("notifications/message") == []


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_closed_standard_input_or_output_is_a_refusal(tmp_path: Path, closed: str) -> None:
    command = f"{COMMAND} --state {tmp_path}/state {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 2 and "closed" in done.stderr


def test_a_closed_standard_error_is_survived(tmp_path: Path) -> None:
    command = (
        f"echo '{json.dumps({'jsonrpc': '2.0', 'id': 1, 'method': 'ping'})}' | {COMMAND} --state {tmp_path}/s 2>&-"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["result"] == {}


# -- plugins


def names(server: Server) -> list[str]:
    return [tool["name"] for tool in server.request("tools/list")["tools"]][len(TOOLS) :]


GOOD = (
    'from toolgate.tools import tool\n@tool(read_only=True)\nasync def good() -> str:\n    """Good."""\n    return ""\n'
)


@pytest.mark.parametrize(
    "body",
    [
        "raise KeyboardInterrupt\n",
        "import asyncio\nraise asyncio.CancelledError\n",
        "raise GeneratorExit\n",
        'from toolgate.tools import tool\n@tool(name=5)\nasync def f() -> str:\n    """F."""\n    return ""\n',
        'from toolgate.tools import tool\n@tool(name="a b/../")\nasync def f() -> str:\n    """F."""\n    return ""\n',
        'from toolgate.tools import tool\n@tool(name="")\nasync def f() -> str:\n    """F."""\n    return ""\n',
        'from toolgate.tools import tool\n@tool(input={})\nasync def f() -> str:\n    """F."""\n    return ""\n',
        'from toolgate.tools import tool\n@tool(description="\\ud800")\nasync def f() -> str:\n    return ""\n',
        'from toolgate.tools import tool\n@tool(title=5)\nasync def f() -> str:\n    """F."""\n    return ""\n',
    ],
)
def test_a_plugin_can_break_neither_the_start_nor_the_list(start: Start, tmp_path: Path, body: str) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "bad.py").write_text(body)
    (folder / "good.py").write_text(GOOD)
    server = start("-p", str(folder))
    assert names(server) == ["good"]
    assert "bad.py" in server.log()


def test_odd_things_in_a_plugin_folder_are_passed_over(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "good.py").write_text(GOOD)
    os.mkfifo(folder / "pipe.py")
    (folder / "dangling.py").symlink_to("nowhere")
    (folder / "me").symlink_to(".")
    (folder / "again").symlink_to(".")
    assert names(start("-p", str(folder), "-p", str(folder))) == ["good"]


# -- files of a cloned repository


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_classic_file_that_is_none_is_not_read(start: Start, tmp_path: Path, kind: str) -> None:
    (tmp_path / "work").mkdir()
    path = tmp_path / "work" / "scorpiox-env.txt"
    path.symlink_to("/dev/stdin") if kind == "link" else os.mkfifo(path)
    assert len(start().request("tools/list")["tools"]) == len(TOOLS)


def test_a_call_whose_client_leaves_is_freed_without_the_garbage_collector() -> None:
    """A thousand closed subscriptions held 7 MB."""

    class Held:
        """What the call holds."""

    async def body() -> None:
        async def answer(call: Call) -> None:
            held = Held()
            left.append(weakref.ref(held))
            await asyncio.Event().wait()

        left: list[weakref.ref[Held]] = []
        row = Method(answer, lambda params, principal: NO_SCOPES, before_initialize=True)
        dispatcher = Dispatcher({"slow": row}, {}, lambda answer, call: answer)
        task = asyncio.create_task(dispatcher.handle_message(Request(1, "slow"), Session("me"), Sent()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        del task
        await asyncio.sleep(0)
        assert left[0]() is None

    gc.disable()
    try:
        asyncio.run(body())
    finally:
        gc.enable()


def test_news_of_a_call_that_is_cancelled_just_before_its_answer_is_told_with_the_next() -> None:
    async def body() -> None:
        restored: list[str] = []

        async def answer(call: Call) -> None:
            assert call.flight is not None
            call.flight.on_unsent = lambda: restored.append("news")
            call.session.cancel(call.id)
            await asyncio.sleep(0)  # as for a task that is being written down

        session, sent = Session("me"), Sent()
        row = Method(answer, lambda params, principal: NO_SCOPES, before_initialize=True)
        dispatcher = Dispatcher({"slow": row}, {}, lambda answer, call: answer)
        await asyncio.create_task(dispatcher.handle_message(Request(1, "slow"), session, sent))
        assert (restored, sent.messages) == (["news"], [])

    asyncio.run(asyncio.wait_for(body(), 10))


class Sent:
    """A channel that records its messages."""

    can_ask = False
    is_full = False

    def __init__(self) -> None:
        self.messages: list[Outbound] = []

    def send(self, message: Outbound) -> None:
        self.messages.append(message)

    def pause(self) -> None: ...
