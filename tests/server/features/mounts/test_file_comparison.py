"""Servers on one state that read different config files: each finds what differs, and doctor says it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.features.mounts.mounted import command_mount, write_config
from tests.server.features.replicas.bus.conftest import shared_redis as shared_redis
from tests.server.features.replicas.bus.pairs import run_replicas as run_replicas
from toolgate.server.base.bus.bus import Bus
from toolgate.server.cli import main
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.control import MountControl
from toolgate.server.features.mounts.file_comparison import FileComparison

FILES = MountConfig(name="files", command="npx", args=("files",), env={"KEY": "a"})
SEARCH = MountConfig(name="search", url="https://a/mcp")


def test_each_server_finds_the_mounts_that_differ(run_replicas: Callable[..., None]) -> None:
    async def check(one: Bus, two: Bus) -> None:
        mounts, changes = {one: [FILES, SEARCH], two: [SEARCH]}, list[Bus]()
        first, second = (
            FileComparison(bus, lambda bus=bus: mounts[bus], lambda bus=bus: changes.append(bus)) for bus in (one, two)
        )
        await first.compare()
        await second.compare()
        await first.compare()
        assert first.differing == second.differing == ("files",)
        mounts[two] = [SEARCH, MountConfig(name="files", command="npx", args=("files",), env={"KEY": "b"})]
        await second.compare()
        await first.compare()
        assert first.differing == second.differing == ()  # what is a machine's own may differ
        assert changes == [two, one, two, one]

    run_replicas(check)


def test_doctor_says_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = write_config(tmp_path, command_mount("legacy"))
    control = MountControl(tmp_path / "state")
    control.begin()
    control.publish({}, ["far", "other"])
    assert main.run(("doctor", "--browser", "none", *options, "--state", str(tmp_path / "state"))) == 1
    assert "mounts differ between the servers on this state: far, other" in capsys.readouterr().out
    control.end()
    assert not list((tmp_path / "state/cache/mounts/status").iterdir())
