"""SIGTERM: open connections are served for a while, and their clients sent to another server."""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, STATELESS, eventually
from tests.clients.raw_http_client import POSTED, Site, site
from tests.clients.segments import receive_rest
from tests.clients.surviving_client import META
from tests.conftest import PROBE
from tests.transports.test_restart import begin, streaming
from tests.transports.test_rolling_restart import MODERN, call_wait
from toolgate.server.base.limits.budget import Budget
from toolgate.transports.http import server as http_server
from toolgate.transports.http.wire.connections import Connections
from toolgate.transports.http.wire.listener import Listener
from toolgate.transports.http.wire.request import WholeResponse

LONG = "60"  # seconds: a test that waits for it fails


def is_refused(listening: Site) -> bool:
    try:
        listening.socket(1).close()
    except OSError:
        return True
    return False


def ask(connection: http.client.HTTPConnection, path: str, body: Any = None) -> http.client.HTTPResponse:
    """Return the response to a request, whose body is read, on an open connection."""
    method, headers = ("GET", {}) if body is None else ("POST", MODERN)
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    response.read()
    return response


def test_open_connections_are_served_once_more_and_new_ones_refused(tmp_path: Path) -> None:
    with site(tmp_path, *PROBE, "--drain", LONG) as listening, contextlib.ExitStack() as stack:
        probing, calling = (stack.enter_context(contextlib.closing(listening.connect())) for _ in range(2))
        assert ask(probing, "/ready").status == ask(calling, "/ready").status == 200
        listening.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: is_refused(listening))
        ready, answer = ask(probing, "/ready"), ask(calling, "/mcp", call_wait(0.01))
        assert (ready.status, ready.getheader("connection")) == (503, "close")
        assert (answer.status, answer.getheader("connection")) == (200, "close")
        assert listening.process.wait(PATIENCE) == 0  # as no connection is open


def test_a_connection_that_the_server_has_not_seen_yet_is_answered() -> None:
    """It waits in the kernel's queue, and would be reset when the port closes."""
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answers: list[bytes] = []

    async def main() -> None:
        bound = http_server.bind("127.0.0.1", 0)
        address = bound.getsockname()
        with contextlib.ExitStack() as stack:

            def connect() -> socket.socket:
                wire = stack.enter_context(socket.create_connection(address, PATIENCE))
                wire.sendall(request)
                return wire

            async def finish() -> None:
                pass

            late: list[socket.socket] = []
            listener = Listener(lambda _: WholeResponse(200), Connections(), Budget(2**20, 2**20))

            def connect_late() -> None:
                late.extend(connect() for _ in range(9))

            serving = http_server.serve(listener, bound, finish, begin_drain=connect_late, drain_time=PATIENCE)
            task = asyncio.create_task(serving)
            with connect() as first:
                await asyncio.to_thread(first.recv, 1)  # it serves
            os.kill(os.getpid(), signal.SIGTERM)
            await task
            answers.extend(receive_rest(wire) for wire in late)

    asyncio.run(main())
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 200"] * 9


def test_a_standing_stream_ends_with_a_short_retry(tmp_path: Path) -> None:
    with site(tmp_path, *PROBE, "--drain", LONG) as listening:
        with streaming(listening, begin(listening), method="GET") as events:
            next(events)
            listening.process.send_signal(signal.SIGTERM)
            assert [event for event in events if "retry" in event] == [{"retry": "250"}]
        assert listening.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_drain_ends_at_a_second_signal_and_sigint_has_none(tmp_path: Path, number: int) -> None:
    with site(tmp_path, *PROBE, "--drain", LONG) as listening, contextlib.closing(listening.connect()) as idle:
        assert ask(idle, "/ready").status == 200
        listening.process.send_signal(number)
        if number == signal.SIGTERM:
            assert eventually(lambda: is_refused(listening))
            listening.process.send_signal(number)
        assert listening.process.wait(PATIENCE) == 0


def test_the_drain_ends_for_an_idle_connection_too(tmp_path: Path) -> None:
    with site(tmp_path, *PROBE, "--drain", "0.3") as listening, contextlib.closing(listening.connect()) as idle:
        assert ask(idle, "/ready").status == 200
        began = time.monotonic()
        assert listening.stop() == 0
        assert time.monotonic() - began >= 0.3


def test_a_subscription_that_begins_in_the_drain_ends_at_once(tmp_path: Path) -> None:
    with site(tmp_path, *PROBE, "--drain", LONG) as listening, contextlib.closing(listening.connect()) as asking:
        assert ask(asking, "/ready").status == 200
        listening.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: is_refused(listening))
        params = {"notifications": {"toolsListChanged": True}, "_meta": META}
        body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
        headers = {**POSTED, "MCP-Protocol-Version": STATELESS, "Mcp-Method": "subscriptions/listen"}
        asking.request("POST", "/mcp", json.dumps(body), headers)
        assert b'"result"' in asking.getresponse().read()
        assert listening.process.wait(PATIENCE) == 0


def send_call(connection: http.client.HTTPConnection, tool: str, command: str) -> None:
    params = {"name": tool, "arguments": {"command": command}, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    connection.request("POST", "/mcp", json.dumps(body), {**MODERN, "Mcp-Name": tool})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_log_counts_the_calls_and_commands_that_did_not_finish(tmp_path: Path, number: int) -> None:
    with site(tmp_path, *PROBE, "--grace", "0.1") as listening, contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(contextlib.closing(listening.connect())) for _ in range(2))
        for _ in range(2):
            send_call(first, "BackgroundBash", "sleep 1000")
            assert first.getresponse().read()
        begun = tmp_path / "begun"
        send_call(second, "Bash", f"touch {begun}; sleep 1000")
        assert eventually(begun.exists)
        assert listening.stop(number) == 0
        assert "the server ends with 1 call and 3 commands unfinished" in listening.log()


def test_the_log_counts_nothing_where_all_has_finished(tmp_path: Path) -> None:
    with site(tmp_path, *PROBE) as listening:
        assert listening.stop() == 0
        assert "unfinished" not in listening.log()
