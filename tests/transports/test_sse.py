"""HTTP+SSE through the real process: one stream per client, and POSTs that are answered on it."""

import contextlib
import http.client
import json
import os
import select
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients.raw_client import eventually, processes_with
from tests.clients.raw_http_client import POSTED, Site, events
from tests.transports.test_streamable_http import HELLO, note, request

Listen = Callable[..., Site]


class SseClient:
    """A client of one stream."""

    def __init__(self, site: Site, revision: str = "2024-11-05", capabilities: Any = None) -> None:
        self.site = site
        self.connection = site.connect()
        self.connection.request("GET", "/sse", headers={"Accept": "text/event-stream"})
        self.response: http.client.HTTPResponse = self.connection.getresponse()
        assert self.response.status == 200
        self.events = events(self.response)
        first = next(self.events)
        assert first["event"] == "endpoint"
        self.endpoint = first["data"]
        hello = {**HELLO, "protocolVersion": revision, "capabilities": capabilities or {}}
        self.post(request("initialize", hello, id="hello"))
        assert self.next()["result"]["protocolVersion"] == revision
        self.post(note("notifications/initialized"))

    def post(self, message: Any, endpoint: str | None = None, **told: str) -> int:
        response, content, _ = self.site.ask("POST", endpoint or self.endpoint, message, **told)
        assert content == b"" or response.status != 202
        return response.status

    def next(self) -> Any:
        return json.loads(next(event["data"] for event in self.events if event.get("data")))

    def rest(self) -> list[Any]:
        return [json.loads(event["data"]) for event in self.events if event.get("data")]

    def close(self) -> None:
        self.response.close()
        self.connection.close()


@contextlib.contextmanager
def talking(site: Site, **how: Any) -> Iterator[SseClient]:
    talk = SseClient(site, **how)
    try:
        yield talk
    finally:
        talk.close()


def call(tool: str, arguments: dict[str, Any], id: Any = 1) -> dict[str, Any]:
    return request("tools/call", {"name": tool, "arguments": arguments, "_meta": {"progressToken": id}}, id)


def test_the_endpoint_is_an_absolute_path_and_posts_are_accepted(shared: Site) -> None:
    with talking(shared) as talk:
        path, _, query = talk.endpoint.partition("?")
        assert path == "/messages"
        assert query.startswith("session_id=") and len(query) > 40
        assert talk.response.getheader("content-type", "").startswith("text/event-stream")
        assert talk.response.getheader("x-accel-buffering") == "no"
        assert "no-transform" in (talk.response.getheader("cache-control") or "")
        assert talk.post(request("ping", id="p")) == 202
        assert talk.next() == {"jsonrpc": "2.0", "id": "p", "result": {}}


def test_a_proxys_prefix_stays_in_front_of_the_endpoint(listen: Listen) -> None:
    site = listen("--public-url", "http://localhost:1/some/where/")
    for path in ("/sse", "/some/where/sse"):
        connection = site.connect()
        connection.request("GET", path)
        response = connection.getresponse()
        endpoint = next(events(response))["data"]
        assert endpoint.startswith("/some/where/messages?session_id=")
        assert site.ask("POST", endpoint, request("ping"))[0].status == 202
        assert site.ask("POST", endpoint.removeprefix("/some/where"), request("ping"))[0].status == 202
        response.close()
        connection.close()


def test_streams_are_isolated_from_each_other(shared: Site) -> None:
    with contextlib.ExitStack() as stack:
        talks = [stack.enter_context(talking(shared)) for _ in range(10)]
        for n, talk in enumerate(talks):
            assert talk.post(call("echo", {"text": f"of {n}"}, id=1)) == 202
        for n, talk in enumerate(talks):
            assert talk.next()["result"]["content"][0]["text"] == f"of {n}"
        one, other = talks[:2]
        one.post(call("wait", {"seconds": 0.3}, id=7))
        assert one.next()["method"] == "notifications/progress"
        other.post(note("notifications/cancelled", requestId=7))
        assert one.next()["result"]["content"][0]["text"] == "waited"
        for talk in talks:
            talk.post(request("ping", id="last"))
            assert talk.next()["id"] == "last"  # and nothing else came


def test_an_answer_that_comes_while_a_large_one_is_read_slowly_is_not_lost(shared: Site) -> None:
    with talking(shared) as talk:
        text = "x" * 12 * 2**20  # more than the kernel takes at once
        assert talk.post(call("echo", {"text": text}, id=1)) == 202
        assert eventually(lambda: answers_unread(talk))
        for id in range(2, 5):  # the second waits until the first is read, and the others meanwhile
            assert talk.post(request("ping", id=id)) == 202
        assert [talk.next()["id"] for _ in range(4)] == [1, 2, 3, 4]


def answers_unread(talk: SseClient) -> bool:
    """Return whether bytes of the stream have come, and none is read."""
    readable, _, _ = select.select([talk.connection.sock], [], [], 0)
    return bool(readable)


def test_an_unknown_session_is_404_and_a_session_of_the_other_transport_is_unknown(shared: Site) -> None:
    with talking(shared) as talk:
        for endpoint in ("/messages", "/messages?session_id=", "/messages?session_id=nobody", "/messages?x=1"):
            assert talk.post(request("ping"), endpoint) == 404
        session = talk.endpoint.partition("=")[2]
        for method, body in (("POST", request("ping")), ("GET", None), ("DELETE", None)):
            assert shared.ask(method, "/mcp", body, mcp_session_id=session)[0].status == 404
        hello = request("initialize", {**HELLO, "protocolVersion": "2025-11-25"})
        other = shared.ask("POST", "/mcp", hello)[0].getheader("mcp-session-id")
        assert talk.post(request("ping"), f"/messages?session_id={other}") == 404


def test_a_post_is_held_to_the_same_limits(shared: Site) -> None:
    with talking(shared) as talk:
        assert talk.post(request("ping"), content_type="text/plain") == 415
        assert talk.post(b" " * (16 * 2**20 + 1)) == 413
        assert talk.post(b"{") == 202
        assert talk.next()["error"]["code"] == -32700
        assert talk.post([request("ping")]) == 202
        assert talk.next()["error"]["code"] == -32600


def test_the_end_of_the_stream_ends_the_session_and_its_calls(shared: Site) -> None:
    seconds = f"96.{os.getpid()}1"
    with talking(shared) as talk:
        talk.post(call("Bash", {"command": f"sleep {seconds}; true"}))
        assert eventually(lambda: bool(processes_with(seconds)))
        endpoint = talk.endpoint
    assert eventually(lambda: not processes_with(seconds))
    assert shared.ask("POST", endpoint, request("ping"))[0].status == 404


def test_many_streams_that_hang_up_leave_nothing(shared: Site) -> None:
    def sockets() -> int:
        count = 0
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                count += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
        return count

    pid = shared.process.pid
    before = sockets()
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(talking(shared))
        assert sockets() >= 50
    assert eventually(lambda: sockets() <= before + 2)


def test_a_question_and_its_answer_travel_both_ways(shared: Site) -> None:
    with talking(shared, revision="2025-06-18", capabilities={"elicitation": {}}) as talk:
        talk.post(call("ask_in_group", {}))
        asked = talk.next()
        assert asked["method"] == "elicitation/create"
        assert talk.post({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}) == 202
        assert talk.next()["result"]["content"][0]["text"] == "decline"


def test_the_streams_end_with_the_server_and_running_calls_may_finish(listen: Listen) -> None:
    site = listen()
    with talking(site) as talk, talking(site) as idle:
        talk.post(call("wait", {"seconds": 1.0}, id=3))
        assert talk.next()["method"] == "notifications/progress"
        site.process.terminate()
        assert [message["result"]["content"][0]["text"] for message in talk.rest()] == ["waited"]
        assert idle.rest() == []
        assert site.process.wait(60) == 0


def test_either_transport_can_be_served_alone(tmp_path: Any) -> None:
    import re
    import subprocess

    from tests.clients.raw_client import COMMAND

    for flag, served, missing in (("-s", "/sse", "/mcp"), ("-t", "/mcp", "/sse")):
        log = tmp_path / f"log{flag}"
        with log.open("wb") as stderr:
            command = [COMMAND, flag, "--auth", "none", "--port", "0", "--state", str(tmp_path / "state")]
            process = subprocess.Popen(command, stderr=stderr, cwd=tmp_path)
        try:
            assert eventually(lambda log=log: b"serving" in log.read_bytes())
            found = re.search(r"127\.0\.0\.1:(\d+)", log.read_text())
            assert found
            for path, expected in ((missing, 404), (served, 200 if flag == "-s" else 400)):
                connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=10)
                connection.request("GET", path, headers=POSTED)
                response = connection.getresponse()
                assert response.status == expected
                response.close()
                connection.close()
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("method", ["POST", "PUT", "HEAD", "DELETE"])
def test_the_stream_is_for_get_only(shared: Site, method: str) -> None:
    assert shared.ask(method, "/sse")[0].status == 405
