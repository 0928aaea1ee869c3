"""Memory for requests, answers and streams of one principal: peaks of the real process, and its own gauges."""

import contextlib
import json
import os
import re
import select
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clients.raw_client import COMMAND, eventually
from tests.clients.raw_http_client import Site, site
from tests.needed_features import require
from tests.server.auth.minted_tokens import asked, session, signed_site
from tests.servers.isolated_plugins import resident

MIB = 2**20
FILE = 8 * MIB  # the largest that resources/read takes


def send(port: int, head: str, body: bytes, *, size: int | None = None) -> socket.socket:
    """Return a connection with a sent request and an unread answer. `size`: the Content-Length."""
    wire = socket.socket()
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    wire.settimeout(30)
    wire.connect(("127.0.0.1", port))
    length = f"Content-Length: {len(body) if size is None else size}"
    wire.sendall(f"{head}\r\nHost: 127.0.0.1:{port}\r\n{length}\r\n\r\n".encode() + body)
    return wire


@contextlib.contextmanager
def closed(wires: list[socket.socket]) -> Iterator[None]:
    try:
        yield
    finally:
        for wire in wires:
            wire.close()


def read_stream(wire: socket.socket) -> bytes:
    """Return what is left of an answer in chunks."""
    whole = bytearray()
    while not whole.endswith(b"\r\n0\r\n\r\n"):
        part = wire.recv(MIB)
        assert part, f"the answer ends after {len(whole)} bytes"
        whole += part
    return bytes(whole)


def posted(session: str, **headers: str) -> str:
    told = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Mcp-Session-Id": session,
        **headers,
    }
    return "\r\n".join(["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())])


def reads(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return requests for a file of the largest size, in the workspace of a server."""
    file = folder / "large.txt"
    file.write_bytes(b"x" * FILE)
    params = {"uri": file.as_uri()}
    return [{"jsonrpc": "2.0", "id": id, "method": "resources/read", "params": params} for id in range(count)]


def opened(listening: Site, revision: str) -> str:
    """Return the id of a new session."""
    params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    response, _, _ = listening.ask("POST", "/mcp", hello)
    return response.getheader("mcp-session-id") or ""


def gauge(listening: Site, budget: str) -> float:
    """Return the server's gauge."""
    require("telemetry")
    _, text, _ = listening.ask("GET", "/metrics")
    found = re.search(rf'^toolgate_budget_used{{budget="{budget}"}} (\S+)$', text.decode(), re.M)
    return float(found[1]) if found else -1


def test_a_batch_takes_no_more_memory_than_its_answers_may(tmp_path: Path) -> None:
    with site(tmp_path) as listening:
        batch = json.dumps(reads(tmp_path / "work", 60)).encode()
        id = opened(listening, "2025-03-26")
        answer = listening.ask("POST", "/mcp", batch, mcp_session_id=id, accept="application/json")[2]
        refused = [item["error"] for item in answer if "error" in item]
        assert len(answer) == 60
        assert refused and all(error["code"] == -32603 and "fewer at once" in error["message"] for error in refused)
        with closed([send(listening.port, posted(id), batch)]):
            assert eventually(lambda: gauge(listening, "answers") > 0)
        assert eventually(lambda: gauge(listening, "answers") == 0)
        # all sixty files may be read before the first answer is refused (480); without a limit it is 1,600
        assert resident(listening.process.pid) < 600 * MIB


def test_unread_answers_are_refused_in_the_end(tmp_path: Path) -> None:
    with site(tmp_path) as listening:
        requests = reads(tmp_path / "work", 60)
        id = opened(listening, "2025-06-18")
        told = {"mcp_session_id": id, "accept": "application/json"}
        head = posted(id, Accept="application/json")
        wires = [send(listening.port, head, json.dumps(request).encode()) for request in requests]
        with closed(wires):
            assert b" 200 OK" in wires[-1].recv(1_000)
            error = listening.ask("POST", "/mcp", requests[0], **told)[2]["error"]
            assert error["code"] == -32603
            assert "read the answers that were sent before" in error["message"]
            assert listening.ask("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "ping"}, **told)[2]
        assert eventually(lambda: gauge(listening, "answers") == 0)
        assert "result" in listening.ask("POST", "/mcp", requests[0], **told)[2]
        # all sixty files may be read before the first answer is refused (480); without a limit it is 1,600
        assert resident(listening.process.pid) < 600 * MIB


def test_a_large_answer_on_a_stream_waits_until_there_is_room(tmp_path: Path) -> None:
    with site(tmp_path) as listening:
        *others, request = reads(tmp_path / "work", 30)
        id = opened(listening, "2025-06-18")
        unread = [send(listening.port, posted(id, Accept="application/json"), json.dumps(r).encode()) for r in others]
        with closed(unread):
            assert eventually(lambda: len(select.select(unread, [], [], 0)[0]) == len(unread))  # the last are refused
            with send(listening.port, posted(id, Accept="text/event-stream"), json.dumps(request).encode()) as wire:
                assert eventually(lambda: gauge(listening, "events") > FILE)
                assert b'"jsonrpc"' not in wire.recv(MIB)
                assert gauge(listening, "answers") <= 64 * MIB
                for other in unread:
                    other.close()
                assert len(read_stream(wire)) > FILE


def test_streams_without_readers_end_for_an_answer_that_needs_their_room(tmp_path: Path) -> None:
    with site(tmp_path) as listening:
        *others, request = reads(tmp_path / "work", 14)
        id = opened(listening, "2025-06-18")
        head = posted(id, Accept="text/event-stream")
        with closed([send(listening.port, head, json.dumps(other).encode()) for other in others]):
            assert eventually(lambda: gauge(listening, "events") > 7 * FILE)  # there is no room for an eighth
            with send(listening.port, head, json.dumps(request).encode()) as wire:
                assert b"there is no room for this answer" in read_stream(wire)
            assert gauge(listening, "answers") <= 64 * MIB
        assert eventually(lambda: gauge(listening, "answers") == 0)
        with send(listening.port, head, json.dumps(request).encode()) as wire:
            assert len(read_stream(wire)) > FILE
        assert gauge(listening, "events") <= 64 * MIB
        # both budgets of a principal, and a copy of what is being written
        assert resident(listening.process.pid) < 600 * MIB


def test_bodies_that_are_half_sent_take_no_more_than_their_share(tmp_path: Path) -> None:
    with signed_site(tmp_path) as signed:
        ada, bob = signed.token("ada"), signed.token("bob")
        head = posted(session(signed, ada), Authorization=f"Bearer {ada}")
        wires = [send(signed.site.port, head, b"x" * (15 * MIB), size=16 * MIB) for _ in range(20)]
        with closed(wires):
            assert eventually(lambda: gauge(signed.site, "bodies") > 0)

            def answered() -> list[socket.socket]:
                return select.select(wires, [], [], 0)[0]

            assert eventually(lambda: len(answered()) >= 16)  # any four find room
            assert all(b" 503 " in wire.recv(100) for wire in answered())
            assert asked(signed, bob, "tools/list", {"_meta": {"padding": "x" * (15 * MIB)}})[0].status == 200
        assert eventually(lambda: gauge(signed.site, "bodies") == 0)
        assert resident(signed.site.process.pid) < 350 * MIB


def test_a_stranger_has_no_large_form_read(tmp_path: Path) -> None:
    with signed_site(tmp_path) as signed:
        signed.site.ask("GET", "/", accept="text/html")
        before = resident(signed.site.process.pid)
        head = "POST / HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded"
        wires = [send(signed.site.port, head, b"x" * (MIB - 1_000), size=MIB - 999) for _ in range(100)]
        with closed(wires):
            for wire in wires:
                wire.sendall(b"x")
            assert all(b" 303 " in wire.recv(100) for wire in wires)
        assert resident(signed.site.process.pid) - before < 40 * MIB


def test_events_kept_for_resumption_are_bounded_for_a_principal(tmp_path: Path) -> None:
    """One session keeps little, but a principal may have three hundred."""
    with site(tmp_path) as listening:
        request = reads(tmp_path / "work", 1)[0]
        for _ in range(12):
            id = opened(listening, "2025-06-18")
            listening.ask("POST", "/mcp", request, mcp_session_id=id, accept="text/event-stream")
            with closed([send(listening.port, posted(id, Accept="text/event-stream"), json.dumps(request).encode())]):
                assert eventually(lambda: gauge(listening, "answers") != 0)
        assert gauge(listening, "events") <= 64 * MIB
        assert resident(listening.process.pid) < 350 * MIB


def test_stdio_refuses_large_answers_while_others_are_unread(tmp_path: Path) -> None:
    command, environment = [COMMAND, "--state", str(tmp_path / "state"), "--workspace", str(tmp_path)], dict(os.environ)
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) as process:
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}
        hello = {"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": params}
        process.stdin.write(json.dumps(hello).encode() + b"\n")
        process.stdin.flush()
        assert b"hello" in process.stdout.readline()
        requests = reads(tmp_path, 60)
        process.stdin.write(b"\n".join(json.dumps(request).encode() for request in requests) + b"\n")
        process.stdin.flush()
        assert eventually(lambda: resident(process.pid) > 100 * MIB)
        answers = [json.loads(process.stdout.readline()) for _ in requests]
        assert sorted(answer["id"] for answer in answers) == [request["id"] for request in requests]
        assert {answer["error"]["code"] for answer in answers if "error" in answer} == {-32603}
        assert resident(process.pid) < 400 * MIB
        process.stdin.close()
        assert process.wait() == 0
