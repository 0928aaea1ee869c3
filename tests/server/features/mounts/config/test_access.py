"""`network` and `files` of a mount: what they open, and what they never open."""

from pathlib import Path
from typing import Any

import pytest

from toolgate.server.config.load import Config, load
from toolgate.server.features.mounts.config.access import create_access, read_files, read_network
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.config.table import read_own_mounts
from toolgate.tools.workspace.workspace import ProgramAccess


def load_mount(folder: Path, *words: str, **options: Any) -> Config:
    """Return the options with a mount whose `files` are these."""
    named = ", ".join(f'"{word}"' for word in words)
    (folder / "config.toml").write_text(
        f'[mounts.far]\ncommand = "x"\nfiles = [{named}]\n[mounts.good]\ncommand = "x"\n'
    )
    return load({"state": str(folder / "state"), "config": str(folder / "config.toml"), **options}, {"HOME": "/"})


def test_a_mount_that_says_nothing_goes_where_the_shell_goes() -> None:
    assert create_access(MountConfig(name="far", command="x")) is None


def test_an_empty_list_of_hosts_is_no_network() -> None:
    assert create_access(MountConfig(name="far", command="x", network=())) == ProgramAccess("[mounts.far]", ())


def test_paths_are_read_only_unless_they_say_rw() -> None:
    files = read_files(["/srv/a", "/srv/b:rw", "/srv/c:ro"])
    assert create_access(MountConfig(name="far", command="x", network=read_network(["a.b"]), files=files)) == (
        ProgramAccess("[mounts.far]", ("a.b",), (Path("/srv/a"), Path("/srv/c")), (Path("/srv/b"),))
    )


@pytest.mark.parametrize("path", ["state", "state/keys", "", "link", "config.toml"])
@pytest.mark.parametrize("mode", ["", ":rw"])
def test_what_is_the_servers_own_is_never_opened(tmp_path: Path, path: str, mode: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "state")
    found = read_own_mounts(load_mount(tmp_path, f"{tmp_path / path}{mode}"))
    assert [mount.name for mount in found.mounts] == ["good"]
    (fault,) = found.faults
    assert fault.code == "CONFIG_VALUE"
    assert fault.text == (
        f"{tmp_path}/config.toml: [mounts.far] files: {tmp_path / path} is in a folder of the server's own, or has "
        "one: its state, keys and logs are shown to nobody"
    )


@pytest.mark.parametrize("path", ["/", "/proc", "/sys/kernel", "/dev/mem", "/tmp", "/etc:rw", "/usr/bin/env:rw"])
def test_what_is_the_systems_own_is_never_opened(tmp_path: Path, path: str) -> None:
    (fault,) = read_own_mounts(load_mount(tmp_path, path)).faults
    assert " is the system's own: name a path in it" in fault.text or " is a system folder" in fault.text


def test_plugins_can_not_be_written_to(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins" / "own"
    plugins.mkdir(parents=True)
    config = load_mount(tmp_path, f"{tmp_path}/plugins:rw", plugins=[str(plugins)])
    (fault,) = read_own_mounts(config).faults
    why = f"{tmp_path}/plugins has or is in what commands must not change: --plugins {plugins}"
    assert why in fault.text
    assert not read_own_mounts(load_mount(tmp_path, f"{tmp_path}/plugins", plugins=[str(plugins)])).faults


@pytest.mark.parametrize("line", ['files = ["{}/out/data"]', 'cwd = "{}/out/data"'])
def test_a_path_that_another_command_could_replace_is_refused(tmp_path: Path, line: str) -> None:
    tables = ("[mounts.far]", 'command = "x"', line.format(tmp_path), "[mounts.good]", 'command = "x"')
    (tmp_path / "config.toml").write_text("\n".join((*tables, f'files = ["{tmp_path}/out:rw"]')))
    (tmp_path / "out" / "data").mkdir(parents=True)
    found = read_own_mounts(load({"state": "/srv/state", "config": str(tmp_path / "config.toml")}, {"HOME": "/"}))
    assert [mount.name for mount in found.mounts] == ["good"]
    why = f"{tmp_path}/out/data is in {tmp_path}/out, where the command of [mounts.good] writes"
    assert why in found.faults[0].text


def test_at_a_node_the_paths_are_those_of_its_machine(tmp_path: Path) -> None:
    config = load_mount(tmp_path, str(tmp_path), node=["unix:/run/node.sock"], http="true")
    assert not read_own_mounts(config).faults
