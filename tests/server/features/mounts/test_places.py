"""`network` and `files` of a mount: where its command may go, and what is said where it may not."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import Server, eventually
from tests.clients.raw_http_client import site
from tests.server.auth.minted_tokens import Signed
from tests.server.features.mounts.mounted import command_mount, far_site, write_config
from tests.server.features.mounts.test_people import LEGACY_MOUNT, People
from toolgate.server.cli import main

PROGRAM = Path(__file__).with_name("place_server.py")
DIRECT = 'env = { NO_PROXY = "", no_proxy = "" }'  # as a service on this machine needs it

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has all levels")
needs_bwrap = pytest.mark.programs("bwrap")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder that every user can enter."""
    made = Path(tempfile.mkdtemp(prefix="toolgate-mount-"))
    made.chmod(0o755)
    shutil.copy(PROGRAM, made)
    try:
        yield made
    finally:
        shutil.rmtree(made)


def place_mount(folder: Path, *lines: str) -> str:
    return "\n".join(
        ("[mounts.far]", 'command = "python3"', f'args = ["{PROGRAM.name}"]', f'cwd = "{folder}"', *lines, "")
    )


@needs_root
@needs_bwrap
def test_a_command_goes_where_its_mount_says_and_a_refusal_names_the_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, drop = folder / "data", folder / "drop"
    for each in (data, drop):
        each.mkdir()
        each.chmod(0o777)
        (each / "file").write_text(each.name)
    table = place_mount(folder, DIRECT, 'network = ["127.0.0.1"]', f'files = ["{data}", "{drop}:rw"]')
    config = write_config(tmp_path, table)
    options = ("--auth", "oauth", "--sandbox", "bwrap", "--sandbox-network", "none", *config)
    with (
        far_site(tmp_path, LEGACY_MOUNT) as far,
        site(folder / "server", *options, workspace=False) as listening,
    ):
        people = People(Signed(listening))
        people.wait_listed("ada")
        assert people.call("ada", "far__fetch", word=f"{far.base}/requests") == "0"
        remedy = 'add "localhost" to network of [mounts.far]'
        elsewhere = far.base.replace("127.0.0.1", "localhost")
        assert people.call("ada", "far__fetch", word=f"{elsewhere}/requests") == (
            f"403: refused: localhost is not in the list; {remedy}\n"
        )
        assert remedy in listening.log()
        logs = ("mount", "logs", "far", *config, "--state", str(folder / "server" / "state"))
        assert eventually(lambda: main.run(logs) == 0 and f"; {remedy}" in capsys.readouterr().out)

        assert people.call("ada", "far__read", word=f"{data}/file") == "data"
        assert "Read-only file system" in people.call("ada", "far__write", word=f"{data}/new")
        assert people.call("ada", "far__write", word=f"{drop}/new") == "written"
        assert (drop / "new").read_text() == "written"
        look = f"cat {data}/file {drop}/file; (exec 3<>/dev/tcp/127.0.0.1/3128) || echo no proxy"
        looked = people.call("ada", "Bash", command=look)
        assert looked.count("No such file") == 2 and "no proxy" in looked, "the shell goes nowhere by that"


@needs_root
@needs_bwrap
def test_another_list_holds_from_the_next_call(folder: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, place_mount(folder, DIRECT, 'network = ["127.0.0.1"]'))
    with (
        far_site(tmp_path, LEGACY_MOUNT) as far,
        site(folder / "server", "--auth", "oauth", "--sandbox", "bwrap", *config, workspace=False) as listening,
    ):
        people = People(Signed(listening))
        people.wait_listed("ada")
        assert people.call("ada", "far__fetch", word=f"{far.base}/requests") == "0"
        write_config(tmp_path, place_mount(folder, DIRECT, "network = []"))
        assert eventually(lambda: "refused: " in people.call("ada", "far__fetch", word=f"{far.base}/requests")), (
            listening.log()
        )


@pytest.mark.parametrize("line", ['network = ["api.example.com"]', "network = []", 'files = ["/srv"]'])
def test_without_a_sandbox_a_mount_that_is_to_be_confined_is_not_served(
    start: Callable[..., Server], tmp_path: Path, line: str
) -> None:
    server = start(*write_config(tmp_path, command_mount(LEGACY_MOUNT, "far", line)))
    server.request("tools/list")
    why = "NOT_CONFINED: without a sandbox nothing holds it to the network and files of [mounts.far]: use --sandbox"
    assert eventually(lambda: why in server.log())
    assert not [tool for tool in server.request("tools/list")["tools"] if tool["name"].startswith("far__")]


@needs_root
def test_at_uid_a_command_has_no_network_or_that_of_the_shell(folder: Path, tmp_path: Path) -> None:
    tables = place_mount(folder, "network = []"), place_mount(folder, 'network = ["a.example"]').replace("far", "two")
    options = ("--auth", "oauth", "--sandbox", "uid", "--sandbox-network", "all", *write_config(tmp_path, *tables))
    with (
        far_site(tmp_path, LEGACY_MOUNT) as far,
        site(folder / "server", *options, workspace=False) as listening,
    ):
        people = People(Signed(listening))
        people.wait_listed("ada")
        assert people.call("ada", "far__fetch", word=f"{far.base}/requests").startswith("refused: ")
        assert eventually(lambda: "NOT_CONFINED: at the level uid nothing holds it to the hosts of" in listening.log())


def test_a_mount_that_would_show_the_state_is_not_served(start: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    table = command_mount(LEGACY_MOUNT, "far", f'files = ["{tmp_path}/link"]')
    server = start(*write_config(tmp_path, table))
    assert eventually(lambda: "[mounts.far] files: " in server.log())
    assert "CONFIG_VALUE" in server.log() and "of the server's own" in server.log()
