"""People who were here once: what a server holds for them after a while, and that they find all when they return."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import eventually
from tests.clients.raw_http_client import Site, site
from tests.server.auth.minted_tokens import Signed, asked
from tests.server.features.nodes.nodes import NodeProcess, fake_principal, gateway, running_node
from tests.servers.reserved_users import kept_users
from tests.tools.shell_commands import BOUND, until
from toolgate.tools.api.errors import ToolError

PEOPLE = 8
USERS = kept_users(PEOPLE + 8)
IDLE = ("--limit", "idle=1")
SANDBOX = ("--sandbox", "bwrap", "--sandbox-uids", f"{USERS[0]}-{USERS[-1]}", *IDLE)

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the users of the sandboxes are root's to give"),
    pytest.mark.programs("bwrap"),
]


@pytest.fixture
def ground() -> Iterator[Path]:
    """Return a folder that other users can enter: pytest's own folders are closed to them."""
    made = Path(tempfile.mkdtemp(prefix="toolgate-idle-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


def count_held(pid: int) -> tuple[int, int]:
    """Return how many descriptors a process has of people's folders, and how many control groups for people."""
    descriptors = 0
    for each in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            descriptors += "/spool/" in os.readlink(f"/proc/{pid}/fd/{each}")
    walk = os.walk("/sys/fs/cgroup")  # which passes over groups that end meanwhile
    groups = sum(len(below) for folder, below, _ in walk if Path(folder).name.startswith(f"toolgate-{pid}-"))
    return descriptors, groups


def count_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


class Person:
    def __init__(self, signed: Signed, name: str) -> None:
        self._signed = signed
        self._token = signed.token(name)

    def call(self, name: str, **arguments: Any) -> Any:
        response, body, answer = asked(self._signed, self._token, "tools/call", {"name": name, "arguments": arguments})
        assert response.status == 200, body
        return answer["result"]

    def bash(self, command: str) -> str:
        return str(self.call("Bash", command=command)["content"][0]["text"])


@contextlib.contextmanager
def people_at(ground: Path, *options: str) -> Iterator[tuple[Site, Signed]]:
    free = ("--limit", "calls=0", "--limit", "calls:tools:shell=0")
    with site(ground, "--auth", "oauth", *free, *options, workspace=False) as place:
        yield place, Signed(place)


def test_people_at_rest_have_no_descriptor_and_no_control_group(ground: Path) -> None:
    with people_at(ground, *SANDBOX) as (place, signed):
        ada = Person(signed, "ada")
        assert ada.bash("echo in") == "in\n"  # the first command opens what all share
        assert eventually(lambda: count_held(place.process.pid) == (0, 0)), count_held(place.process.pid)
        before = count_descriptors(place.process.pid)
        people = [Person(signed, f"person {number}") for number in range(PEOPLE)]
        with ThreadPoolExecutor(8) as callers:
            assert list(callers.map(lambda each: each.bash("echo in"), people)) == ["in\n"] * PEOPLE
        assert eventually(lambda: count_held(place.process.pid) == (0, 0)), count_held(place.process.pid)
        assert eventually(lambda: count_descriptors(place.process.pid) <= before)


def test_who_returns_finds_all_as_it_was(ground: Path) -> None:
    with people_at(ground, *SANDBOX) as (place, signed):
        ada = Person(signed, "ada")
        ada.bash("mkdir below; cd below; echo one > file")
        task = ada.call("BackgroundBash", command="echo first; echo second")["structuredContent"]["task_id"]
        assert eventually(lambda: "exited" in ada.call("ListBgTasks")["content"][0]["text"])
        assert "first\nsecond\n" in ada.call("ReadBgOutput", task_id=task)["content"][0]["text"]
        for number in range(1, 4):
            assert eventually(lambda: count_held(place.process.pid) == (0, 0)), count_held(place.process.pid)
            assert ada.call("ReadBgOutput", task_id=task)["content"][0]["text"].startswith("[task")  # read before
            assert ada.bash("cat file") == "one\n"
            started = ada.call("BackgroundBash", command="true")["structuredContent"]["task_id"]
            assert started >= task + number  # ids go on
            listed = ada.call("ListBgTasks")["structuredContent"]["tasks"]
            assert [each["task_id"] for each in listed][:1] == [task] and len(listed) == number + 1


def test_what_runs_is_not_closed(ground: Path) -> None:
    with people_at(ground, *SANDBOX) as (place, signed):
        ada, ben = Person(signed, "ada"), Person(signed, "ben")
        task = ada.call("BackgroundBash", command="sleep 600")["structuredContent"]["task_id"]
        assert ben.bash("echo in") == "in\n"
        of_one = count_held(place.process.pid)[0]
        assert eventually(lambda: count_held(place.process.pid)[0] < of_one)  # ben's are closed
        assert ada.call("KillBgTask", task_id=task)["structuredContent"]["status"] == "killed"
        assert eventually(lambda: count_held(place.process.pid) == (0, 0)), count_held(place.process.pid)


def test_a_node_killed_when_it_has_closed_a_workspace_loses_nothing(ground: Path) -> None:
    principal = fake_principal()

    async def run_task(node: NodeProcess) -> int:
        async with gateway(node) as remote:
            mine = remote.get_or_open(principal)
            task = await mine.start("echo kept", background=True)
            assert await mine.wait(task, BOUND)
            await until(lambda: count_held(node.process.pid) == (0, 0))  # not before a gateway has heard of the end
            return task

    async def come_back(node: NodeProcess, task: int) -> None:
        async with gateway(node) as remote:
            mine = remote.get_or_open(principal)
            assert (await mine.take(task, 99)).text == "kept\n"
            assert await mine.start("true", background=True) == task + 1

    with running_node(ground / "node", *SANDBOX) as node:
        task = asyncio.run(run_task(node))
        assert eventually(lambda: count_held(node.process.pid) == (0, 0)), count_held(node.process.pid)
        node.kill()
        node.start()
        asyncio.run(come_back(node, task))


def test_a_person_whose_sandbox_did_not_start_holds_nothing(ground: Path) -> None:
    real, broken = shutil.which("bwrap"), ground / "broken"
    assert real, "bwrap is missing: apt-get install bubblewrap"
    (ground / "bwrap").write_text(
        f'#!/bin/sh\nif [ -e {broken} ]; then echo no namespace >&2; exit 1; fi\nexec {real} "$@"\n'
    )
    (ground / "bwrap").chmod(0o755)
    words = (*SANDBOX, "--limit", "idle=1h")
    with running_node(ground / "node", *words, env={"PATH": f"{ground}:{os.environ['PATH']}"}) as node:
        broken.touch()

        async def body() -> None:
            async with gateway(node) as remote:
                mine = remote.get_or_open(fake_principal())
                with pytest.raises(ToolError, match="the sandbox can't be started: no namespace"):
                    await mine.execute("true", wait=BOUND, limit=99)
                await until(lambda: count_held(node.process.pid) == (0, 0))
                broken.unlink()
                assert (await mine.execute("echo in", wait=BOUND, limit=99))[1].excerpt.text == "in\n"

        asyncio.run(body())
