"""A real server's /metrics: calls on every transport, open streams, waiting events, and access."""

import json
import re
import socket
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.clients.raw_client import PATIENCE, ROOT, STATELESS, Refusal, eventually
from tests.clients.raw_http_client import Site, site, spoken
from tests.clients.raw_task_client import KNOWS, created, ended
from tests.conftest import PROBE
from tests.server.auth.minted_tokens import HELLO, asked, request, signed_site
from tests.server.auth.sign_in_server import Browser
from toolgate.server.app.features import check_options
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.bus.bus import BusHealth
from toolgate.server.base.errors import UsageError
from toolgate.server.base.principals.principal import Principal
from toolgate.server.base.reports.metric_rows import MetricRow
from toolgate.server.calls.observers import CallEnd
from toolgate.server.config import load
from toolgate.server.features.events.gauges import webhook_rows
from toolgate.server.features.events.webhooks.delivery_queue import DeliveryCounters
from toolgate.server.features.nodes.gauges import node_rows
from toolgate.server.features.nodes.report import NodeLoad, NodeReport
from toolgate.server.features.postgres.gauges import database_rows
from toolgate.server.features.replicas.gauges import bus_rows
from toolgate.server.features.telemetry.metrics.collector import MAX_TOOLS, CallMetrics, Metrics
from toolgate.server.state.keys.token_file import ensure_token, read_token
from toolgate.server.state.store import DatabaseHealth

DEPLOY = ROOT / "deploy"
Told = dict[str, dict[tuple[tuple[str, str], ...], float]]  # name → labels, sorted → value


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Run a server that anybody on this machine may call."""
    with site(tmp_path_factory.mktemp("metrics"), *PROBE, "--limit", "calls:tools:workflow=2") as listening:
        yield listening


class FakeSubscriptions(SimpleNamespace):
    def __len__(self) -> int:
        return 1


def told(listening: Site, **headers: str) -> Told:
    response, body, _ = listening.ask("GET", "/metrics", **headers)
    assert response.status == 200, body
    assert response.getheader("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    assert response.getheader("cache-control") == "no-store"
    return parsed(body)


def parsed(body: bytes) -> Told:
    found: Told = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def value(found: Told, name: str, **labels: str) -> float:
    """Return the value, or 0 if the series does not exist yet."""
    return found.get(name, {}).get(tuple(sorted(labels.items())), 0.0)


def calls(found: Told) -> dict[tuple[str, str, str], float]:
    """Return the calls by (outcome, tool, transport)."""
    counted = found.get("toolgate_call_seconds_count", {})
    return {tuple(word for _, word in labels): count for labels, count in counted.items()}  # type: ignore[misc]


def test_calls_are_counted_by_tool_transport_and_outcome_and_so_is_their_time(busy: Site, tmp_path: Path) -> None:
    with spoken(busy, "http", revision=STATELESS, capabilities=KNOWS) as new, spoken(busy, "sse") as old:
        with spoken(busy, "http") as client:
            client.text("echo", {"text": "hello"})
            client.error("refuse")
            for params in ({"name": "crash"}, {"name": "no such tool"}, {"name": {"a": 1}}, {}):
                with pytest.raises(Refusal):
                    client.request("tools/call", params)
            client.call("wait", {"seconds": 0.3})
        old.text("echo", {"text": "hello"})
        id = created(new, "job", file=str(tmp_path / "go"))
        (tmp_path / "go").touch()
        ended(new, id)
        assert eventually(lambda: calls(told(busy)).get(("ok", "job", "http")) == 1.0)
        for _ in range(3):
            old.call("TaskManager", {"action": "no such action"})
    found = told(busy)
    assert calls(found) == {
        ("ok", "echo", "http"): 1.0,
        ("error", "refuse", "http"): 1.0,
        ("fault", "crash", "http"): 1.0,
        ("refused", "other", "http"): 3.0,
        ("ok", "wait", "http"): 1.0,
        ("ok", "echo", "sse"): 1.0,
        ("task", "job", "http"): 1.0,
        ("ok", "job", "http"): 1.0,
        ("error", "TaskManager", "sse"): 2.0,
        ("refused", "TaskManager", "sse"): 1.0,
    }
    waited = {"tool": "wait", "transport": "http", "outcome": "ok"}
    assert value(found, "toolgate_call_seconds_bucket", le="0.25", **waited) == 0.0
    assert value(found, "toolgate_call_seconds_bucket", le="60.0", **waited) == 1.0
    assert 0.299 <= value(found, "toolgate_call_seconds_sum", **waited) < 60  # the loop counts milliseconds
    assert value(found, "toolgate_calls_refused_total", reason="limited") == 1.0
    assert not [name for name in found if name.endswith("_created")]


def test_open_streams_and_running_commands_are_read_at_each_scrape(busy: Site, tmp_path: Path) -> None:
    before = told(busy)
    assert value(before, "toolgate_build_info", version=config_version(), python=sys.version.split()[0]) == 1.0
    assert value(before, "toolgate_sandbox_info", level="none") == 1.0
    assert before["process_open_fds"][()] > 5 and before["process_resident_memory_bytes"][()] > 2**20
    with spoken(busy, "http") as client, spoken(busy, "sse") as old:
        client.text("BackgroundBash", {"command": "sleep 600"})
        waiting = old.begin("tools/call", {"name": "wait", "arguments": {"seconds": 600}})

        def there() -> bool:
            now = told(busy)
            grown = {
                name: value(now, name, transport=transport) - value(before, name, transport=transport)
                for name in ("toolgate_sessions", "toolgate_streams")
                for transport in ("http", "sse")
            }
            return (
                set(grown.values()) == {1.0}
                and value(now, "toolgate_requests_running", transport="sse") == 1.0
                and value(now, "toolgate_commands_running", kind="background") == 1.0
                and value(now, "toolgate_http_requests_running") >= 3.0
            )

        assert eventually(there), told(busy)
        old.notify("notifications/cancelled", {"requestId": waiting})
        assert eventually(lambda: value(told(busy), "toolgate_requests_running", transport="sse") == 0.0)
        client.text("KillBgTask", {"task_id": 1})
        client.text("talk")
        assert value(told(busy), "toolgate_stream_kept_bytes", transport="http") > 100
    assert eventually(lambda: value(told(busy), "toolgate_sessions", transport="sse") == 0.0)
    after = told(busy)
    assert value(after, "toolgate_http_responses_total", status="200") > value(
        before, "toolgate_http_responses_total", status="200"
    )


def test_events_that_a_reader_does_not_take_are_seen_to_wait(busy: Site) -> None:
    name = "toolgate_stream_events_waiting"
    with closing(socket.socket()) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        lazy.settimeout(PATIENCE)
        lazy.connect(("127.0.0.1", busy.port))
        lazy.sendall(b"GET /sse HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        begun = b""
        while not (found := re.search(rb"data: (/messages\S+)\r\n", begun)):
            begun += lazy.recv(1_000)
        path = found[1].decode()
        busy.ask("POST", path, request("initialize", {**HELLO, "protocolVersion": "2024-11-05"}))
        for number in range(8):
            busy.ask("POST", path, request("tools/call", {"name": "large", "arguments": {"size": 2**20}}, 2 + number))
        assert eventually(lambda: value(told(busy), name, transport="sse") >= 1.0)
    assert eventually(lambda: value(told(busy), name, transport="sse") == 0.0)


def config_version() -> str:
    from toolgate.server.base.version import VERSION

    return VERSION


def test_only_get_and_head_and_only_from_here(busy: Site) -> None:
    response, body, _ = busy.ask("HEAD", "/metrics")
    assert (response.status, body) == (200, b"") and int(response.getheader("content-length") or 0) > 1_000
    response, _, _ = busy.ask("POST", "/metrics", {})
    assert (response.status, response.getheader("allow")) == (405, "GET, HEAD")
    assert busy.ask("GET", "/metrics", host="evil.example")[0].status == 421
    assert busy.ask("GET", "/metrics", origin="https://evil.example")[0].status == 403
    assert busy.ask("GET", "/metrics", forwarded="for=192.0.2.1")[0].status == 403


def test_off_loopback_metrics_need_the_token_and_name_no_person(tmp_path: Path) -> None:
    public = ("--public-url", "https://tools.example/agent", "--accept-unsandboxed")
    here = {"host": "tools.example"}
    with signed_site(tmp_path, *public) as signed:
        signed.issuer = "https://tools.example/agent"
        listening, file = signed.site, signed.site.state / "keys" / "metrics"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        good = file.read_text().strip()
        for wrong in ("", f"Bearer {good}x", f"Bearer {good[:-1]}", good, f"Basic {good}", "Bearer", "Bearer \xe9"):
            for path in ("/metrics", "/agent/metrics"):
                response, body, _ = listening.ask("GET", path, **here, **({"authorization": wrong} if wrong else {}))
                assert response.status == 401 and b"toolgate_" not in body, wrong
                assert response.getheader("www-authenticate") == 'Bearer realm="metrics"'
                assert response.getheader("cache-control") == "no-store"
        person = signed.token("ada", "some-client")
        assert listening.ask("GET", "/metrics", **here, authorization=f"Bearer {person}")[0].status == 401
        assert asked(signed, good, "tools/list", **here)[0].status == 401
        _, _, said = asked(signed, person, "tools/call", {"name": "echo", "arguments": {"text": "x"}}, **here)
        assert said["result"]["content"][0]["text"] == "x"
        asked(signed, signed.token(exp=1, noted=False), "tools/list", **here)
        few = signed.token("ada", "some-client", ["tools:read"])
        assert asked(signed, few, "tools/call", {"name": "Bash", "arguments": {}}, **here)[0].status == 403
        found = told(listening, **here, authorization=f"bearer {good}")
        assert value(found, "toolgate_tokens_refused_total", reason="the token has expired") == 1.0
        assert value(found, "toolgate_calls_refused_total", reason="scope") == 1.0
        assert calls(found) == {("ok", "echo", "http"): 1.0, ("refused", "Bash", "none"): 1.0}
        labels = {word for series in found.values() for pairs in series for pair in pairs for word in pair}
        principal = Principal(OWN_ISSUER, "ada", "some-client")
        assert labels.isdisjoint({"ada", "some-client", principal.name, principal.owner, "tests", "127.0.0.1"})
        assert good not in listening.log()


def test_sign_ins_and_the_tokens_given_out_are_counted(tmp_path: Path) -> None:
    with site(tmp_path, "--auth", "oauth") as listening:
        browser = Browser(listening.port, {"origin": listening.url})
        assert browser.sign_in(password="not the password").status == 403
        browser.sign_in(name="bob", password="nor is this one")
        found = told(listening)
        assert found["toolgate_sign_ins_total"] == {(("result", "refused"), ("way", "password")): 2.0}
        assert found["toolgate_tokens_issued_total"] == {(): 0.0}
        assert listening.ask("POST", "/mcp", {})[0].status == 401
        missing = "sign in first: this needs an access token"
        assert value(told(listening), "toolgate_tokens_refused_total", reason=missing) == 1.0


def test_a_token_of_the_operators_own_is_taken_wherever_one_calls_from(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of-the-operator/0123456789==\n")
    with site(tmp_path, "--metrics-token", str(file)) as listening:
        assert listening.ask("GET", "/metrics")[0].status == 401
        told(listening, authorization="Bearer of-the-operator/0123456789==")
        assert not (listening.state / "keys" / "metrics").exists()


@pytest.mark.parametrize(
    "held", [None, b"", b"short", b"two words of a token", b"\xff" * 40, b"x" * 600, b"a" * 20 + b"\0"]
)
def test_a_file_without_a_good_token_is_refused_before_anything_listens(tmp_path: Path, held: bytes | None) -> None:
    file = tmp_path / "token"
    if held is not None:
        file.write_bytes(held)
    with pytest.raises(UsageError, match="--metrics-token: ") as caught:
        check_options(load.load({"http": "true", "auth": "none", "metrics_token": str(file)}, {"HOME": str(tmp_path)}))
    assert "two words" not in str(caught.value)


def test_the_token_is_made_once(tmp_path: Path) -> None:
    first = ensure_token(tmp_path / "keys" / "metrics")
    assert ensure_token(tmp_path / "keys" / "metrics") == first == read_token(tmp_path / "keys" / "metrics")


def of_calls(tools: Callable[[], Any]) -> tuple[CallMetrics, Callable[[], Told]]:
    registry = CollectorRegistry()
    return CallMetrics(registry, tools), lambda: parsed(generate_latest(registry))


def test_tools_that_come_and_go_make_no_series_without_end() -> None:
    names: set[str] = set()
    counted, read = of_calls(lambda: names)
    for number in range(MAX_TOOLS + 50):
        names.clear()
        names.add(f"tool-{number}")
        call: Any = SimpleNamespace(
            params={"name": f"tool-{number}"}, session=SimpleNamespace(transport=""), decision="allowed"
        )
        counted.call_ended(call, None, CallEnd("ok", None, 0.01))
    found = calls(read())
    assert len(found) == MAX_TOOLS + 1 and found["ok", "other", "none"] == 50.0


def test_the_dashboard_and_the_alerts_ask_for_what_there_is(busy: Site) -> None:
    with spoken(busy, "http") as client:
        client.text("echo", {"text": "x"})
    _, body, _ = busy.ask("GET", "/metrics")
    metrics = Metrics(lambda: ())
    node = NodeReport("unix:/node.sock", "one", True, "1", "bwrap", NodeLoad(1, 1, 1, 1, 1), 0.1, 1, 1)
    metrics.add_rows(node_rows(lambda: [node]))
    counters, failures = DeliveryCounters(failures=Counter(timeout=1)), Counter(timeout=1)
    subscriptions = FakeSubscriptions(
        queue=SimpleNamespace(pending=1, counters=counters),
        verifier=SimpleNamespace(verified=1, failures=failures),
    )
    metrics.add_rows([*bus_rows(BusHealth), *database_rows(DatabaseHealth)])
    metrics.add_rows(webhook_rows(subscriptions))  # type: ignore[arg-type]  # all it uses
    body += metrics.render()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", body.decode(), re.MULTILINE))
    there = {name for name, kind in kinds.items() if kind != "histogram"}
    there |= {
        f"{name}_{end}" for name, kind in kinds.items() if kind == "histogram" for end in ("bucket", "sum", "count")
    }
    labels = {name: {key for pairs in series for key, _ in pairs} for name, series in parsed(body).items()}

    dashboard = json.loads((DEPLOY / "grafana" / "toolgate.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "toolgate-rules.yml").read_text())["groups"]
    watched = [rule["expr"] for rule in group["rules"]]
    assert len(shown) > 30 and len(watched) > 5
    for expression in (*shown, *watched):
        asked = re.findall(r"((?:toolgate|process)_\w+)(?:\{([^}]*)\})?", expression)
        assert asked or re.match(r"up\{", expression), expression
        for name, selected in asked:
            assert name in there, name
            known = labels.get(name)
            keys = set(re.findall(r"(\w+)=", selected)) - {"job", "instance"}
            assert known is None or keys <= known, (name, keys)
    everything = "\n".join((*shown, *watched))
    told = {name for name in kinds if name.startswith("toolgate_")}
    assert {name for name in told if not re.search(rf"\b{name}(_bucket|_count)?\b", everything)} == set()

    said = {
        name.removesuffix("_total") for name in re.findall(r"toolgate_\w+", (ROOT / "docs/operating.md").read_text())
    }
    assert said == {name.removesuffix("_total") for name in told}

    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken = [
        (left, top)
        for place in (panel["gridPos"] for panel in dashboard["panels"])
        for left in range(place["x"], place["x"] + place["w"])
        for top in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken) and max(left for left, _ in taken) < 24
    (scraped,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    assert scraped["metrics_path"] == "/metrics" and "credentials_file" in scraped["authorization"]


def test_one_reading_that_fails_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        raise RuntimeError("gone")

    metrics = Metrics(lambda: ())
    metrics.add_rows(
        [
            MetricRow("toolgate_broken", "gauge", "x", (), broken),
            MetricRow("toolgate_whole", "gauge", "x", (), lambda: [((), 1)]),
        ]
    )
    found = parsed(metrics.render())
    assert found["toolgate_whole"] == {(): 1.0} and "toolgate_broken" not in found
    assert "toolgate_broken can't be read" in caplog.text


def test_over_stdio_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from toolgate.server.config import load as config\n"
        "from toolgate.server.app.app import App\n"
        f"App(config.load({{'state': {str(tmp_path / 'state')!r}}}, {{}}))\n"
        "print([name for name in sys.modules if 'prometheus' in name or 'opentelemetry' in name or '.metrics' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
