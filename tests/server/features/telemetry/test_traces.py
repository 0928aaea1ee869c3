"""The traces of a real server at a real collector, over HTTP and stdio, without any delay of calls."""

import http.server
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.clients.raw_client import STATELESS, Refusal, eventually, served
from tests.clients.raw_http_client import site, spoken
from tests.conftest import PROBE
from toolgate.server.base.version import VERSION
from toolgate.server.config import load
from toolgate.tools.api.installation import name_extra

SECRET = "argument-that-is-nobody-elses"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
MALFORMED: list[Any] = [
    f"00-{TRACE}-{PARENT}",
    f"00-{'0' * 32}-{PARENT}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"ff-{TRACE}-{PARENT}-01",
    f"00-{TRACE.upper()}-{PARENT}-01-",
    "00-\udc80",
    "x" * 100_000,
    "",
    7,
    {"a": 1},
    None,
]


class Collector:
    """A collector of spans over OTLP/HTTP, on loopback."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.keys: set[str | None] = set()
        collector = self

        class Taking(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                collector.keys.add(self.headers["x-collector-key"])
                collector.bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Taking)
        self.environment = surroundings(self.server.server_address[1])

    def resources(self) -> list[dict[str, Any]]:
        found = [ExportTraceServiceRequest.FromString(body) for body in list(self.bodies)]
        return [valued(held.resource.attributes) for request in found for held in request.resource_spans]

    def spans(self) -> list[Span]:
        found = [ExportTraceServiceRequest.FromString(body) for body in list(self.bodies)]
        return [
            span
            for request in found
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str, least: int = 1) -> list[Span]:
        """Return the spans of this name, once there are so many."""
        assert eventually(lambda: len([span for span in self.spans() if span.name == name]) >= least), self.spans()
        return [span for span in self.spans() if span.name == name]


def surroundings(port: int) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_BSP_SCHEDULE_DELAY": "50"}


def valued(attributes: Any) -> dict[str, Any]:
    return {held.key: getattr(held.value, held.value.WhichOneof("value")) for held in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        collector.server.server_close()


def logged(server: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log().splitlines()]


def test_each_request_is_a_span_below_the_clients(tmp_path: Path) -> None:
    with (
        collecting() as collector,
        site(tmp_path, *PROBE, "-v", "--log-format", "json", env=collector.environment) as listening,
    ):
        with spoken(listening, "http", revision=STATELESS) as client:
            context = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
            client.call("Bash", {"command": f"echo {SECRET}"}, **context)
            client.error("refuse", {})
            with pytest.raises(Refusal):
                client.call("crash", {}, **context)
            with pytest.raises(Refusal):
                client.call(SECRET, {"text": SECRET})
            client.request("tools/list")
            for traceparent in MALFORMED:
                client.text("plain", {"word": SECRET}, traceparent=traceparent, tracestate="\x00,=,=")
        with spoken(listening, "sse") as old:
            old.text("echo", {"text": SECRET}, **context)
            key = re.search(r"session_id=([\w-]+)", old._path())

        (bash,) = collector.named("tools/call Bash")
        assert (bash.trace_id.hex(), bash.parent_span_id.hex(), bash.trace_state) == (TRACE, PARENT, "vendor=1")
        assert bash.kind == Span.SPAN_KIND_SERVER and bash.status.code == Status.STATUS_CODE_UNSET
        said = valued(bash.attributes)
        assert re.fullmatch(r"[0-9a-f]{16}", said.pop("toolgate.request.id"))
        assert said == {
            "mcp.method.name": "tools/call",
            "mcp.protocol.version": STATELESS,
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "Bash",
            "jsonrpc.request.id": "1",
            "network.transport": "tcp",
            "network.protocol.name": "http",
        }
        (started,) = collector.named("start command")
        assert (started.trace_id, started.parent_span_id) == (bash.trace_id, bash.span_id)

        (refused,) = collector.named("tools/call refuse")
        assert valued(refused.attributes)["error.type"] == "tool_error"
        assert refused.status.code == Status.STATUS_CODE_ERROR and refused.trace_id.hex() != TRACE
        (crashed,) = collector.named("tools/call crash")
        (unknown,) = collector.named("tools/call")
        for span, code in ((crashed, "-32603"), (unknown, "-32602")):
            said = valued(span.attributes)
            assert (said["error.type"], said["rpc.response.status_code"]) == (code, code)
            assert span.status.code == Status.STATUS_CODE_ERROR and span.status.message == "" and not span.events
        (line,) = [entry for entry in logged(listening) if "reference" in entry["message"]]
        assert line["trace"] == TRACE and line["request"] == valued(crashed.attributes)["toolgate.request.id"]
        collector.named("tools/list")
        roots = collector.named("tools/call plain", len(MALFORMED))
        assert all(span.parent_span_id == b"" and span.trace_id.hex() != TRACE for span in roots)

        (echoed,) = collector.named("tools/call echo")
        assert key is not None and echoed.trace_id.hex() == TRACE
        session = valued(echoed.attributes)["mcp.session.id"]
        assert re.fullmatch(r"[0-9a-f]{12}", session) and session not in key[1]
        (hello,) = collector.named("initialize")
        assert valued(hello.attributes)["mcp.protocol.version"] == "2025-11-25"
        sent = b"".join(collector.bodies)
        assert SECRET.encode() not in sent and key[1].encode() not in sent and b"12345" not in sent
        told = collector.resources()[0]
        assert (told["service.name"], told["service.version"]) == ("toolgate", VERSION)


def test_over_stdio_what_is_not_sent_yet_is_sent_at_the_end(tmp_path: Path) -> None:
    with collecting() as collector:
        environment = {**collector.environment, "OTEL_BSP_SCHEDULE_DELAY": "3600000", "OTEL_SERVICE_NAME": "mine"}
        environment["OTEL_EXPORTER_OTLP_HEADERS"] = "x-collector-key=key-of-the-collector"
        for attempt in range(5):
            call_and_end(tmp_path / str(attempt), environment, collector)
            if collector.bodies:  # else it took longer than the second that a server has for it at its end
                break
        (echoed,) = collector.named("tools/call echo")
        assert echoed.trace_id.hex() == TRACE and valued(echoed.attributes)["network.transport"] == "pipe"
        (cancelled,) = collector.named("tools/call wait")
        assert valued(cancelled.attributes)["error.type"] == "cancelled"
        assert collector.resources()[0]["service.name"] == "mine"
        assert collector.keys == {"key-of-the-collector"}


def call_and_end(folder: Path, environment: dict[str, str], collector: Collector) -> None:
    folder.mkdir()
    with served(folder, *PROBE, env=environment) as server:
        server.text("echo", {"text": "x"}, traceparent=f"00-{TRACE}-{PARENT}-01")
        assert "key-of-the" not in server.text("Bash", {"command": "env; tr '\\0' '\\n' < /proc/$$/environ"})
        server.begin("tools/call", {"name": "wait", "arguments": {"seconds": 600}})
        assert collector.bodies == []
        assert server.close() == 0


@pytest.mark.parametrize("answers", [False, True])
def test_a_collector_that_is_dead_or_silent_costs_no_call_and_no_end(tmp_path: Path, answers: bool) -> None:
    """One refuses connections; the other accepts them and is silent."""
    held: list[socket.socket] = []
    with closing(socket.socket()) as silent:
        silent.bind(("127.0.0.1", 0))
        if answers:
            silent.listen(8)
        with served(tmp_path, *PROBE, env=surroundings(silent.getsockname()[1])) as server:
            server.text("echo", {"text": "x"})
            if answers:
                silent.settimeout(40)
                held.append(silent.accept()[0])
            begun = time.monotonic()
            assert server.text("echo", {"text": "y"}) == "y"
            assert server.close() == 0
            assert time.monotonic() - begun < 10
            assert "opentelemetry" not in server.log() and server.log().count("can't be sent") <= 1
    for taken in held:
        taken.close()


def test_without_the_extra_one_line_says_so_and_serving_goes_on(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None; "
        "from toolgate.server.__main__ import main; sys.argv[0] = 'toolgate'; sys.exit(main())"
    )
    command = (sys.executable, "-c", program)
    with served(tmp_path, *PROBE, env=surroundings(1), command=command) as server:
        assert server.text("echo", {"text": "x"}) == "x"
        assert f"OTEL_EXPORTER_OTLP_ENDPOINT is set: {name_extra('traces')}" in server.log()


def test_traces_are_sent_where_opentelemetrys_own_variables_say_so() -> None:
    def traced(**environment: str) -> bool:
        return load.load({}, environment).is_tracing

    assert not traced()
    assert traced(OTEL_EXPORTER_OTLP_ENDPOINT="http://x:4318")
    assert traced(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://x:4318/v1/traces")
    assert not traced(OTEL_EXPORTER_OTLP_ENDPOINT=" ")
    assert not traced(OTEL_EXPORTER_OTLP_ENDPOINT="http://x:4318", OTEL_SDK_DISABLED="True")
