"""The end of the server answers the calls that it interrupts, on each transport."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import COMMAND, PATIENCE, STATELESS, Refusal, Server, eventually
from tests.clients.raw_http_client import site
from tests.conftest import PROBE
from tests.transports.test_restart import begin, call, data, streaming
from toolgate.server.protocol.interruption import INTERRUPTED

pytestmark = pytest.mark.pairs

Start = Callable[..., Server]
LONG = {"seconds": 600}
LONG_GRACE = "300"  # seconds: a test that waits for it fails
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


def begin_wait(client: Server) -> int:
    """Begin a call that lasts longer than the test, and return its id."""
    token = f"token {len(client.messages)}"
    id = client.begin("tools/call", {"name": "wait", "arguments": LONG}, progressToken=token)
    client.wait(lambda message: message.get("params", {}).get("progressToken") == token)
    return id


def assert_interrupted(client: Server, id: int) -> None:
    with pytest.raises(Refusal) as caught:
        client.result(id)
    assert (caught.value.code, caught.value.message) == (-32603, INTERRUPTED)
    assert client.process.wait(PATIENCE) == 0
    assert len([message for message in client.messages if message.get("id") == id]) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
def test_a_signal_answers_a_call_that_outlasts_the_grace(connect: Start, number: int, revision: str) -> None:
    client = connect("--grace", "0.2", revision=revision)
    id = begin_wait(client)
    client.process.send_signal(number)
    assert_interrupted(client, id)


def test_a_call_that_waits_for_the_client_is_answered(connect: Start) -> None:
    client = connect("--grace", "0.2", capabilities={"elicitation": {}}, answer=lambda _method, _params: None)
    id = client.begin("tools/call", {"name": "ask_in_group"})
    client.wait(lambda message: message.get("method") == "elicitation/create")
    client.process.send_signal(signal.SIGTERM)
    assert_interrupted(client, id)


def test_a_call_that_the_client_cancelled_is_not_answered(connect: Start) -> None:
    client = connect("--grace", "0.2")
    cancelled = begin_wait(client)
    client.notify("notifications/cancelled", {"requestId": cancelled})
    other = begin_wait(client)
    client.process.send_signal(signal.SIGTERM)
    assert_interrupted(client, other)
    assert [message for message in client.messages if message.get("id") == cancelled] == []


def test_the_end_of_input_answers_a_call_that_outlasts_the_grace(probe: Start) -> None:
    client = probe("--grace", "0.2")
    id = begin_wait(client)
    assert client.close() == 0
    assert_interrupted(client, id)


@pytest.mark.parametrize("has_ended", [False, True], ids=["after a signal", "after the end of input"])
def test_a_later_signal_over_stdio_does_not_wait_for_the_grace(probe: Start, has_ended: bool) -> None:
    client = probe("--grace", LONG_GRACE)
    id = begin_wait(client)
    assert client.process.stdin is not None
    if has_ended:
        client.process.stdin.close()
    else:
        client.process.send_signal(signal.SIGTERM)
    assert eventually(lambda: interrupt_again(client))
    assert_interrupted(client, id)


def interrupt_again(client: Server) -> bool:
    """Send SIGTERM, and return whether the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        client.process.send_signal(signal.SIGTERM)
    return client.process.poll() is not None


def test_a_request_sent_before_a_signal_is_answered(probe: Start) -> None:
    client = probe()
    id = client.begin("ping")
    client.process.send_signal(signal.SIGTERM)
    assert client.result(id) == {}


# -- batches


@contextlib.contextmanager
def stdio_process(folder: Path, *options: str, **pipes: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server whose pipes the test reads and writes itself."""
    (folder / "state").mkdir()
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, **pipes}
    command = [COMMAND, *PROBE, "--state", str(folder / "state"), *options]
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, "HOME": str(folder)}, **streams)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()


def send(process: subprocess.Popen[bytes], message: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()


BATCH = [{"jsonrpc": "2.0", "id": 1, "method": "ping"}, call("two", "wait", **LONG), call(3, "wait", **LONG)]
ANSWERS: list[Any] = [  # by id
    {"jsonrpc": "2.0", "id": 1, "result": {}},
    {"jsonrpc": "2.0", "id": 3, "error": {"code": -32603, "message": INTERRUPTED}},
    {"jsonrpc": "2.0", "id": "two", "error": {"code": -32603, "message": INTERRUPTED}},
]


def sorted_by_id(answers: list[Any]) -> list[Any]:
    return sorted(answers, key=lambda answer: str(answer["id"]))


@pytest.mark.parametrize("number", [None, signal.SIGTERM], ids=["end of input", "SIGTERM"])
def test_a_batch_over_stdio_is_answered_with_what_is_done_and_errors(tmp_path: Path, number: int | None) -> None:
    with stdio_process(tmp_path, "--grace", "0.2") as process:
        assert process.stdin is not None and process.stdout is not None
        send(process, INITIALIZE)
        process.stdout.readline()
        send(process, BATCH)
        for _ in range(2):
            assert b"notifications/progress" in process.stdout.readline()
        if number is None:
            process.stdin.close()
        else:
            process.send_signal(number)
        (answers,) = [json.loads(line) for line in process.stdout]
        assert sorted_by_id(answers) == ANSWERS
        assert process.wait(PATIENCE) == 0


def test_a_batch_over_http_is_answered_with_what_is_done_and_errors(tmp_path: Path) -> None:
    with site(tmp_path, *PROBE, "--grace", "0.2") as server:
        session = begin(server, "2025-03-26")
        with streaming(server, session, BATCH) as events:
            assert "notifications/progress" in next(event["data"] for event in events if event.get("data"))
            server.process.send_signal(signal.SIGTERM)
            (answers,) = [message for message in data(list(events)) if isinstance(message, list)]
            assert sorted_by_id(answers) == ANSWERS


# -- clients that do not read


def test_requests_that_were_read_but_not_begun_are_answered(tmp_path: Path) -> None:
    """Unread output stops the work on later lines, which a signal then finds waiting."""
    with stdio_process(tmp_path, "--grace", "0.2") as process:
        assert process.stdin is not None and process.stdout is not None
        send(process, INITIALIZE)
        process.stdout.readline()
        calls = [call(f"large {number}", "large", size=5 * 2**20) for number in range(3)]
        process.stdin.write(b"".join(json.dumps(message).encode() + b"\n" for message in calls))
        process.stdin.flush()
        first = process.stdout.read1(1)
        process.send_signal(signal.SIGTERM)
        answers = [json.loads(line) for line in (first + process.stdout.read()).splitlines()]
        assert sorted(answer["id"] for answer in answers if "id" in answer) == ["large 0", "large 1", "large 2"]


@pytest.mark.parametrize("reads", ["nothing", "not any more"])
def test_the_end_comes_in_time_if_the_client_reads_no_answer(tmp_path: Path, reads: str) -> None:
    with stdio_process(tmp_path, "--grace", "0.2") as process:
        assert process.stdin is not None and process.stdout is not None
        send(process, INITIALIZE)
        process.stdout.readline()
        send(process, call(1, "wait", **LONG))
        process.stdout.readline()
        send(process, call(2, "large", size=8 * 2**20))
        process.stdout.read1(1)  # of an answer that fills the pipe
        if reads == "not any more":
            process.stdout.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
