"""The Dockerfile's entry point, user, environment and health check, as an engine would run them: read-only, without
capabilities, under deploy/seccomp.json. The root is this machine's; test_image.py builds the image's own."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, ROOT, eventually
from tests.deploy import engine, image
from tests.deploy.engine import Container, Root, container, engine_filter
from tests.deploy.runtime import DEVICES
from tests.interop.official_clients import THIRTEEN, Negotiation
from tests.interop.sign_in_server import SignInServer
from tests.interop.test_oauth_python_sdk import StoredTokens, connected, text
from tests.server.auth.http_browser import Person
from toolgate.tools.workspace.sandbox.syscalls import FAMILIES, REFUSED

DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
PROFILE = ROOT / "deploy" / "seccomp.json"
IMAGE = image.read(DOCKERFILE)
CAPABILITIES = ("SETUID", "SETGID", "SETPCAP", "CHOWN", "KILL", "DAC_OVERRIDE", "FOWNER")
WRITTEN = ("/x", "/etc/x", "/usr/x", "/opt/toolgate/x", "/home/toolgate/x", "/usr/local/bin/x")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    if os.geteuid() != 0:
        pytest.skip("only root can begin a container's first process")
    missing = [name for name in ("tini", "nsenter", "setpriv", "bwrap") if shutil.which(name) is None]
    assert not missing, f"{missing} are missing: apt-get install tini util-linux bubblewrap"
    return engine.here(IMAGE, tmp_path_factory.mktemp("here"))


@pytest.fixture(scope="module")
def running(root: Root, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with container(IMAGE, root, tmp_path_factory.mktemp("running"), filter=engine_filter(PROFILE)) as made:
        assert made.serving(), made.log()
        yield made


async def called(running: Container, *commands: str) -> list[str]:
    """Return Bash's answers to a person who signs in."""
    gate = SignInServer(running, Person(running), "")  # type: ignore[arg-type]  # it has what they look at
    async with connected(gate, StoredTokens(), Negotiation("http", "auto")) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == THIRTEEN
        return [text(await client.call_tool("Bash", {"command": command})) for command in commands]


LOOK = "id -u; touch /usr/x /data/x; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status; echo $PATH"


def test_a_person_signs_in_and_commands_run_in_a_sandbox_without_any_privilege(running: Container) -> None:
    said, python = asyncio.run(called(running, LOOK, "python3 -c 'import sys; print(sys.prefix)'"))
    uid, *lines = said.splitlines()
    assert uid == str(IMAGE.uid)
    assert sorted(lines) == [
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "CapBnd:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
        "touch: cannot touch '/data/x': Read-only file system",
        "touch: cannot touch '/usr/x': Read-only file system",
    ]
    assert python == "/usr\n"  # the server's own environment is not on the commands' PATH
    assert "sandbox bwrap: namespaces and a system call filter, this user, network public" in running.log()


def test_the_health_check_says_whether_it_takes_work(running: Container) -> None:
    checked = running.execute(*IMAGE.health)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "ready\n", "")
    other = running.execute(*IMAGE.health, "--port", "1")
    assert (other.returncode, other.stdout) == (
        1,
        "http://127.0.0.1:1/ready: connection refused; is the server running?\n",
    )


def test_nothing_can_be_written_but_the_volume_and_memory(running: Container) -> None:
    tried = running.execute("touch", *WRITTEN)
    assert [line.split("'")[1] for line in tried.stderr.splitlines()] == list(WRITTEN)
    writable = {path for path, how in running.mounts() if "rw" in how} - {f"/dev/{name}" for name in DEVICES}
    assert writable == {"/data", "/tmp", "/dev", "/dev/shm", "/proc"}
    assert {path.name for path in running.data.iterdir()} == {"state"}
    assert (running.data / "state").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_uid for path in running.data.rglob("*")} == {IMAGE.uid}


def test_compiled_files_serve_a_user_who_cannot_write_even_if_a_build_sets_all_times(tmp_path: Path) -> None:
    [options] = re.findall(r"/opt/toolgate/bin/python -m (compileall .+) /opt/toolgate/lib", DOCKERFILE)
    source = tmp_path / "library.py"
    source.write_text("VALUE = 1")
    subprocess.run([sys.executable, "-m", *options.split(), tmp_path], check=True, timeout=PATIENCE)
    os.utime(source, (0, 0))
    command = [sys.executable, "-B", "-v", "-c", "import library"]
    started = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True)
    [compiled] = (tmp_path / "__pycache__").iterdir()
    assert f"# code object from {str(compiled)!r}" in started.stderr


def test_orphans_are_reaped_and_the_end_is_orderly(running: Container) -> None:
    running.execute("sh", "-c", "(sleep 0.1 & sleep 0.2 &) & exit")  # returns when all of them have ended
    assert eventually(lambda: running.zombies() == [])
    assert running.stop() == 0
    assert "Traceback" not in running.log()


@pytest.mark.brief("masked", "root without rights")
@pytest.mark.parametrize(
    ("engine_is", "said", "help"),
    [
        ({"masked": True}, "Can't mount proc", "systempaths=unconfined"),
        ({"filter": engine_filter(PROFILE, spaces=False)}, "new namespace", "seccomp profile"),
        ({"user": 0, "capabilities": ("SETUID", "SETGID", "DAC_OVERRIDE")}, "though this is root", "CAP_CHOWN"),
    ],
    ids=["masked", "filtered", "root without rights"],
)
def test_where_no_sandbox_can_be_made_the_start_is_refused_with_what_to_give(
    root: Root, tmp_path: Path, engine_is: dict[str, Any], said: str, help: str
) -> None:
    with container(IMAGE, root, tmp_path, **engine_is) as refused:
        assert refused.process.wait(PATIENCE) == 2
    assert said in refused.log() and help in refused.log() and "docs/container.md" in refused.log()
    assert list(refused.data.glob("state/keys/*")) == []


def test_as_root_with_few_capabilities_the_engines_defaults_suffice(root: Root, tmp_path: Path) -> None:
    """Level `uid` needs no namespaces, so the engine's masked paths are no obstacle."""
    with container(IMAGE, root, tmp_path, user=0, capabilities=CAPABILITIES, masked=True) as made:
        assert made.serving(), made.log()
        [said] = asyncio.run(
            called(made, "id -u; cat /data/state/keys/* 2>&1 | head -1; grep CapBnd /proc/self/status")
        )
        assert made.stop() == 0
    uid, denied, bound = said.splitlines()
    assert int(uid) in range(40_000, 50_000)
    assert denied.endswith("Permission denied") and bound == "CapBnd:\t0000000000000000"


def test_in_a_user_namespace_of_its_own_it_has_its_sandbox_too(root: Root, tmp_path: Path) -> None:
    """As in a pod with `hostUsers: false`."""
    with container(IMAGE, root, tmp_path, pod=True, filter=engine_filter(PROFILE)) as made:
        assert made.serving(), made.log()
        assert made.stop() == 0
    assert "sandbox bwrap: namespaces and a system call filter, this user" in made.log()


def test_the_same_image_speaks_stdio(root: Root, tmp_path: Path) -> None:
    with container(IMAGE, root, tmp_path, command=("call", "Bash", "command=id -u")) as made:
        assert made.process.wait(PATIENCE) == 0
    assert str(IMAGE.uid) in made.log().splitlines()


def test_the_profile_allows_no_more_than_commands_have_but_what_sandboxes_are_made_with() -> None:
    told = json.loads(PROFILE.read_text())
    making, *rest = (set(row["names"]) for row in told["syscalls"])
    refused = {name for row in REFUSED for name in row.split()}
    assert making == {"unshare", "mount", "umount2", "pivot_root", "chroot", "sethostname"}
    assert set().union(*rest) & refused == set()
    families = [row["args"][0]["value"] for row in told["syscalls"] if row["names"] == ["socket"]]
    assert sorted(families) == sorted(FAMILIES)


def test_the_build_is_sent_the_program_and_nothing_else() -> None:
    sent = image.Build(ROOT, ROOT, ROOT).is_sent
    needed = [ROOT / word for step in image.instructions(DOCKERFILE) for word in copied(step)]
    assert needed and all(path.exists() and sent(path) for path in needed)
    kept = (
        ".git/config",
        ".env",
        "deploy/.env",
        "tests/clients/raw_client.py",
        "state/keys/signing",
        "server/__pycache__/a.pyc",
    )
    assert [name for name in kept if sent(ROOT / name)] == []


def copied(step: image.Instruction) -> list[str]:
    """Return the files that a COPY takes from the clone."""
    words = step.rest.split() if step.name == "COPY" and "--from" not in step.rest else [""]
    return words[:-1]


def test_the_image_is_not_root_and_has_what_engines_read() -> None:
    assert IMAGE.user == "10001:10001"
    assert (IMAGE.stop, IMAGE.ports, IMAGE.volumes) == ("SIGTERM", [8080], ["/data"])
    assert IMAGE.entrypoint[0] == "tini"
    assert IMAGE.labels["org.opencontainers.image.licenses"] == "MIT"
    assert image.read(DOCKERFILE, VERSION="1.2").labels["org.opencontainers.image.version"] == "1.2"
