"""Which sandbox a server ends up with, and what it says of that: as strong as was asked for, or as there is."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http_wire import Site, site
from toolgate.tools.limits import UNLIMITED
from toolgate.tools.sandbox import levels
from toolgate.tools.sandbox.levels import Unavailable, Wanted, chosen

NEEDS = {"bash": "bash", "bwrap": "bubblewrap"}
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run commands as other users")


@pytest.fixture
def ground() -> Iterator[Path]:
    """Where other users can pass: pytest's own folders are closed to them."""
    made = Path(tempfile.mkdtemp(prefix="toolgate-levels-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def programs(ground: Path) -> Path:
    """A folder to put into PATH instead of all others."""
    folder = ground / "programs"
    folder.mkdir()
    for name, package in NEEDS.items():
        found = shutil.which(name)
        assert found, f"{name} is missing: apt-get install {package}"
        (folder / name).symlink_to(found)
    return folder


def wanted(level: str, **how: object) -> Wanted:
    asked = {"network": None, "unsandboxed": True, "limits": UNLIMITED, "path": "/nowhere", **how}
    return Wanted(level, **asked)  # type: ignore[arg-type]


def bash(place: Site, command: str = "id -u") -> dict[str, object]:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    session = place.ask("POST", "/mcp", body)[0].getheader("mcp-session-id") or ""
    place.ask("POST", "/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"}, mcp_session_id=session)
    call = {"name": "BackgroundBash", "arguments": {"command": command}}  # answered within a second, as JSON
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
    _, raw, _ = place.ask("POST", "/mcp", body, mcp_session_id=session)
    text = raw.decode().rpartition("data: ")[2]
    result: dict[str, object] = json.loads(text)["result"]
    return result


@ROOT
def test_where_bubblewrap_is_missing_each_has_a_user_and_the_start_says_why(programs: Path, ground: Path) -> None:
    (programs / "bwrap").unlink()
    with site(ground, "--sandbox", "auto", env={"PATH": str(programs)}, workspace=False) as place:
        assert "no stronger sandbox: bwrap: it is not installed: apt-get install bubblewrap" in place.log()
        assert "sandbox uid: a user for each principal, network none" in place.log()
        assert place.ask("GET", "/ready")[2] == {"status": "ready", "sandbox": "uid"}
        assert bash(place)["structuredContent"] == {"task_id": 1, "sandbox": "uid"}


@ROOT
def test_a_sandbox_that_is_gone_later_runs_nothing(programs: Path, ground: Path) -> None:
    with site(ground, "--sandbox", "auto", env={"PATH": str(programs)}, workspace=False) as place:
        assert place.ask("GET", "/ready")[2] == {"status": "ready", "sandbox": "bwrap"}
        (programs / "bwrap").unlink()
        result = bash(place, f"touch {ground}/ran")
        assert result["isError"] is True and "the sandbox can't be entered" in str(result["content"])
        assert not (ground / "ran").exists()


@pytest.mark.parametrize(
    ("program", "says"),
    [(None, "not installed"), ("#!/bin/sh\nexit 0\n", "can't be run"), ("#!/bin/sh\necho no >&2; exit 1\n", "no")],
)
def test_the_level_that_is_asked_for_is_had_or_nothing_starts(program: str | None, says: str, programs: Path) -> None:
    (programs / "bwrap").unlink()
    if program is not None:
        (programs / "bwrap").write_text(program)
        (programs / "bwrap").chmod(0o755)
    with pytest.raises(Unavailable, match=says):
        chosen(wanted("bwrap", path=str(programs)))


def test_without_namespaces_and_without_root_there_is_none_and_only_where_that_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(levels.os, "geteuid", lambda: 1000)
    found = chosen(wanted("auto"))
    assert (found.level, found.network) == ("none", "all")
    assert found.lacking == [
        "bwrap: it is not installed: apt-get install bubblewrap",
        "uid: only root can run commands as other users",
    ]
    for denied in (wanted("auto", unsandboxed=False), wanted("auto", network="public"), wanted("uid")):
        with pytest.raises(Unavailable, match="only root"):
            chosen(denied)


def test_a_network_is_had_as_it_was_asked_for_or_nothing_starts() -> None:
    for level, network in (("none", "public"), ("none", "none"), ("uid", "public")):
        with pytest.raises(Unavailable):
            chosen(wanted(level, network=network))


def test_a_filter_that_can_t_be_made_is_no_sandbox(monkeypatch: pytest.MonkeyPatch, programs: Path) -> None:
    def missing(**_: object) -> bytes:
        raise levels.syscalls.NoFilter("libseccomp is missing: apt-get install libseccomp2")

    monkeypatch.setattr(levels.syscalls, "program", missing)
    for level in ("bwrap", "uid"):
        with pytest.raises(Unavailable, match=r"libseccomp is missing|only root"):
            chosen(wanted(level, path=str(programs)))
