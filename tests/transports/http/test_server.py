"""The HTTP server through the real process: allowed callers, limits, and shutdown."""

import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.raw_client import COMMAND, eventually, processes_with
from tests.clients.raw_http_client import POSTED, Site, events, read_messages
from tests.transports.test_streamable_http import modern, opened, request, stream
from toolgate.server.protocol.interruption import INTERRUPTED

MIB = 2**20
ROUTES = [
    ("POST", "/mcp"),
    ("GET", "/mcp"),
    ("DELETE", "/mcp/"),
    ("GET", "/sse"),
    ("POST", "/messages"),
    ("GET", "/nowhere"),
]
PROGRESS = "notifications/progress"
Listen = Callable[..., Site]


def raw(site: Site, *parts: bytes, wait: float = 20) -> bytes:
    """Send raw bytes and return everything received until the server closes."""
    with site.socket(wait) as wire:
        for part in parts:
            wire.sendall(part)
        came = b""
        with contextlib.suppress(ConnectionResetError):
            while data := wire.recv(65_536):
                came += data
        return came


# -- allowed callers


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_foreign_host_or_origin_is_refused_on_every_route_with_the_option_named(
    shared: Site, method: str, path: str
) -> None:
    for host in ("evil.example.com", "localhost.evil.example", "127.0.0.1.nip.io:80", "", "localhost:evil"):
        response, content, _ = shared.ask(method, path, host=host)
        assert response.status == 421, host
        assert b"--allowed-hosts" in content
    for origin in ("http://evil.example.com", "null", "https://localhost.evil.example", "file://", "localhost"):
        response, content, _ = shared.ask(method, path, origin=origin)
        assert response.status == 403, origin
        assert b"--allowed-origins" in content


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_the_probes_are_for_anyone(shared: Site, path: str) -> None:
    response, _, said = shared.ask("GET", path, host="10.0.0.7:80")
    assert (response.status, said["status"]) == (200, {"/health": "ok", "/ready": "ready"}[path])


def test_loopback_names_may_call_with_any_port(shared: Site) -> None:
    for name in ("localhost", "127.0.0.1", "[::1]", f"localhost:{shared.port}", "LOCALHOST:1", "[::1]:8080"):
        hello = request("initialize", {"protocolVersion": "2025-11-25"})
        assert shared.ask("POST", "/mcp", hello, host=name, origin=f"http://{name}")[0].status == 200


def test_more_hosts_and_origins_are_an_option(listen: Listen) -> None:
    site = listen("--allowed-hosts", "tools.example", "--allowed-origins", "https://app.example")
    hello = request("initialize", {"protocolVersion": "2025-11-25"})
    assert site.ask("POST", "/mcp", hello, host="tools.example", origin="https://app.example")[0].status == 200
    assert site.ask("POST", "/mcp", hello, origin="http://app.example")[0].status == 403


@pytest.mark.parametrize("name", ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Proto", "x-forwarded-anything"])
def test_without_signing_in_nothing_that_came_through_a_proxy_is_served(shared: Site, name: str) -> None:
    for method, path in ROUTES:
        response, content, _ = shared.ask(method, path, **{name: "for=10.0.0.1"})
        assert response.status == 403
        assert b"--auth" in content


def test_a_preflight_is_answered_and_the_protocols_headers_are_exposed(shared: Site) -> None:
    told = {
        "origin": "http://localhost:3000",
        "access_control_request_method": "POST",
        "access_control_request_headers": "content-type, mcp-session-id, Mcp-Param-Region, mcp-param-a_b, evil",
    }
    response, content, _ = shared.ask("OPTIONS", "/mcp", **told)
    assert (response.status, content) == (204, b"")
    assert response.getheader("access-control-allow-origin") == "http://localhost:3000"
    assert set((response.getheader("access-control-allow-methods") or "").split(", ")) >= {"GET", "POST", "DELETE"}
    allowed = (response.getheader("access-control-allow-headers") or "").split(", ")
    wanted = "content-type accept authorization last-event-id mcp-session-id mcp-protocol-version mcp-method mcp-name"
    assert {*wanted.split(), "mcp-param-region", "mcp-param-a_b"} == set(allowed)
    hello = request("initialize", {"protocolVersion": "2025-11-25"})
    response, _, _ = shared.ask("POST", "/mcp", hello, origin="http://localhost:3000")
    assert response.getheader("access-control-allow-origin") == "http://localhost:3000"
    assert response.getheader("vary") == "Origin"
    exposed = (response.getheader("access-control-expose-headers") or "").split(", ")
    assert {"mcp-session-id", "mcp-protocol-version", "www-authenticate"} <= set(exposed)


# -- valid requests


@pytest.mark.parametrize("accept", ["text/html", "image/*", "*/*;q=0", "application/xml, text/plain"])
def test_an_accept_that_cannot_be_met_is_406(shared: Site, accept: str) -> None:
    assert shared.ask("POST", "/mcp", request("ping"), accept=accept)[0].status == 406


@pytest.mark.parametrize(
    "accept", ["*/*", "text/event-stream, application/json", "Application/JSON;q=0.9,TEXT/event-stream"]
)
def test_an_accept_that_can_is_served(shared: Site, accept: str) -> None:
    assert shared.ask("POST", "/mcp", request("ping"), accept=accept, mcp_session_id=opened(shared))[0].status == 200


def test_a_get_that_takes_no_events_is_406(shared: Site) -> None:
    told = {"mcp_session_id": opened(shared), "accept": "application/json"}
    assert shared.ask("GET", "/mcp", **told)[0].status == 406


@pytest.mark.parametrize("coding", ["gzip", "br", "nonsense"])
def test_a_packed_body_is_415(shared: Site, coding: str) -> None:
    assert shared.ask("POST", "/mcp", request("ping"), content_encoding=coding)[0].status == 415


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"])
def test_a_body_that_is_not_json_by_its_type_is_415(shared: Site, kind: str) -> None:
    assert shared.ask("POST", "/mcp", request("ping"), content_type=kind)[0].status == 415
    fine = "application/json; charset=utf-8"
    assert (
        shared.ask("POST", "/mcp", request("ping"), content_type=fine, mcp_session_id=opened(shared))[0].status == 200
    )


@pytest.mark.parametrize(
    ("path", "allowed"), [("/mcp", "POST, GET, DELETE"), ("/sse", "GET"), ("/messages", "POST"), ("/health", "GET")]
)
def test_another_method_is_405_with_what_is_allowed(shared: Site, path: str, allowed: str) -> None:
    for method in ("PUT", "PATCH", "TRACE", "OPTIONS"):
        response, _, _ = shared.ask(method, path)
        assert response.status == 405
        assert set(allowed.split(", ")) <= set((response.getheader("allow") or "").split(", "))


def test_a_path_that_is_none_is_404(shared: Site) -> None:
    for path in ("/x", "/mcp/x", "/mcpx", "//mcp", "/MCP", "/mcp/../health", "/%6dcp/x"):
        assert shared.ask("GET", path)[0].status == 404, path


def test_nothing_is_ever_compressed(shared: Site) -> None:
    session = opened(shared)
    told = {"Mcp-Session-Id": session, "Accept-Encoding": "gzip, br, deflate"}
    for tool in ("large", "wait_large"):
        body = request("tools/call", {"name": tool, "arguments": {"size": 50_000}, "_meta": {"progressToken": 1}})
        connection, response = stream(shared, body, told)
        assert response.getheader("content-encoding") is None
        if tool == "wait_large":
            assert "no-transform" in (response.getheader("cache-control") or "")
        assert b"x" * 50_000 in response.read()
        connection.close()


# -- size and time limits


def test_a_body_as_large_as_may_be_is_served_and_one_larger_is_413_declared_or_not(shared: Site) -> None:
    session = opened(shared)
    told = {**POSTED, "Mcp-Session-Id": session}
    text = "x" * (15 * MIB)
    body = json.dumps(request("tools/call", {"name": "echo", "arguments": {"text": text}})).encode()
    response, _, answer = shared.ask("POST", "/mcp", body, mcp_session_id=session)
    assert (response.status, len(answer["result"]["content"][0]["text"])) == (200, 15 * MIB)
    too_much = b" " * (16 * MIB + 1)
    assert shared.ask("POST", "/mcp", too_much, mcp_session_id=session)[0].status == 413
    with contextlib.closing(shared.connect()) as connection:
        chunks = (b" " * MIB for _ in range(17))
        connection.request("POST", "/mcp", chunks, told, encode_chunked=True)
        assert connection.getresponse().status == 413
    with shared.socket() as wire:
        wire.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        wire.sendall(b"Content-Length: 99999999999\r\n\r\n")
        assert wire.recv(100).startswith(b"HTTP/1.1 413")  # at once, before the body


def test_a_body_that_comes_with_its_head_in_one_piece_is_taken(shared: Site) -> None:
    session = opened(shared)
    body = json.dumps(request("tools/call", {"name": "echo", "arguments": {"text": "y" * 400_000}})).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Mcp-Session-Id: {session}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    assert b"y" * 400_000 in raw(shared, head.encode() + body)


def test_a_huge_head_is_refused_whether_it_ends_or_not(shared: Site) -> None:
    line = b"X-Filler: " + b"a" * 1_000 + b"\r\n"
    begin = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    assert raw(shared, begin, line * 100, b"\r\n").startswith(b"HTTP/1.1 431")
    assert raw(shared, begin, b"X-Filler: " + b"a" * 300_000).startswith(b"HTTP/1.1 431")
    assert raw(shared, b"GET /" + b"a" * 300_000).startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
    assert raw(shared, begin, line * 20, b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert shared.ask("GET", "/health")[0].status == 200


@pytest.mark.parametrize(
    "bad",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\nConnection: close\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHo st: localhost\r\n\r\n",
    ],
)
def test_a_malformed_request_is_400_and_others_are_served(shared: Site, bad: bytes) -> None:
    assert raw(shared, bad).startswith(b"HTTP/1.1 400")
    assert shared.ask("GET", "/health")[0].status == 200


def test_pipelined_requests_are_answered_in_order(shared: Site) -> None:
    ask = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
    came = raw(shared, ask % (b"health", b"") + ask % (b"ready", b"") + ask % (b"nowhere", b"Connection: close\r\n"))
    assert re.findall(rb"HTTP/1.1 (\d+)", came) == [b"200", b"200", b"404"]
    assert came.index(b'"ok"') < came.index(b'"ready"')


def test_hundreds_of_half_requests_delay_no_client_and_leave_nothing(shared: Site) -> None:
    folder = Path(f"/proc/{shared.process.pid}/fd")  # a file watcher may open one, too

    def sockets() -> int:
        found = 0
        for one in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found += one.readlink().name.startswith("socket:")
        return found

    before = sockets()
    head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
    halves = [b"POST /mcp HT", head[:60], head, head + b'{"jsonrpc"', b""]
    wires = [shared.socket() for _ in range(300)]
    try:
        for n, wire in enumerate(wires):
            wire.sendall(halves[n % len(halves)])
        begun = time.monotonic()
        assert shared.ask("GET", "/health")[0].status == 200
        assert time.monotonic() - begun < 12
    finally:
        for wire in wires:
            wire.close()
    assert eventually(lambda: sockets() <= before + 2)


# -- readers


def memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def test_clients_that_never_read_cost_bounded_memory_and_delay_no_other(listen: Listen) -> None:
    site = listen()
    session = opened(site)
    assert site.ask("GET", "/health")[0].status == 200
    warm = request("tools/call", {"name": "wait_large", "arguments": {"size": 2 * MIB}, "_meta": {"progressToken": 0}})
    for _ in range(8):
        connection, response = stream(site, warm, {"Mcp-Session-Id": session})
        response.read()
        connection.close()
    before = memory(site.process.pid)
    stuck = []
    for n in range(20):
        body, told = modern("tools/call", {"name": "wait_large", "arguments": {"size": 2 * MIB}}, id=n)
        body["params"]["_meta"]["progressToken"] = n
        connection = site.connect()
        connection.request("POST", "/mcp", json.dumps(body), {**POSTED, **told})
        stuck.append(connection)
    begun = time.monotonic()
    for _ in range(20):
        assert site.ask("POST", "/mcp", request("ping"), mcp_session_id=session)[0].status == 200
    assert time.monotonic() - begun < 12
    assert memory(site.process.pid) - before < 20 * 8 * MIB
    for connection in stuck:
        connection.close()
    assert eventually(lambda: memory(site.process.pid) - before < 60 * MIB)


def test_a_second_of_silence_costs_nothing_even_with_open_streams(listen: Listen) -> None:
    site = listen()
    held = []
    for n in range(10):
        held.append(stream(site, None, {"Mcp-Session-Id": opened(site)}, "GET"))
        connection = site.connect()
        connection.request("GET", "/sse")
        held.append((connection, connection.getresponse()))
        body, told = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id=n)
        held.append(stream(site, body, told))
    eventually(lambda: False, 2.0)  # past what is started late

    def ticks() -> int:
        fields = Path(f"/proc/{site.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    eventually(lambda: False, 1.5)
    assert ticks() - before <= 2  # hundredths of a second
    for connection, response in held:
        response.close()
        connection.close()


# -- the end


def test_running_calls_may_finish_and_streams_end_in_order(listen: Listen) -> None:
    site = listen()
    session = opened(site)
    standing = stream(site, None, {"Mcp-Session-Id": session}, "GET")
    body, told = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id="sub")
    listening = stream(site, body, told)
    call = request("tools/call", {"name": "wait", "arguments": {"seconds": 1.5}, "_meta": {"progressToken": 1}}, id=5)
    running = stream(site, call, {"Mcp-Session-Id": session})
    quick = site.connect()
    call["params"] = {"name": "wait", "arguments": {"seconds": 0.8}}
    quick.request("POST", "/mcp", json.dumps({**call, "id": 6}), {**POSTED, "Mcp-Session-Id": session})
    assert eventually(lambda: any("progress" in str(event) for event in events(running[1])))
    kept = site.connect()
    kept.request("GET", "/ready")
    assert kept.getresponse().read() == b'{"status":"ready","sandbox":"none"}'
    site.process.send_signal(signal.SIGTERM)
    ended = [json.loads(event["data"]) for event in events(listening[1]) if event.get("data")]
    assert ended[-1]["id"] == "sub"
    assert ended[-1]["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "sub"
    with pytest.raises(OSError):
        site.socket(1).close()  # no new client
    kept.request("POST", "/mcp", json.dumps(request("ping")), {**POSTED, "Mcp-Session-Id": session})
    refused = kept.getresponse()
    assert (refused.status, refused.getheader("connection")) == (503, "close")
    answered = quick.getresponse()
    (said,) = read_messages(answered, answered.read())
    assert said["result"]["content"][0]["text"] == "waited"
    (answer,) = (json.loads(event["data"]) for event in events(running[1]) if "result" in event.get("data", ""))
    assert answer["result"]["content"][0]["text"] == "waited"
    assert [event for event in events(standing[1]) if event.get("data")] == []
    assert site.process.wait(60) == 0
    for connection, response in (standing, listening, running, (quick, refused), (kept, refused)):
        response.close()
        connection.close()


def test_a_stuck_call_is_killed_after_the_grace_with_its_children(listen: Listen) -> None:
    site = listen("--grace", "0.5")
    mark = f"95.{os.getpid()}1"
    call = request("tools/call", {"name": "Bash", "arguments": {"command": f"(setsid sleep {mark} &); sleep {mark}"}})
    connection, response = stream(site, call, {"Mcp-Session-Id": opened(site)})
    assert eventually(lambda: len(processes_with(mark)) >= 2)
    begun = time.monotonic()
    assert site.stop() == 0
    assert time.monotonic() - begun < 12
    (event,) = [event for event in events(response) if event.get("data")]
    assert json.loads(event["data"])["error"]["message"] == INTERRUPTED
    assert not processes_with(mark)
    connection.close()


def test_sigterm_while_it_still_starts_is_an_orderly_end(tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "slow.py").write_text(
        f"import pathlib, time\npathlib.Path({str(tmp_path / 'begun')!r}).touch()\ntime.sleep(60)\n"
    )
    words = [COMMAND, "-t", "--auth", "none", "--port", "0", "-p", "slow", "--state", "state"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, env={"PATH": os.environ["PATH"]}) as process:
        assert eventually((tmp_path / "begun").exists)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in said.decode()) == (0, False), said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(listen: Listen, number: int) -> None:
    site = listen("--grace", "60")
    call = request("tools/call", {"name": "wait", "arguments": {"seconds": 40}})
    connection, response = stream(site, call, {"Mcp-Session-Id": opened(site)})
    begun = time.monotonic()
    site.process.send_signal(number)
    refused = eventually(lambda: _is_closed(site), 10)
    assert refused and site.process.poll() is None
    assert site.stop(number) == 0
    assert time.monotonic() - begun < 80
    response.close()
    connection.close()


def _is_closed(site: Site) -> bool:
    try:
        site.socket(1).close()
    except OSError:
        return True
    return False


def test_a_client_that_never_reads_does_not_hold_up_the_end(listen: Listen) -> None:
    site = listen("--grace", "0.5")
    body, told = modern("tools/call", {"name": "wait_large", "arguments": {"size": 12 * MIB}})
    body["params"]["_meta"]["progressToken"] = 1
    with contextlib.closing(site.connect()) as connection:
        connection.request("POST", "/mcp", json.dumps(body), {**POSTED, **told})
        assert site.ask("GET", "/health")[0].status == 200
        begun = time.monotonic()
        assert site.stop() == 0
        assert time.monotonic() - begun < 15


def test_an_idle_server_with_clients_ends_within_a_second_or_two(listen: Listen) -> None:
    site = listen()
    connections = [site.connect() for _ in range(20)]
    for connection in connections:
        connection.request("GET", "/health")
        connection.getresponse().read()
    standing, response = stream(site, None, {"Mcp-Session-Id": opened(site)}, "GET")
    begun = time.monotonic()
    assert site.stop() == 0
    assert time.monotonic() - begun < 8
    assert [event for event in events(response) if event.get("data")] == []
    for connection in (*connections, standing):
        connection.close()


def test_a_port_in_use_is_told_with_the_option(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = subprocess.run(
            [COMMAND, "-t", "--auth", "none", "--port", str(port), "--state", str(tmp_path / "s")],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=30,
        )
    assert told.returncode == 2
    assert "--port" in told.stderr and str(port) in told.stderr
    assert "Traceback" not in told.stderr


# -- older HTTP


def test_a_client_of_http_1_0_gets_a_stream_that_ends_with_the_connection(shared: Site) -> None:
    """Chunks came with HTTP/1.1 (RFC 9112 section 6.1): an older proxy would take them for content."""
    body, told = modern("tools/call", {"name": "wait", "arguments": {"seconds": 0.1}}, progressToken="p")
    data = json.dumps(body).encode()
    fields = {**POSTED, **told, "Host": f"127.0.0.1:{shared.port}", "Content-Length": str(len(data))}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    said, _, came = raw(shared, f"POST /mcp HTTP/1.0\r\n{head}\r\n".encode() + data).partition(b"\r\n\r\n")
    assert b"text/event-stream" in said and b"transfer-encoding" not in said
    assert b"connection: close" in said
    told_of = [event for event in events(io.BytesIO(came)) if "data" in event]
    assert [json.loads(event["data"]).get("method", "answer") for event in told_of] == [PROGRESS, "answer"]
    assert came.endswith(b"\r\n\r\n")


def test_an_sse_stream_says_nothing_of_its_connection_itself(shared: Site) -> None:
    with shared.socket() as wire:
        wire.sendall(f"GET /sse HTTP/1.0\r\nHost: 127.0.0.1:{shared.port}\r\n\r\n".encode())
        came = b""
        while b"session_id=" not in came:
            came += wire.recv(65_536)
    assert came.count(b"connection: ") == came.count(b"connection: close") == 1
    assert b"\r\n\r\nevent: endpoint\r\ndata: /messages?" in came
