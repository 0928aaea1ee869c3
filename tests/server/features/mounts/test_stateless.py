"""What the stateless era has in each request reaches a mounted server of it, whatever the client speaks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, Refusal, Server, eventually
from tests.server.features.mounts.mounted import (
    CAPABILITIES,
    answer,
    command_mount,
    far_site,
    url_mount,
    wait_listed,
    write_config,
)

Mounted = Callable[..., Server]
BOTH = pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])


@pytest.fixture
def mounted(start: Mounted, tmp_path: Path) -> Mounted:
    """Start a server over stdio with these mounts."""

    def begin(*tables: str, **how: Any) -> Server:
        return start(*write_config(tmp_path, *tables), **{"capabilities": CAPABILITIES, "answer": answer, **how})

    return begin


@pytest.mark.rotated(1)
@BOTH
def test_headers_repeat_arguments(mounted: Mounted, tmp_path: Path, revision: str) -> None:
    with far_site(tmp_path, "modern") as far:
        server = mounted(url_mount(far.url), revision=revision)
        wait_listed(server)
        told = json.loads(server.text("far__headers", {"region": "é", "deep": {"count": 3}}))
        assert told == {"Mcp-Param-region": "=?base64?w6k=?=", "Mcp-Param-count": "3"}
        assert json.loads(server.text("far__headers", {"region": "north"})) == {"Mcp-Param-region": "north"}


def test_a_question_keeps_its_name(mounted: Mounted) -> None:
    server = mounted(command_mount("modern"), revision=STATELESS)
    wait_listed(server)
    assert list(server.call("far__ask")["inputRequests"]) == ["the key"]


@pytest.mark.pairs
@BOTH
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_client_that_lists_nothing_can_call(mounted: Mounted, revision: str, era: str) -> None:
    server = mounted(command_mount(era), revision=revision, capabilities={"roots": {}})

    def can_call() -> bool:
        try:
            return "isError" not in server.call("far__echo")
        except Refusal:
            return False

    assert eventually(can_call), server.log()


def test_a_mount_is_told_which_log_the_client_wants(mounted: Mounted) -> None:
    server = mounted(command_mount("modern"))
    wait_listed(server)
    server.request("logging/setLevel", {"level": "warning"})
    assert server.text("far__log") == "logged"
    assert server.notes("notifications/message") == [{"level": "warning", "data": {"a": 1.0}, "logger": "far"}]
    server.request("logging/setLevel", {"level": "error"})
    assert server.text("far__log") == "silent"


def test_a_request_names_the_log_that_it_wants(mounted: Mounted) -> None:
    server = mounted(command_mount("modern"), revision=STATELESS)
    wait_listed(server)
    assert server.text("far__log") == "silent"
    assert server.text("far__log", **{"io.modelcontextprotocol/logLevel": "info"}) == "logged"
