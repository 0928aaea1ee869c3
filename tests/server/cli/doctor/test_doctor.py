"""`toolgate doctor` on this machine, with one broken part at a time."""

import asyncio
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.server.cli.test_cli import run
from tests.servers.faulty_proxy import verdicts
from toolgate.server.cli.commands import user
from toolgate.server.cli.doctor import main
from toolgate.server.cli.doctor.report import DoctorPart
from toolgate.server.config import load
from toolgate.server.state import tables
from toolgate.server.state.sqlite import store as sqlite_store

NO_BROWSER = ("doctor", "--browser", "none")  # starting one takes most of the time
LOCAL = ("--registration", "dynamic")  # no client's document is fetched then


def test_a_machine_that_is_well_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "good.py").write_text("from toolgate.tools import tool\n@tool\ndef hi() -> str:\n 'Hi.'\n")
    told = run(tmp_path, "doctor", "-t", "--port", "0", "-p", "plugins", *LOCAL)
    assert told.returncode == 0, told.stdout
    found = verdicts(told.stdout)
    assert found["plugins"] == found["port"] == found["state folder"] == "ok" and "FAIL" not in found.values()
    assert not (tmp_path / ".local").exists(), "it looks, and makes nothing"


def test_each_check_of_a_feature_is_run() -> None:
    config = load.load({"http": "true"}, {})
    added = [name for part in main.list_parts(config) for name, _, _ in part.checks]
    assert set(added).issubset(name for name, _, _ in main.machine_checks(config))


@pytest.mark.parametrize("names", [{"after": "nowhere"}, {"replaced": {"nowhere": None}}, {"needs": {"nowhere": ()}}])
def test_a_feature_that_names_no_check_is_refused(names: dict[str, Any]) -> None:
    """Its checks would not be run, and all would seem well."""
    part = DoctorPart(**{"checks": (), "after": "clock", **names})
    with pytest.raises(ValueError, match="there is no check 'nowhere'"):
        main.merge_parts(load.load({}, {}), [part])


def test_each_fault_of_a_machine_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o755)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "bad.py").write_text("import nothing_there\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        told = run(
            tmp_path,
            *NO_BROWSER,
            *LOCAL,
            "-t",
            "--port",
            port,
            "--state",
            "state",
            "-p",
            "plugins",
            "--login",
            "github",
        )
    assert told.returncode == 1
    found = verdicts(told.stdout)
    assert [name for name, verdict in found.items() if verdict == "FAIL"] == [
        "options",
        "state folder",
        "plugins",
        "port",
    ]
    assert "nothing_there" in told.stdout and "bad.py" in told.stdout and "--login" in told.stdout
    assert told.stdout.splitlines()[-1].startswith("Fix this first: options")


def test_a_damaged_database_and_one_of_the_future_are_named(tmp_path: Path) -> None:
    run(tmp_path, "user", "add", "ada", "--state", "state", stdin="correct horse")
    database = tmp_path / "state" / "state.db"
    os.utime(database, (time.time() + 86_400,) * 2)
    told = run(tmp_path, *NO_BROWSER, "--state", "state")
    assert verdicts(told.stdout)["clock"] == "FAIL" and verdicts(told.stdout)["state database"] == "ok"
    for file in (tmp_path / "state").glob("state.db-*"):
        file.unlink()
    database.write_bytes(b"not a database at all, but long enough to be one" * 100)
    told = run(tmp_path, *NO_BROWSER, "--state", "state")
    assert told.returncode == 1 and verdicts(told.stdout)["state database"] == "FAIL"


def test_looking_upgrades_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "user", "add", "ada", "--state", "state", stdin="correct horse")
    before = {path: path.read_bytes() for path in (tmp_path / "state").iterdir() if path.is_file()}
    version = tables.VERSION
    for module in (tables, sqlite_store):
        monkeypatch.setattr(module, "VERSION", version + 1)  # as the next Toolgate looks at it
    config = load.load({"state": str(tmp_path / "state")}, {})
    found = asyncio.run(main.MACHINE_CHECKS["state database"](config))
    assert f"version {version}, will be upgraded at the next start" in str(found)
    assert user.list_users(config) == 1 and f"is of version {version}" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "state").iterdir() if path.is_file()} == before
