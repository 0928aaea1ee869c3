"""What happens to mounts is told where the server tells of itself: events, figures and the audit log."""

import json
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.clients.event_client import data_of, first_cursor, poll
from tests.clients.raw_client import STATELESS, Server, eventually
from tests.clients.raw_http_client import site, spoken
from tests.server.features.mounts.mounted import command_mount, wait_listed, write_config

ALONE = ("--auth", "none")
Start = Callable[..., Server]


def test_a_mount_that_ends_and_one_that_works_again_are_events(start: Start, tmp_path: Path) -> None:
    server = start(*write_config(tmp_path, command_mount("legacy")), revision=STATELESS)
    wait_listed(server)
    failed, recovered = first_cursor(server, "mount.failed"), first_cursor(server, "mount.recovered")
    server.error("far__exit")
    assert eventually(lambda: len(poll(server, "mount.failed", failed)["events"]) == 1)
    (told,) = data_of(poll(server, "mount.failed", failed))
    assert (told["mount"], told["code"]) == ("far", "STDIO_EXITED") and "code 3" in told["error"]
    assert data_of(poll(server, "mount.recovered", recovered)) == []
    assert server.text("far__count") == "1"
    assert eventually(lambda: data_of(poll(server, "mount.recovered", recovered)) == [{"mount": "far"}])


def test_a_server_without_mounts_offers_no_events_of_them(start: Start) -> None:
    server = start(revision=STATELESS)
    assert not [each for each in server.request("events/list")["events"] if each["name"].startswith("mount.")]


def test_the_audit_log_names_the_mount_and_the_tool_there(start: Start, tmp_path: Path) -> None:
    server = start(*write_config(tmp_path, command_mount("legacy", "far", 'prefix = "x-"')), "--audit", "on")
    assert eventually(lambda: "x-count" in {tool["name"] for tool in server.request("tools/list")["tools"]})
    assert server.text("x-count") == "1"
    assert server.text("Bash", {"command": "echo here"}) == "here\n"
    server.close()
    (log,) = server.state.rglob("audit.jsonl")
    entries = {entry["tool"]: entry for entry in map(json.loads, log.read_text().splitlines()) if "tool" in entry}
    assert (entries["x-count"]["mount"], entries["x-count"]["original"]) == ("far", "count")
    assert not {"mount", "original"} & entries["Bash"].keys()


def test_the_first_mount_of_a_server_over_http_is_live(tmp_path: Path) -> None:
    options = write_config(tmp_path, "")
    with site(tmp_path, *ALONE, *options) as listening, spoken(listening, "http") as client:
        names = {tool["name"] for tool in client.request("tools/list")["tools"]}
        assert not [name for name in names if name.startswith("far__")]
        write_config(tmp_path, command_mount("legacy"))
        wait_listed(client)
        assert client.text("far__count") == "1"


def test_figures_tell_of_mounts_that_fail_and_of_open_sessions(tmp_path: Path) -> None:
    options = write_config(tmp_path, command_mount("legacy"), '[mounts.gone]\ncommand = "/no/such"\n')
    with site(tmp_path, *ALONE, *options) as listening:

        def read() -> dict[tuple[str, ...], float]:
            body = listening.ask("GET", "/metrics")[1]
            rows = [sample for family in text_string_to_metric_families(body.decode()) for sample in family.samples]
            return {(row.name, *sorted(row.labels.values())): row.value for row in rows if "toolgate_mount" in row.name}

        with spoken(listening, "http") as client:
            wait_listed(client)
            assert client.text("far__count") == "1"
            assert read()["toolgate_mount_sessions", "far"] == 1
            assert read()["toolgate_mount_failed", "far"] == 0
        assert eventually(lambda: read()["toolgate_mount_failed", "gone"] == 1)
        assert read()["toolgate_mount_failures_total", "NOT_STARTED", "gone"] >= 1
