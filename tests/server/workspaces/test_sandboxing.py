"""The sandbox that a server chooses and reports: the one required, or the strongest available."""

import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import served
from tests.clients.raw_http_client import Site, site
from tests.server.cli.test_cli import run
from tests.servers.faulty_proxy import verdicts
from toolgate.server.config import load
from toolgate.tools.workspace.limits import UNLIMITED
from toolgate.tools.workspace.sandbox import levels
from toolgate.tools.workspace.sandbox.levels import SandboxOptions, SandboxUnavailableError, choose_sandbox

NEEDS = {"bash": "bash", "bwrap": "bubblewrap"}
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run commands as other users")


@pytest.fixture
def ground() -> Iterator[Path]:
    """Return a folder that other users can enter: pytest's own folders are closed to them."""
    made = Path(tempfile.mkdtemp(prefix="toolgate-levels-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def programs(ground: Path) -> Path:
    """Return a folder that replaces PATH."""
    folder = ground / "programs"
    folder.mkdir()
    for name, package in NEEDS.items():
        found = shutil.which(name)
        assert found, f"{name} is missing: apt-get install {package}"
        (folder / name).symlink_to(found)
    return folder


def wanted(level: str, **how: object) -> SandboxOptions:
    asked = {"network": None, "allow_none": True, "limits": UNLIMITED, "path": "/nowhere", **how}
    return SandboxOptions(level, **asked)  # type: ignore[arg-type]


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


def said(place: Site, command: str) -> str:
    """Return the output of a command over HTTP."""
    told = run(place.state.parent, "call", "Bash", f"command={command}", "--url", f"{place.url}/mcp")
    assert told.returncode == 0, told.stderr
    return told.stdout


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
        assert result["isError"] is True and "the sandbox can't be started" in str(result["content"])
        assert not (ground / "ran").exists()


@pytest.fixture
def closed(ground: Path) -> Path:
    """Return a folder that only root may enter, like root's home."""
    folder = ground / "closed"
    folder.mkdir(mode=0o700)
    return folder


@ROOT
@pytest.mark.parametrize("level", ["uid", "auto"])
def test_a_state_that_commands_can_t_reach_is_refused_with_the_folder_and_the_remedy(
    programs: Path, closed: Path, level: str
) -> None:
    (programs / "bwrap").unlink()
    state = closed / "data" / "state"
    state.mkdir(parents=True)
    options = ("-t", "--auth", "none", "--port", "0", "--sandbox", level, "--state", str(state))
    told = run(closed, *options, PATH=str(programs))
    assert told.returncode == 2, told.stderr
    assert told.stderr.splitlines()[-1] == (
        f"toolgate: --state: users that commands run as can't pass through {closed}: use --state /var/lib/toolgate, "
        "or apt-get install bubblewrap"
    )
    doctor = run(closed, "doctor", "--browser", "none", *options, PATH=str(programs))
    assert (doctor.returncode, verdicts(doctor.stdout)["sandbox"]) == (1, "FAIL"), doctor.stdout
    assert f"can't pass through {closed}" in doctor.stdout
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (closed, state)]
    assert modes == [0o700, 0o700], "what is not open stays closed"


@ROOT
@pytest.mark.parametrize("link", ["state", "state/workspaces", "state/spool"])
def test_a_link_to_where_commands_can_t_reach_is_refused_by_server_and_doctor(
    programs: Path, ground: Path, closed: Path, link: str
) -> None:
    (programs / "bwrap").unlink()
    (closed / "real").mkdir(mode=0o700)
    (ground / link).parent.mkdir(exist_ok=True)
    (ground / link).symlink_to(closed / "real")
    options = ("-t", "--auth", "none", "--port", "0", "--sandbox", "auto", "--state", str(ground / "state"))
    told = run(ground, *options, PATH=str(programs))
    assert told.returncode == 2, told.stderr
    assert f"can't pass through {closed}: use --state" in told.stderr.splitlines()[-1]
    doctor = run(ground, "doctor", "--browser", "none", *options, PATH=str(programs))
    assert (doctor.returncode, verdicts(doctor.stdout)["sandbox"]) == (1, "FAIL"), doctor.stdout
    assert f"can't pass through {closed}" in doctor.stdout


@ROOT
def test_namespaces_reach_a_state_that_other_users_can_t(programs: Path, closed: Path) -> None:
    with site(closed, "--sandbox", "auto", env={"PATH": str(programs)}, workspace=False) as place:
        assert place.ask("GET", "/ready")[2] == {"status": "ready", "sandbox": "bwrap"}
        assert bash(place)["isError"] is False
        assert stat.S_IMODE(place.state.stat().st_mode) == 0o700


@ROOT
@pytest.mark.parametrize("level", ["bwrap", "uid"])
def test_a_server_starts_only_where_a_command_runs(programs: Path, ground: Path, level: str) -> None:
    broken = programs / "bash"
    broken.unlink()
    broken.write_text("#!/bin/sh\necho out of order\n")
    broken.chmod(0o755)
    shown = ("--sandbox-paths", str(programs))
    options = ("-t", "--auth", "none", "--port", "0", "--sandbox", level, "--state", str(ground / "state"), *shown)
    told = run(ground, *options, PATH=f"{programs}:/usr/bin:/bin")
    assert told.returncode == 2 and f"--sandbox: {level}: out of order" in told.stderr, told.stderr
    doctor = run(ground, "doctor", "--browser", "none", *options, PATH=f"{programs}:/usr/bin:/bin")
    assert verdicts(doctor.stdout)["sandbox"] == "FAIL" and "out of order" in doctor.stdout
    assert not list((ground / "state").glob(".trial-*")), "the trial leaves nothing"


@ROOT
@pytest.mark.parametrize("level", ["bwrap", "uid"])
def test_a_full_disk_takes_no_sandbox_away(ground: Path, level: str) -> None:
    full = ground / "full"
    full.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=711", "full", full], capture_output=True)
    assert mounted.returncode == 0, "the tests run as root, which may mount"
    try:
        for folder in ("", "spool", "keys", "workspaces"):
            (full / "state" / folder).mkdir(mode=0o700)
        with pytest.raises(OSError, match="No space left"), (full / "rest").open("wb", buffering=0) as rest:
            while True:
                rest.write(b"x" * 4096)
        found = choose_sandbox(wanted(level, path=os.environ["PATH"], trial_folder=lambda level: full))
        assert found.level == level
    finally:
        subprocess.run(["umount", "-l", full], check=True)


@ROOT
def test_a_server_over_stdio_takes_nothing_from_one_that_serves_other_users(programs: Path, ground: Path) -> None:
    first = ("call", "Bash", "command=echo hi", "--state", str(ground / "state"))
    assert run(ground, *first).stdout == "hi\n"
    with site(ground, "--sandbox", "uid", workspace=False) as place:
        assert said(place, "echo one") == "one\n"
        assert run(ground, *first).stdout == "hi\n"
        assert said(place, "echo two") == "two\n", "with the other server ended"
        (ground / "client").mkdir()
        shared = ("--state", str(ground / "state"))
        bwrap = site(ground / "beside", "--sandbox", "bwrap", *shared, workspace=False)
        with served(ground / "client", *shared) as beside, bwrap:
            assert beside.call("Bash", command="echo hi")
            assert said(place, "echo three; cd /tmp") == "three\n", "with others beside it"
        assert said(place, "pwd") == "/tmp\n"
        doctor = run(ground, "doctor", "--browser", "none", "--state", str(ground / "state"))
        assert verdicts(doctor.stdout)["state folder"] == "ok", doctor.stdout


@pytest.mark.parametrize("parent", ["/tmp", "/var/tmp"])
def test_a_workspace_in_a_folder_for_temporary_files_has_one_name(parent: str) -> None:
    """Without a state there /var/tmp is a link to /tmp in the sandbox: a path through it would have two names."""
    script = "pwd -P; cd ..; cd local; pwd -P; echo hi > /var/tmp/beside; cat /var/tmp/beside; ls .."
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name).resolve()
        folder.chmod(0o711)
        with site(folder, "--sandbox", "bwrap", workspace=False) as place:
            workspace = folder / "state" / "workspaces" / "local"
            assert said(place, script).splitlines() == [str(workspace), str(workspace), "hi", "local"]
        assert not Path("/var/tmp/beside").exists()


@ROOT
def test_root_keeps_its_state_where_every_level_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system, home = tmp_path / "var" / "toolgate", tmp_path / "root"
    monkeypatch.setattr(load, "SYSTEM_STATE", system)
    monkeypatch.setattr(load, "_root_home", lambda: home)
    own = home / ".local" / "share" / "toolgate"
    assert state({"HOME": str(home)}) == state({}) == system
    assert state({"HOME": str(tmp_path)}) == tmp_path / ".local" / "share" / "toolgate", (
        "a home that is named on purpose"
    )
    assert state({"HOME": str(home), "XDG_DATA_HOME": "/data"}) == Path("/data/toolgate")
    assert state({"HOME": str(system)}) == system, "a service's user needs no --state"
    own.mkdir(parents=True)
    assert state({"HOME": str(home)}) == system, "an empty one is not missed"
    (own / "state.db").touch()
    assert state({"HOME": str(home)}) == own, "one that was used stays in use"
    (own / "state.db").unlink()
    system.mkdir(parents=True)
    os.chown(system, 1000, 1000)
    assert state({"HOME": str(home)}) == own, "that of a unit's user is not root's"


def state(environment: dict[str, str]) -> Path:
    found: Path = load.load({}, environment).state
    return found


@pytest.mark.parametrize(
    ("program", "says"),
    [(None, "not installed"), ("#!/bin/sh\nexit 0\n", "can't be run"), ("#!/bin/sh\necho no >&2; exit 1\n", "no")],
)
def test_the_level_that_is_asked_for_is_had_or_nothing_starts(program: str | None, says: str, programs: Path) -> None:
    (programs / "bwrap").unlink()
    if program is not None:
        (programs / "bwrap").write_text(program)
        (programs / "bwrap").chmod(0o755)
    with pytest.raises(SandboxUnavailableError, match=says):
        choose_sandbox(wanted("bwrap", path=str(programs)))


def test_without_namespaces_and_without_root_there_is_none_and_only_where_that_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(levels.os, "geteuid", lambda: 1000)
    found = choose_sandbox(wanted("auto"))
    assert (found.level, found.network) == ("none", "all")
    assert found.lacking == [
        "bwrap: it is not installed: apt-get install bubblewrap",
        "uid: only root can run commands as other users",
    ]
    for denied in (wanted("auto", allow_none=False), wanted("auto", network="public"), wanted("uid")):
        with pytest.raises(SandboxUnavailableError, match="only root"):
            choose_sandbox(denied)


def test_a_network_is_had_as_it_was_asked_for_or_nothing_starts() -> None:
    for level, network in (("none", "public"), ("none", "none"), ("uid", "public")):
        with pytest.raises(SandboxUnavailableError):
            choose_sandbox(wanted(level, network=network))


def test_a_filter_that_can_t_be_made_is_no_sandbox(monkeypatch: pytest.MonkeyPatch, programs: Path) -> None:
    def missing(**_: object) -> bytes:
        raise levels.syscalls.FilterUnavailableError("libseccomp is missing: apt-get install libseccomp2")

    monkeypatch.setattr(levels.syscalls, "program", missing)
    for level in ("bwrap", "uid"):
        with pytest.raises(SandboxUnavailableError, match=r"libseccomp is missing|only root"):
            choose_sandbox(wanted(level, path=str(programs)))
