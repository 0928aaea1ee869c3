"""Several nodes: where people are, and what others notice of a node that is away."""

import asyncio
import contextlib
import gc
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.server.features.nodes.nodes import NodeProcess, OneNode, fake_principal, list_nobody, running_node
from tests.server.features.nodes.several_nodes import database, greet_nodes, place_at, several_gateway
from tests.tools.shell_commands import BOUND, until
from toolgate.server.app.features import build_host, check_options
from toolgate.server.base.errors import StateError, UsageError
from toolgate.server.base.watch import FileChanges
from toolgate.server.config.load import load
from toolgate.server.features.nodes import rows as node_rows
from toolgate.server.features.nodes.address import NodeAddress
from toolgate.server.features.nodes.gateway import link
from toolgate.server.features.nodes.gateway.placement import Placement
from toolgate.server.features.nodes.gateway.remote_workspaces import RemoteWorkspaces
from toolgate.server.features.nodes.messages import NodeAnswer, TaskEnded, Welcome
from toolgate.server.features.nodes.node.name import NAME_FILE, find_or_choose_name
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.output.run_record import Run
from toolgate.tools.workspace.workspaces import Workspaces

WITHIN = 2.0  # seconds: what is promised of a call while a node can't be reached
SAMPLES = 150


async def where(remote: RemoteWorkspaces, principal: str) -> str:
    """Return what the principal's first call finds: the name of a folder above its root."""
    await remote.prepare(principal, lambda _, text: None)
    return remote.get_or_open(principal).root.parents[2].name


def test_people_are_spread_over_nodes_and_stay_for_every_gateway(nodes: list[NodeProcess], tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        people = [fake_principal() for _ in range(4)]
        async with several_gateway(store, *nodes) as one, several_gateway(store, *reversed(nodes)) as two:
            assert [await where(one, person) for person in people] == ["attic", "cellar", "attic", "cellar"]
            assert [await where(two, person) for person in people] == ["attic", "cellar", "attic", "cellar"]
            racer = fake_principal()
            assert len(set(await asyncio.gather(where(one, racer), where(two, racer)))) == 1
            shell = one.get_or_open(people[1])
            assert (await shell.execute("pwd", wait=BOUND, limit=200))[1].excerpt.text == f"{shell.root}\n"
            assert len(list(nodes[1].state.glob(f"workspaces/{people[1]}"))) == 1

    with database(tmp_path) as store:
        asyncio.run(body(store))


def test_a_draining_node_gets_no_new_people(nodes: list[NodeProcess], tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        stays = fake_principal()
        async with several_gateway(store, *nodes) as remote:
            assert await where(remote, stays) == "attic"
            for at in remote.links:
                await store.transact(partial(node_rows.note_node, name=at.name, address=str(at.address), now=0.0))
            await store.transact(partial(node_rows.set_draining, name="attic", address="", draining=True))
            assert [await where(remote, fake_principal()) for _ in range(3)] == ["cellar"] * 3
            assert await where(remote, stays) == "attic"
            await store.transact(partial(node_rows.set_draining, name="cellar", address="", draining=True))
            with pytest.raises(ToolError, match="take no new people: nothing was done"):
                await where(remote, fake_principal())
            await store.transact(partial(node_rows.note_node, name="attic", address="elsewhere", now=0.0))
            told = [(node.name, node.address, node.draining, node.people) for node in await listed(store)]
            assert told[0] == ("attic", "elsewhere", True, 1)

    with database(tmp_path) as store:
        asyncio.run(body(store))


def test_the_end_of_a_task_is_taken_from_its_persons_node_alone(nodes: list[NodeProcess], tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        async with several_gateway(store, *nodes) as remote:
            person = fake_principal()
            assert await where(remote, person) == "attic"
            attic, cellar = remote.links
            end = TaskEnded(1, person, Run(1, "true", "a-server", 0.0))
            confirmed: list[bool] = []
            cellar.on_end(end, confirmed.append)
            await until(lambda: bool(confirmed))
            attic.on_end(end, confirmed.append)
            assert confirmed == [False, True]

    with database(tmp_path) as store:
        asyncio.run(body(store))


def test_a_node_takes_as_many_people_as_it_may(nodes: list[NodeProcess], tmp_path: Path) -> None:
    async def body(store: Store, small: NodeProcess) -> None:
        first, second = fake_principal(), fake_principal()
        await store.transact(partial(node_rows.set_limit, name="attic", address="", most=0))
        async with several_gateway(store, small, nodes[0]) as remote:
            await place_at(store, fake_principal(), "attic")
            await place_at(store, fake_principal(), "attic")
            assert [await where(remote, person) for person in (first, second)] == ["alone", "attic"]
            assert (await remote.get_or_open(first).execute("echo in", wait=BOUND, limit=9))[1].excerpt.text == "in\n"
        async with several_gateway(store, small) as remote:
            assert await where(remote, first) == "alone"
            with pytest.raises(ToolError, match="take no new people: nothing was done"):
                await where(remote, fake_principal())
        with contextlib.closing(SqliteStore(tmp_path / "other database")) as other:
            async with several_gateway(other, small) as remote:  # whose people are others
                assert await where(remote, second) == "alone"
                with pytest.raises(ToolError, match=r"this node is full: it takes 1 \(--max-people\)"):
                    await remote.get_or_open(second).execute("echo in", wait=BOUND, limit=9)
        assert small.stop() == 0
        await asyncio.to_thread(small.start)  # it counts folders, not people since its start
        async with several_gateway(store, small) as remote:
            assert (await remote.get_or_open(first).execute("echo in", wait=BOUND, limit=9))[1].excerpt.text == "in\n"

    options = ("--sandbox", "none", "--name", "alone", "--max-people", "1")
    with database(tmp_path) as store, running_node(tmp_path / "alone", *options) as small:
        asyncio.run(body(store, small))


async def listed(store: Store) -> list[node_rows.KnownNode]:
    return await store.transact(node_rows.list_nodes)


def test_people_without_a_row_are_where_their_files_are_if_the_operator_says_so(
    nodes: list[NodeProcess], tmp_path: Path
) -> None:
    async def body(store: Store) -> None:
        person = fake_principal()
        folder = nodes[1].state / "workspaces" / person
        folder.mkdir()
        (folder / "thesis.txt").write_text("kept")
        await store.transact(partial(node_rows.set_adopting, name="cellar", address="", adopts=True))
        async with several_gateway(store, *nodes) as remote:
            assert await where(remote, person) == "cellar"

    with database(tmp_path) as store:
        asyncio.run(body(store))


def test_people_of_a_node_that_is_not_given_are_told_its_name(nodes: list[NodeProcess], tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        person = fake_principal()
        await place_at(store, person, "lighthouse")
        async with several_gateway(store, *nodes) as remote:
            with pytest.raises(ToolError, match="on the node lighthouse, and this server does not use it"):
                await where(remote, person)
            with pytest.raises(ToolError, match="on the node lighthouse"):
                await remote.get_or_open(person).list()

    with database(tmp_path) as store:
        asyncio.run(body(store))


@pytest.mark.soak
def test_a_stopped_node_delays_nobody_on_another(nodes: list[NodeProcess], tmp_path: Path) -> None:
    async def measure(remote: RemoteWorkspaces, person: str) -> float:
        times = list[float]()
        for _ in range(SAMPLES):
            began = time.perf_counter()
            await remote.get_or_open(person).list()
            times.append(time.perf_counter() - began)
        return sorted(times)[int(SAMPLES * 0.99)]

    async def body(store: Store) -> None:
        ada, bob = fake_principal(), fake_principal()
        await place_at(store, ada, "attic")
        await place_at(store, bob, "cellar")
        async with several_gateway(store, *nodes) as remote:
            assert await remote.get_or_open(ada).list() == []
            begun, _ = await remote.get_or_open(ada).execute("sleep 500", wait=0.1, limit=10)
            nodes[0].process.send_signal(signal.SIGSTOP)
            try:
                began = time.monotonic()
                call = asyncio.ensure_future(remote.get_or_open(ada).execute("echo", wait=BOUND, limit=10))
                assert await measure(remote, bob) < WITHIN / 2
                with pytest.raises(ToolError, match=r"attic/node\.sock can't be reached: .*nothing was run elsewhere"):
                    await call
                assert time.monotonic() - began < WITHIN
                await until(lambda: remote.links[0].is_away)
                began = time.monotonic()
                assert await where(remote, fake_principal()) == "cellar"  # of those that answer
                assert time.monotonic() - began < WITHIN
                with pytest.raises(ToolError, match="can't be reached: nothing was done"):
                    await remote.get_or_open(ada).conclude(begun, limit=10)
            finally:
                nodes[0].process.send_signal(signal.SIGCONT)
            await until(lambda: not remote.links[0].is_away)
            assert await where(remote, ada) == "attic"
            async with asyncio.timeout(BOUND):  # nothing runs that nobody can list
                while begun not in [task.id for task in await remote.get_or_open(ada).list()]:
                    await remote.get_or_open(ada).arrival()
            assert (await remote.get_or_open(ada).run(begun)).status == "running"
            await remote.get_or_open(ada).kill(begun)
            assert (await remote.get_or_open(ada).execute("echo", wait=BOUND, limit=10))[1].excerpt.text == "\n"

    with database(tmp_path) as store:
        asyncio.run(body(store))


async def start(store: Store, folder: Path, *addresses: object) -> Workspaces:
    """Return the workspaces of a server with these nodes."""
    options = {"http": "true", "state": str(folder), "node": [str(address) for address in addresses]}
    config = load(options, {"HOME": str(folder)})
    check_options(config)
    host, features = build_host(config)
    host.store.take(lambda _: store)
    for feature in features:
        await feature.connect(host)
    return host.workspaces()


def test_nodes_that_can_not_be_used_together_are_refused_with_their_addresses(
    nodes: list[NodeProcess], tmp_path: Path
) -> None:
    one, nobody = nodes[0].address, f"unix:{tmp_path}/nobody"
    (tmp_path / "again").symlink_to(nodes[0].socket)
    with database(tmp_path) as store:
        with pytest.raises(UsageError, match=f"^--node {one} is given twice"):
            asyncio.run(start(store, tmp_path, one, nodes[1].address, one))
        with pytest.raises(UsageError, match=rf"at unix:{tmp_path}/again and at {one} are both called attic"):
            asyncio.run(start(store, tmp_path, one, f"unix:{tmp_path}/again"))
        with pytest.raises(UsageError, match=rf"at {nobody} \(.*\) nor at {nobody}2 \(.*: start one with"):
            asyncio.run(start(store, tmp_path, nobody, f"{nobody}2"))
        remote = asyncio.run(start(store, tmp_path, nobody, one))
        assert isinstance(remote, RemoteWorkspaces) and [at.name for at in remote.links] == ["", "attic"]


def test_a_node_that_was_away_at_the_start_is_used_once_it_answers(nodes: list[NodeProcess], tmp_path: Path) -> None:
    later = tmp_path / "later"

    async def body(store: Store) -> None:
        person = fake_principal()
        await place_at(store, person, "attic")
        remote = await start(store, tmp_path, f"unix:{later}", nodes[1].address)
        assert isinstance(remote, RemoteWorkspaces)
        jobs = [asyncio.ensure_future(job()) for job in remote.list_jobs()]
        try:
            with pytest.raises(ToolError, match="on the node attic, which does not answer: nothing was done"):
                await where(remote, person)
            later.symlink_to(nodes[0].socket)
            await until(lambda: remote.links[0].name == "attic")
            assert await where(remote, person) == "attic"
            later.unlink()
        finally:
            for job in jobs:
                job.cancel()
            await remote.close()

    with database(tmp_path) as store:
        asyncio.run(body(store))


def test_a_name_is_kept_whatever_the_host_is_called_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "_build.host 7")
    assert find_or_choose_name(tmp_path, None) == "build.host-7"
    monkeypatch.setattr("socket.gethostname", lambda: "other")
    assert [find_or_choose_name(tmp_path, given) for given in (None, "build.host-7")] == ["build.host-7"] * 2
    with pytest.raises(ValueError, match=r"^this node is called build\.host-7"):
        find_or_choose_name(tmp_path, "other")
    (tmp_path / NAME_FILE).write_text("../etc\n")
    with pytest.raises(ValueError, match="holds no name"):
        find_or_choose_name(tmp_path, None)


class AnsweringLink(link.NodeLink):
    """Stands in for a node that answers each request at once, with nothing."""

    async def request(
        self, principal: str, name: str, arguments: dict[str, Any], *, is_call: bool = True
    ) -> NodeAnswer:
        return NodeAnswer(1, msgspec.Raw(b"null"))


def test_people_who_are_idle_take_no_memory_of_the_gateway(tmp_path: Path) -> None:
    async def meet(remote: RemoteWorkspaces, number: int) -> None:
        for _ in range(number):
            person = fake_principal()
            await remote.prepare(person, lambda _, text: None)
            remote.get_or_open(person)
            await asyncio.sleep(0)
        await until(lambda: len(asyncio.all_tasks()) == 1)

    async def body(store: Store) -> None:
        links = [AnsweringLink(NodeAddress(tmp_path / "node.sock"), Welcome(1, "0", "epoch", "none", "", "/", None))]
        remote = RemoteWorkspaces(OneNode(store, links), FileChanges(), lambda _, run: None, list_nobody)
        await meet(remote, 1_500)  # more than are held
        gc.collect()
        before = sys.getallocatedblocks()
        await meet(remote, 6_000)
        gc.collect()
        assert sys.getallocatedblocks() - before < 5_000  # less than one for each
        await remote.close()

    with database(tmp_path) as store:
        asyncio.run(body(store))


def test_who_is_gone_is_asked_again_after_a_state_that_can_not_be_read(
    nodes: list[NodeProcess], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[None] = []

    async def list_gone() -> set[str]:
        asked.append(None)
        if len(asked) == 1:
            raise StateError("the state database does not answer in time")
        return set()

    async def body(store: Store) -> None:
        placement = Placement(store, greet_nodes(nodes[0]))
        remote = RemoteWorkspaces(placement, FileChanges(), lambda _, run: None, list_gone, report_every=0.01)
        jobs = [asyncio.ensure_future(job()) for job in remote.list_jobs()]
        try:
            await until(lambda: len(asked) > 2)
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.wait(jobs)
            await remote.close()

    with database(tmp_path) as store:
        asyncio.run(body(store))
    assert [line for line in caplog.messages if line.startswith("who is gone is not reported")]
