"""Gateways and nodes that die, stop or break the rules: nothing starts twice, and nothing is lost without a word."""

import asyncio
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.clients.raw_client import ROOT
from tests.server.features.nodes.nodes import (
    NodeProcess,
    fake_placement,
    fake_principal,
    gateway,
    list_nobody,
    remote_caller,
    remote_workspace,
    running_node,
)
from tests.servers import forked_command
from tests.tools.shell_commands import BOUND, Caller, alive, text_of, until
from toolgate.server.base.rpc import frames
from toolgate.server.base.version import VERSION
from toolgate.server.base.watch import FileChanges
from toolgate.server.features.nodes import messages
from toolgate.server.features.nodes.gateway.remote_workspaces import RemoteWorkspaces
from toolgate.server.features.nodes.node.task_ends import MAX_UNDER_WAY
from toolgate.tools.api.context.notices import Notices
from toolgate.tools.workspace.commands import end_notice
from toolgate.tools.workspace.output.run_record import Run, TaskEnd
from toolgate.tools.workspace.output.spool import KEPT_UNREPORTED

WITHIN = 2.0  # seconds: what is promised of a call while the node can't be reached


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(tmp_path_factory.mktemp("node"), "--sandbox", "none") as node:
        yield node


def is_written(file: Path) -> bool:
    """Return whether a command has written its line into the file, which is there a moment before."""
    return file.exists() and file.read_text().endswith("\n")


def test_an_end_is_told_to_the_next_gateway(node: NodeProcess) -> None:
    principal, ends, notices = fake_principal(), list[Run](), Notices()

    async def body() -> None:
        async with gateway(node) as remote:
            mine = remote.get_or_open(principal)
            assert await mine.list() == []
            os.mkfifo(mine.root / "go")
            task = await mine.start("read -r _ < go; echo end", background=True)
        (node.state / "workspaces" / principal / "go").write_text("\n")
        async with gateway(node, lambda _, run: ends.append(run)) as remote:
            page = remote.find(principal)
            assert page is not None and await page.wait(task, BOUND)
            assert [run.status for run in await page.list()] == ["exited"] and not ends  # they wait for a call
            assert await remote.get_or_open(principal).wait(task, BOUND)
            await until(lambda: bool(ends))
            end_notice.add(notices, ends[0])
            assert "exited with code" in notices.take()[f"bg-{task}"].text
        async with gateway(node, lambda _, run: ends.append(run)) as remote:
            await remote.get_or_open(principal).list()
            assert len(ends) == 1

    asyncio.run(body())


def test_a_cancelled_execution_leaves_nothing(node: NodeProcess) -> None:
    async def body() -> None:
        async with remote_workspace(node) as mine:
            os.mkfifo(mine.root / "begun")
            call = asyncio.ensure_future(mine.execute("echo $$ > begun; sleep 100", wait=BOUND, limit=100))
            shell = int(await asyncio.to_thread((mine.root / "begun").read_text))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert not alive(shell)
            with pytest.raises(KeyError):
                await mine.run(1)

    asyncio.run(body())


def test_a_cancellation_that_crosses_the_answer_ends_the_command(node: NodeProcess) -> None:
    async def body() -> None:
        async with gateway(node) as remote:
            mine = remote.get_or_open(fake_principal())
            calls: list[asyncio.Future[object]] = []
            (link,) = remote.links
            take = link._take

            def take_and_cancel(message: object) -> None:
                take(message)
                for call in calls:
                    call.cancel()

            link._take = take_and_cancel  # type: ignore[method-assign]
            assert await mine.list() == []
            call = asyncio.ensure_future(mine.execute("echo $$ > shell; exec sleep 500", wait=0.3, limit=100))
            calls.append(call)
            with pytest.raises(asyncio.CancelledError):
                await call
            shell = mine.root / "shell"
            assert not is_written(shell) or not alive(int(shell.read_text()))  # it may have had no time to begin
            with pytest.raises(KeyError):
                await mine.run(1)

    asyncio.run(body())


@pytest.mark.soak
def test_a_stopped_node_is_an_error_in_time_and_its_command_goes_on(tmp_path: Path) -> None:
    async def body(node: NodeProcess) -> None:
        async with remote_caller(node) as me:
            await me.bash("true")
            call = asyncio.ensure_future(me.bash("echo begun; sleep 100"))
            await asyncio.sleep(0.3)
            node.process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            assert "it is not known how far this came" in text_of(await call)
            assert time.monotonic() - began < WITHIN
            assert "can't be reached" in text_of(await me.bash("true"))
            assert time.monotonic() - began < 2 * WITHIN
            node.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(1.0)
            assert not (await me.bash("true")).is_error
            listed = (await me.call("ListBgTasks")).structured["tasks"]
            assert [task["status"] for task in listed if "begun" in task["command"]] == ["running"]

    with running_node(tmp_path, "--sandbox", "none") as node:
        asyncio.run(body(node))


def test_a_node_that_was_killed_took_all_with_it_and_says_so_when_it_is_back(tmp_path: Path) -> None:
    async def body(node: NodeProcess) -> None:
        async with remote_caller(node) as me:
            task = (await me.call("BackgroundBash", command="echo kept; exec sleep 500")).structured["task_id"]
            await me.workspace.wait_output(task, 0, BOUND)
            shell = int(text_of(await me.bash("pgrep -n -f 'sleep 50[0]'")))
            call = asyncio.ensure_future(me.bash("sleep 100"))
            await asyncio.sleep(0.2)
            began = time.monotonic()
            node.kill()
            assert "it is not known how far this came; nothing was run elsewhere" in text_of(await call)
            assert time.monotonic() - began < WITHIN
            await until(lambda: not alive(shell))
            assert "nothing was done" in text_of(await me.bash("true"))
            await asyncio.to_thread(node.start)
            await asyncio.sleep(1.1)
            assert not (await me.bash("true")).is_error
            assert (await me.workspace.run(task)).status == "lost"
            assert await me.workspace.read(task, 0, 100) == b"kept\n"

    with running_node(tmp_path, "--sandbox", "none") as node:
        asyncio.run(body(node))


def test_a_node_sends_thousands_of_ends_as_the_gateway_reports_them(tmp_path: Path) -> None:
    people, ends = [fake_principal() for _ in range(3)], list[tuple[str, int]]()
    with running_node(tmp_path / "node", "--sandbox", "none") as node:
        for person in people:
            for number in range(1, KEPT_UNREPORTED + 1):
                folder = node.state / "spool" / person / str(number)
                folder.mkdir(mode=0o700, parents=True)
                run = Run(number, "true", "a-server", time.time(), True, "exited", 0, time.time(), is_report_due=True)
                (folder / "task.json").write_bytes(msgspec.json.encode(run))

        def take_end(principal: str, end: TaskEnd) -> None:
            ends.append((principal, end.run.id))
            confirmations.append(end.confirm)

        confirmations: list[Callable[[], None]] = []

        async def body() -> None:
            remote = RemoteWorkspaces(fake_placement(node.address), FileChanges(), take_end, list_nobody)
            for person in people:
                await remote.get_or_open(person).list()
            await until(lambda: len(ends) == MAX_UNDER_WAY)
            while len(ends) < 3 * KEPT_UNREPORTED:
                await until(lambda: bool(confirmations))
                confirmations.pop()()
            await remote.close()

        asyncio.run(body())
    assert len(set(ends)) == len(ends) == 3 * KEPT_UNREPORTED


def test_a_node_ends_all_it_runs_and_removes_its_socket(tmp_path: Path) -> None:
    async def body(node: NodeProcess) -> int:
        async with gateway(node) as remote:
            mine = remote.get_or_open(fake_principal())
            await mine.start("echo $$ > shell; exec sleep 500", background=True)
            await until(lambda: is_written(mine.root / "shell"))
            return int((mine.root / "shell").read_text())

    with running_node(tmp_path, "--sandbox", "none") as node:
        shell = asyncio.run(body(node))
        assert node.stop() == 0
        assert not alive(shell)
        assert not node.socket.exists()


def test_a_second_signal_ends_the_grace_of_a_node_and_all_it_runs(tmp_path: Path) -> None:
    async def body(node: NodeProcess) -> None:
        async with gateway(node) as remote:
            mine: Any = remote.get_or_open(fake_principal())
            command = "trap '' TERM; echo $$ > shell; sleep 500; sleep 500"
            calling = asyncio.ensure_future(Caller(mine, Notices()).bash(command))
            await until(lambda: is_written(mine.root / "shell"))
            node.process.send_signal(signal.SIGTERM)
            await until(lambda: not node.socket.exists())
            began = time.monotonic()
            node.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(node.process.wait, BOUND) == 0
            assert time.monotonic() - began < 30  # of a grace of 60
            assert not alive(int((mine.root / "shell").read_text()))
            assert (await asyncio.wait_for(calling, BOUND)).is_error

    with running_node(tmp_path, "--sandbox", "none", "--grace", "60") as node:
        asyncio.run(body(node))


def send_raw(node: NodeProcess, *pieces: bytes) -> bytes:
    """Return all that the node answers until it closes the connection."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(BOUND)
        line.connect(str(node.socket))
        for piece in pieces:
            line.sendall(piece)
        answer = b""
        while data := line.recv(2**16):
            answer += data
        return answer


def frame(value: object) -> bytes:
    data = json.dumps(value).encode()
    return frames.LENGTH.pack(len(data)) + data


HELLO = frame(["hello", messages.VERSION, "0", "a-gateway"])
PRINCIPAL = "u-" + "0" * 40


@pytest.mark.parametrize(
    "pieces",
    [
        (struct.pack(">I", 2**31),),
        (HELLO, struct.pack(">I", 2**31)),
        (HELLO, frame(["open-the-gates"])),
        (HELLO, HELLO),
        (HELLO, frame(["request", "one", PRINCIPAL, "workspace.run", {}])),
        (HELLO, frame(["request", 1, "../../etc", "workspace.run", {}])),
        (frame(["ping"]),),
        (frame(["hello", messages.VERSION, "0", "a-gateway", "../../etc"]),),
        (HELLO, b"\x00\x00\x00\x02\xff\xff"),
    ],
)
def test_a_gateway_that_breaks_the_rules_is_refused_with_a_reason(node: NodeProcess, pieces: tuple[bytes, ...]) -> None:
    assert b'"refused","it sent' in send_raw(node, *pieces)
    assert node.answers()


def test_a_newer_gateway_is_answered_in_the_highest_version_of_both(node: NodeProcess) -> None:
    answer = send_raw(node, frame(["hello", 99, "99.0", "", "", "a field of version 99"]))
    welcome = messages.FROM_NODE.decode(answer[frames.LENGTH.size :])
    assert isinstance(welcome, messages.Welcome) and welcome.version == messages.VERSION


def test_a_version_that_is_too_old_is_refused_with_both_releases(node: NodeProcess) -> None:
    answer = send_raw(node, frame(["hello", messages.SPOKEN[0] - 1, "0.0.1", ""]))
    assert f"this node is Toolgate {VERSION}, the gateway is 0.0.1: upgrade the older of the two".encode() in answer


@pytest.mark.parametrize(
    ("gateway", "node", "version"),
    [((1, 2), (1, 2), 2), ((1, 2), (2, 3), 2), ((2, 3), (1, 2), 2), ((1, 2), (3, 4), None), ((3, 4), (1, 2), None)],
)
def test_both_sides_agree_on_a_version_or_on_none(
    gateway: tuple[int, ...], node: tuple[int, ...], version: int | None
) -> None:
    chosen = messages.choose_version(gateway[-1], node)
    assert (chosen if chosen in gateway else None) == version


def test_an_older_node_is_sent_no_argument_that_it_does_not_know() -> None:
    arguments = {"command": "cd -", "previous": None}
    assert messages.drop_newer(arguments, 1) == {"command": "cd -"}
    assert messages.drop_newer(arguments, messages.VERSION) == arguments


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("workspace.close", {"grace": 0}),
        ("node.__init__", {}),
        ("workspace.run", {"run_id": "1"}),
        ("workspace.run", {"run_id": 1, "more": 2}),
        ("workspace.run", {"run_id": 424242}),
        ("node.measure_file", {"path": "/etc/shadow", "largest": 2**40, "anywhere": False}),
    ],
)
def test_a_request_for_what_is_not_there_is_an_error_of_that_request_alone(
    node: NodeProcess, name: str, arguments: dict[str, object]
) -> None:
    async def body() -> None:
        reader, writer = await asyncio.open_unix_connection(str(node.socket))
        try:
            writer.write(HELLO + frame(["request", 7, PRINCIPAL, name, arguments]))
            async with asyncio.timeout(BOUND):
                welcome = await frames.read_frame(reader, messages.FROM_NODE)
                answer = await frames.read_frame(reader, messages.FROM_NODE)
            assert isinstance(welcome, messages.Welcome) and isinstance(answer, messages.NodeAnswer)
            assert (answer.number, answer.error is not None) == (7, True)
            writer.write(frame(["taken", [7], []]))
        finally:
            writer.close()

    asyncio.run(body())


def test_a_second_node_is_refused(node: NodeProcess, tmp_path: Path) -> None:
    for words, reason in (
        (["--state", str(node.state), "--listen", f"unix:{tmp_path}/other.sock"], "another node has"),
        (["--state", str(tmp_path / "state"), "--listen", f"unix:{node.socket}"], "another process listens"),
        (
            ["--state", str(tmp_path / "state"), "--listen", "127.0.0.1:9999"],
            "needs --node-certificate FILE: toolgate node certificate 127.0.0.1",
        ),
    ):
        command = [forked_command.COMMAND, "node", *words]
        done = forked_command.run(command, "", cwd=ROOT, env={"PATH": os.environ["PATH"]})
        assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
