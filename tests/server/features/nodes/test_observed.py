"""What people and operators see of a node through a server: the first page, `/ready`, `/metrics` and traces."""

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.clients.raw_client import eventually
from tests.server.auth.minted_tokens import Signed, signed_site
from tests.server.auth.sign_in_server import Browser
from tests.server.features.nodes.nodes import NodeProcess, running_node
from tests.server.features.telemetry.test_metrics import told
from tests.server.features.telemetry.test_traces import SECRET, Collector, collecting, valued
from tests.servers.home_page_server import AppUser
from toolgate.server.base.version import VERSION
from toolgate.server.cli.commands import health
from toolgate.server.config import load
from toolgate.server.features.nodes.messages import METHODS


class Observed(NamedTuple):
    """A node, a server that started after ada's commands, where it sends its traces, and the ids of the commands."""

    node: NodeProcess
    signed: Signed
    collector: Collector
    running: int
    ended: int


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("observed")
    with running_node(folder / "node", "--sandbox", "none", "--name", "first") as node:
        words = ("--node", f"unix:{node.socket}")
        with signed_site(folder, *words, workspace=False) as signed:
            ada = AppUser(signed, "ada", "App")
            AppUser(signed, "zoe", "Workbench")  # who never calls
            running, ended = ada.run("echo one; exec sleep 500"), ada.run("echo two")
            signed.site.kill()
        with (
            collecting() as collector,
            signed_site(folder, *words, workspace=False, env=collector.environment) as signed,
        ):
            yield Observed(node, signed, collector, running, ended)


def sign_in(signed: Signed, name: str) -> Browser:
    browser = Browser(signed.site.port, {"accept": "text/html"})
    assert browser.sign_in(name=name).location == "/"
    return browser


def press(browser: Browser, button: str, value: int) -> tuple[int, str]:
    """Press a button of the first page. Return the status and the page."""
    csrf = browser.get("/").text.partition('action="/"')[2].partition('name="csrf" value="')[2].partition('"')[0]
    page = browser.post("/", {"csrf": csrf, button: str(value)})
    return page.status, page.text


def row(page: str, id: str, end: str) -> str:
    return page.partition(f'id="{id}"')[2].partition(end)[0]


def ready(signed: Signed) -> tuple[int, Any]:
    response, _, said = signed.site.ask("GET", "/ready")
    return response.status, said


def test_the_first_page_shows_and_stops_what_began_before_its_server(observed: Observed) -> None:
    node, signed, _, running, ended = observed
    (folder,) = os.listdir(node.state / "workspaces")
    browser, stranger = sign_in(signed, "ada"), sign_in(signed, "zoe")
    page = browser.get("/").text
    shown = {id: row(page, f"run-{id}", "</pre>") for id in (running, ended)}
    assert "running" in shown[running] and shown[running].endswith("one\n") and shown[ended].endswith("two\n")
    assert 'id="run-' not in stranger.get("/").text
    assert press(stranger, "stop", running)[0] == 404
    assert press(browser, "stop", running)[0] == 200
    assert "stopped" in row(browser.get("/").text, f"run-{running}", "</pre>")
    for kept in ("workspaces", "spool"):
        assert os.listdir(node.state / kept) == [folder]


def test_a_node_that_does_not_answer_is_seen_everywhere_until_it_is_back(
    observed: Observed, capsys: pytest.CaptureFixture[str]
) -> None:
    node, signed, _, running, _ = observed
    name = f"unix:{node.socket}"
    assert eventually(lambda: "toolgate_node_people" in told(signed.site))
    metrics = told(signed.site)
    label = (("node", name),)
    assert metrics["toolgate_node_up"] == {label: 1.0}
    assert metrics["toolgate_node_info"] == {(("level", "none"), ("name", "first"), *label, ("version", VERSION)): 1.0}
    assert metrics["toolgate_node_people"] == {label: 1.0}
    assert metrics["toolgate_node_requests_failed_total"] == {label: 0.0}
    assert 0 < metrics["toolgate_node_round_trip_seconds"][label] < 1
    space = os.statvfs(node.state)
    assert metrics["toolgate_node_disk_free_bytes"][label] == pytest.approx(space.f_bavail * space.f_frsize, rel=0.1)
    assert metrics["toolgate_node_memory_free_bytes"][label] > 2**20
    browser = sign_in(signed, "ada")
    assert "answers</b>" in browser.get("/").text and name in browser.get("/").text
    assert name not in Browser(signed.site.port, {"accept": "text/html"}).get("/").text
    assert ready(signed) == (200, {"status": "ready", "sandbox": "none"})
    node.kill()
    assert eventually(lambda: ready(signed)[0] == 503)
    status = f"no node answers: {name}"
    assert ready(signed)[1] == {"status": status, "sandbox": "none", "away": [name]}
    assert signed.site.ask("GET", "/health")[0].status == 200
    assert asyncio.run(health.health(load.load({"port": str(signed.site.port)}, {}), url=None)) == 1
    assert capsys.readouterr().out == f"{status}\n"
    metrics = told(signed.site)
    assert metrics["toolgate_node_up"] == {label: 0.0}
    assert "toolgate_node_people" not in metrics
    page = browser.get("/").text
    assert "away</b>" in page and "no commands</b>" in page and 'id="run-fault"' in page
    code, page = press(browser, "stop", running)
    assert code == 503 and "be reached" in page
    assert told(signed.site)["toolgate_node_requests_failed_total"][label] >= 1
    node.start()
    assert eventually(lambda: ready(signed) == (200, {"status": "ready", "sandbox": "none"}))
    assert eventually(lambda: told(signed.site).get("toolgate_node_people") == {label: 1.0})


def test_each_request_to_a_node_is_a_span_of_its_call_without_content(observed: Observed) -> None:
    node, signed, collector, _, _ = observed
    AppUser(signed, "bob", "Editor").call("Bash", command=f"echo {SECRET}")
    (call,) = collector.named("tools/call Bash")
    (span,) = collector.named("node/execute")
    assert (span.trace_id, span.parent_span_id, span.kind) == (call.trace_id, call.span_id, Span.SPAN_KIND_CLIENT)
    assert valued(span.attributes) == {
        "rpc.system.name": "toolgate",
        "rpc.method": "node/execute",
        "server.address": str(node.socket),
        "network.transport": "unix",
    }
    assert SECRET.encode() not in b"".join(collector.bodies)


@pytest.mark.parametrize(
    "said", [[-1, 0, 0, 0, 0], [1, 0, 0, 10**400, 0], [1, 0, 0, "much", 0], [1, 2**63, 0, 0, 0], [1], {"people": 1}]
)
def test_a_node_that_says_nonsense_about_itself_is_no_load(said: object) -> None:
    method = METHODS.find("node.measure_load")
    assert method is not None
    with pytest.raises(msgspec.MsgspecError):
        method.result.decode(json.dumps(said))
