"""Make each fault that `toolgate doctor` must find, and check that it names the fault and the remedy."""

import asyncio
import json
import os
import resource
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.clients.raw_client import COMMAND
from tests.clients.raw_http_client import site
from tests.interop.sign_in_server import published
from tests.server.cli.commands.test_user_and_client import granted, registered
from tests.server.cli.doctor.test_doctor import LOCAL
from tests.server.cli.test_cli import run
from tests.server.features.replicas.test_doctor import REDIS
from tests.servers.faulty_proxy import (
    verdicts,
)
from toolgate.server.auth.clients import document_copies
from toolgate.server.auth.clients.document_copies import DocumentCopy
from toolgate.server.base.errors import StateError, UsageError
from toolgate.server.cli.doctor import machine, main
from toolgate.server.cli.doctor.report import run_checks
from toolgate.server.config import load
from toolgate.server.workspaces import free_space

# -- here


def looked(name: str, capsys: pytest.CaptureFixture[str], **environment: str) -> str:
    """Return the report on one check, with options from the environment."""
    options = load.load({}, {"PATH": os.environ["PATH"], **environment})
    check = next(function for row, function, _ in main.machine_checks(options) if row == name)
    asyncio.run(run_checks([(name, check, ())]))
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the state of a server that has recorded calls and signed tokens."""
    folder = tmp_path_factory.mktemp("kept")
    with site(folder, "--auth", "oauth", "--audit", "on") as at:
        run(folder, "user", "add", "ada", "--state", "state", stdin="correct horse")
        token = granted(at, registered(at))["access_token"]
        assert run(folder, "call", "ListBgTasks", "--url", f"{at.url}/mcp", TOOLGATE_TOKEN=token).returncode == 0
    return folder / "state"


def rewound(state: Path, days: float) -> None:
    """Set the time at which the signing key was made."""
    with closing(sqlite3.connect(state / "state.db")) as connection, connection:
        connection.execute("UPDATE oauth_key SET made_at = ?", (time.time() - days * 86_400,))


def another_key(state: Path) -> None:
    (state / "keys" / "signing").write_bytes(os.urandom(32))


def no_key(state: Path) -> None:
    (state / "keys" / "signing").unlink()


def changed_record(state: Path) -> None:
    log = state / "audit" / "audit.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"begins"', b'"ends"', 1))


KEPT: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "expired signing key": (partial(rewound, days=95), "signing key", "note", "the signing key has expired"),
    "signing key of the future": (partial(rewound, days=-9), "signing key", "FAIL", "made in the future"),
    "key file of another state": (another_key, "signing key", "FAIL", "can't be opened"),
    "lost key file": (no_key, "signing key", "FAIL", "is missing"),
    "changed record": (changed_record, "audit", "FAIL", "the record of calls is broken"),
}


def test_what_the_state_keeps_is_found_well(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "replaced in 30 days" in looked("signing key", capsys, TOOLGATE_STATE=str(kept))
    assert looked("audit", capsys, TOOLGATE_STATE=str(kept)).startswith("ok    audit")


@pytest.mark.parametrize(("harm", "row", "verdict", "said"), KEPT.values(), ids=KEPT)
def test_a_fault_of_what_the_state_keeps_is_named(
    kept: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    harm: Callable[[Path], None],
    row: str,
    verdict: str,
    said: str,
) -> None:
    state = tmp_path / "state"
    subprocess.run(["cp", "-a", kept, state], check=True)
    harm(state)
    told = looked(row, capsys, TOOLGATE_STATE=str(state))
    assert told.startswith(f"{verdict:4}  {row}") and said in told, told


REMOTE = {"TOOLGATE_HTTP": "1"}
BY_HEADER = {
    "TOOLGATE_LOGIN": "header=X-User",
    "TOOLGATE_ALLOW_USERS": "*",
    "TOOLGATE_TRUSTED_PROXIES": "127.0.0.1",
    "TOOLGATE_PUBLIC_URL": "https://tools.example.com",
}
HERE: dict[str, tuple[dict[str, str], str, str, str]] = {
    "rule about nothing": ({"TOOLGATE_DENY": "Bsh"}, "rules", "FAIL", "there is no tool Bsh"),
    "dead browser": ({"TOOLGATE_BROWSER": "/bin/false"}, "browser", "FAIL", "/bin/false"),
    "no shell": ({"PATH": "/nowhere"}, "shell", "FAIL", "there is no bash"),
    "no bubblewrap": (
        {**REMOTE, "PATH": "/nowhere", "TOOLGATE_SANDBOX": "bwrap"},
        "sandbox",
        "FAIL",
        "it is not installed",
    ),
    "no sandbox": ({**REMOTE, "TOOLGATE_SANDBOX": "none"}, "sandbox", "FAIL", "no sandbox: commands have"),
    "everybody is a proxy": (
        {**REMOTE, "TOOLGATE_TRUSTED_PROXIES": "0.0.0.0/0"},
        "proxies",
        "FAIL",
        "trusts everybody",
    ),
    "unknown proxy": (
        {**REMOTE, "TOOLGATE_PUBLIC_URL": "https://tools.example.com"},
        "proxies",
        "note",
        "that --trusted-proxies does not name",
    ),
    "header anybody here can set": (
        {**REMOTE, **BY_HEADER, "TOOLGATE_SANDBOX": "auto"},
        "proxies",
        "note",
        "any process can set the header",
    ),
    "header commands can set": (
        {**REMOTE, **BY_HEADER, "TOOLGATE_SANDBOX_NETWORK": "all"},
        "proxies",
        "FAIL",
        "so can commands",
    ),
    "proxy before nobody": (
        {**REMOTE, "TOOLGATE_TRUSTED_PROXIES": "10.0.0.1"},
        "proxies",
        "note",
        "is on loopback",
    ),
    "no public URL": ({**REMOTE, "TOOLGATE_HOST": "0.0.0.0"}, "options", "FAIL", "--public-url"),
}


@pytest.mark.parametrize(("options", "row", "verdict", "said"), HERE.values(), ids=HERE)
def test_a_fault_of_this_machine_is_named(
    capsys: pytest.CaptureFixture[str], options: dict[str, str], row: str, verdict: str, said: str
) -> None:
    told = looked(row, capsys, **options)
    assert told.startswith(f"{verdict:4}  {row}") and said in told, told


FULL = """
mount -t tmpfs -o size=96k,mode=700 none "$1" && mount -t tmpfs -o nr_inodes=40,mode=700 none "$2" || exit 90
dd if=/dev/zero of="$1/fills" bs=1k 2>/dev/null  # until the disk is full
for state in "$1" "$2"; do
    "$3" -m toolgate.server doctor --json --browser none --state "$state" || [ $? = 1 ] || exit 91
done
"""


def test_a_disk_that_is_full_of_bytes_or_of_files_is_named(tmp_path: Path) -> None:
    """Uses real file systems in a private mount namespace."""
    (tmp_path / "bytes").mkdir()
    (tmp_path / "files").mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    python = str(Path(COMMAND).with_name("python"))
    words = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", FULL, "bash", "bytes", "files", python]
    ended = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended
    for line, said in zip(ended.stdout.splitlines(), ("0 KiB free", "for 39 files"), strict=True):
        told = json.loads(line)
        disk = next(check for check in told["checks"] if check["name"] == "disk space")
        assert disk["verdict"] == "FAIL" and "the disk is full" in disk["finding"] and said in disk["finding"], disk
        assert told["first"] == "disk space" and not told["ok"]


def test_what_can_not_be_looked_at_costs_the_other_rows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    options = load.load({}, {"PATH": os.environ["PATH"], "TOOLGATE_STATE": f"/tmp/{'x' * 300}"})
    rows = [(name, partial(main.MACHINE_CHECKS[name], options), ()) for name in ("disk space", "python")]
    assert asyncio.run(run_checks(rows)) == 1
    told = capsys.readouterr().out
    assert verdicts(told) == {"disk space": "FAIL", "python": "ok"} and "file name too long" in told


@pytest.mark.parametrize("error", [UsageError("--redis is wrong"), StateError("the state is away")])
def test_a_check_that_can_not_read_options_or_the_state_fails_alone(
    capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    async def look() -> str:
        raise error

    async def find() -> str:
        return "here"

    assert asyncio.run(run_checks([("pulse", look, ()), ("python", find, ())])) == 1
    told = capsys.readouterr().out
    assert verdicts(told) == {"pulse": "FAIL", "python": "ok"} and f"it can't be checked: {error}" in told


@pytest.mark.parametrize(("count", "said"), [(0, "fix what is named"), (1, "1 other needs one"), (2, "2 others need")])
def test_rows_that_need_a_failed_one_are_counted(capsys: pytest.CaptureFixture[str], count: int, said: str) -> None:
    async def look() -> str:
        raise OSError("broken")

    asyncio.run(run_checks([("disk", look, ()), *[(f"row {number}", look, ("disk",)) for number in range(count)]]))
    told = capsys.readouterr().out
    assert verdicts(told) == {"disk": "FAIL"} and said in told.splitlines()[-1]
    assert "that did not pass" not in told or count


@contextmanager
def limited(most: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_too_few_open_files_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with limited(200):
        told = looked("open files", capsys)
    assert told.startswith("FAIL  open files") and "LimitNOFILE" in told


def test_too_little_memory_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(free_space, "MEMINFO", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text("MemTotal: 1000000 kB\nMemAvailable:   30000 kB\n")
    assert looked("memory", capsys).startswith("FAIL  memory              29.3 MiB left")
    monkeypatch.setattr(free_space, "OWN_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(free_space, "CGROUP_ROOT", tmp_path)
    (tmp_path / "meminfo").write_text("MemAvailable: 8000000 kB\n")
    (tmp_path / "cgroup").write_text("0::/box\n")
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "memory.max").write_text("1073741824\n")
    (tmp_path / "box" / "memory.current").write_text("873741824\n")
    assert "note  memory              190.7 MiB left" in looked("memory", capsys)


def test_a_kernel_without_user_namespaces_gets_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "SYSCTLS", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "apparmor_restrict_unprivileged_userns").write_text("1\n")
    told = looked("sandbox", capsys, TOOLGATE_HTTP="1", TOOLGATE_SANDBOX="none")
    assert "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" in told


DOCUMENTS = {**REMOTE, "TOOLGATE_ALLOW_PRIVATE": "localhost"}


def test_a_document_that_can_not_be_fetched_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    with published(tmp_path / "authority.pem", {}) as (url, fetched):
        monkeypatch.setattr(document_copies, "DOCUMENT_COPIES", {url: DocumentCopy(b"", "")})
        told = looked("client documents", capsys, **DOCUMENTS)
        assert told.startswith("ok    client documents") and url in told and fetched == ["/client.json"]
    for how, mend in (("open", "--registration dynamic"), ("metadata", "--registration open")):
        told = looked("client documents", capsys, **DOCUMENTS, TOOLGATE_REGISTRATION=how)
        assert told.startswith("note  client documents") and "could not connect" in told and mend in told, told


@pytest.mark.parametrize(
    "options",
    [
        {"TOOLGATE_HTTP": ""},
        {"TOOLGATE_AUTH": "none"},
        {"TOOLGATE_AUTH": "https://login.example.com"},
        {"TOOLGATE_REGISTRATION": "dynamic"},
        {"TOOLGATE_REGISTRATION": "closed"},
        {"TOOLGATE_CLIENT_HOSTS": "app.example"},
    ],
    ids=str,
)
def test_no_document_is_fetched_where_none_is_taken(
    options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert looked("client documents", capsys, **{**REMOTE, **options}).startswith("skip  client documents")


# -- told to programs, and to people who look it up


def test_what_is_told_to_programs_is_one_object(tmp_path: Path) -> None:
    told = run(
        tmp_path, "doctor", "--json", "--browser", "none", "-t", "--port", "0", "--deny", "Bsh", *LOCAL, TERM="xterm"
    )
    assert told.returncode == 1 and told.stderr == ""
    found = json.loads(told.stdout)
    names = [check["name"] for check in found["checks"]]
    assert found["first"] == "rules" and [name for name in names if name in main.MACHINE_CHECKS] == list(
        main.MACHINE_CHECKS
    )
    assert all(check["remedy"] for check in found["checks"] if check["verdict"] in ("FAIL", "note"))
    assert run(tmp_path, "tools", "--json").returncode == 2


EVERY = {
    "documents out of reach": ("client documents", "could not connect"),
    **{name: (row, said) for name, (_, row, _, said) in {**KEPT, **HERE}.items()},
    **{said: ("Redis", said) for _, verdict, said in REDIS if verdict != "ok"},
}
