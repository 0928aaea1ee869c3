"""A person's workspace moves from one node to another, whenever the move or a node ends, and nothing is lost."""

import asyncio
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.clients.raw_client import ROOT
from tests.server.features.nodes.nodes import NodeProcess, fake_principal
from tests.server.features.nodes.several_nodes import database, greet_nodes, place_at, several_gateway
from tests.servers import forked_command
from tests.tools.shell_commands import BOUND, until
from toolgate.server.cli import main as cli
from toolgate.server.features.nodes import rows as node_rows
from toolgate.server.features.nodes.gateway import remote_methods
from toolgate.server.features.nodes.gateway.carry import FinishedMove, MoveError, move_workspace
from toolgate.server.features.nodes.gateway.link import NodeLink
from toolgate.server.state.store import Store
from toolgate.server.workspaces.folders import PrincipalFolders, WorkspaceInUseError
from toolgate.tools.api.errors import ToolError


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [forked_command.COMMAND, "node", *words, "--state", str(folder / "gateway")]
    return forked_command.run(command, "", cwd=ROOT, env={"PATH": os.environ["PATH"]})


def files_of(node: NodeProcess, person: str) -> list[str]:
    """Return the names of the person's files at the node."""
    folder = node.state / "workspaces" / person
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


async def carry_with(store: Store, nodes: list[NodeProcess], person: str, target: int) -> FinishedMove:
    links = greet_nodes(*nodes)
    try:
        return await move_workspace(store, links, person, links[target])
    finally:
        await asyncio.gather(*(each.close() for each in links))


def test_a_person_moves_with_all_files_and_works_on_there(nodes: list[NodeProcess], tmp_path: Path) -> None:
    person = fake_principal()

    async def prepare(store: Store) -> None:
        await place_at(store, person, "attic")
        async with several_gateway(store, *nodes) as remote:
            mine = remote.get_or_open(person)
            wait, limit = BOUND, 200
            await mine.execute("mkdir -p a/b; echo kept > a/b/file; ln -s a link; mkfifo pipe", wait=wait, limit=limit)
            task = await mine.start("sleep 500", background=True)
            done = command(tmp_path, "move", person, "cellar", *addresses)
            assert (done.returncode, done.stdout) == (1, "")
            assert f"{person} stays where it is: the node attic does not give it away: 1 of its commands" in done.stderr
            await mine.kill(task)
            done = command(tmp_path, "move", person, "cellar", *addresses)
            assert done.returncode == 0, done.stderr
            assert f"moved: {person} from attic to cellar, " in done.stdout
            moved = rf"moved to the node cellar, where it is {nodes[1].state}.*call again"
            with pytest.raises(ToolError, match=moved):
                await mine.stat_path(f"{mine.root}/link")
            assert (await mine.execute("cat link/b/file; pwd", wait=wait, limit=limit))[1].excerpt.text == (
                f"kept\n{nodes[1].state}/workspaces/{person}\n"
            )
            told = list[str]()
            await remote.prepare(person, lambda _, text: told.append(text))
            await until(lambda: bool(told))
            assert told[0].startswith("your workspace was moved to another machine by the operator; its files are")
        assert (files_of(nodes[0], person), len(files_of(nodes[1], person))) == ([], 5)
        listed = command(tmp_path, "list", *addresses).stdout.splitlines()
        assert [line.split() for line in listed] == [
            ["NAME", "ADDRESS", "REACHABLE", "VERSION", "LEVEL", "PEOPLE", "RUNNING", "DRAINING"],
            ["attic", str(nodes[0].address), "yes", "0.1.0", "none", "0", "0", "no"],
            ["cellar", str(nodes[1].address), "yes", "0.1.0", "none", "1", "0", "no"],
        ]

    addresses = [word for node in nodes for word in ("--node", str(node.address))]
    with database(tmp_path) as store:
        asyncio.run(prepare(store))


class CutError(BaseException):
    """Stands in for the end of the command, at once."""


STEPS = (
    *("begin_move", "open_arrival", "read_packed", "add_piece", "unpack_arrival", "commit_move", "settle"),
    "remove_copy",
)


@pytest.mark.parametrize(("step", "after"), [*((step, False) for step in STEPS[1:]), ("commit_move", True)])
def test_a_move_that_ends_anywhere_loses_nothing_and_is_finished_by_the_next(
    nodes: list[NodeProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    person = fake_principal()
    is_cut = False
    request = remote_methods.request

    async def cut(link: NodeLink, principal: str, name: str, *words: object, **keywords: object) -> object:
        nonlocal is_cut
        if is_cut:
            raise CutError
        if name == f"node.{step}":
            is_cut = True
            if after:
                await request(link, principal, name, *words, **keywords)
            raise CutError
        return await request(link, principal, name, *words, **keywords)

    async def body(store: Store) -> None:
        await place_at(store, person, "attic")
        async with several_gateway(store, *nodes) as remote:
            await remote.get_or_open(person).execute("echo kept > file", wait=BOUND, limit=200)
            with monkeypatch.context() as patch, pytest.raises(CutError):
                patch.setattr(remote_methods, "request", cut)
                await carry_with(store, nodes, person, 1)
            if after:  # what the node has marked holds after its end
                nodes[0].kill()
                await asyncio.to_thread(nodes[0].start)
                await until(lambda: not remote.links[0].is_away)
                with pytest.raises(ToolError, match="is being moved to another node: nothing was done"):
                    await remote.get_or_open(person).list()
            name = await store.transact(partial(node_rows.find_placement, principal=person))
            assert files_of(nodes[("attic", "cellar").index(name or "")], person) == ["file"]
            async with asyncio.timeout(BOUND):
                while True:
                    try:
                        await carry_with(store, nodes, person, 1)
                        break
                    except MoveError as error:  # until the node knows that the first mover is gone
                        assert "another move of that workspace is under way" in str(error)
                        await asyncio.sleep(0.2)
            answer = await remote.get_or_open(person).execute("cat file", wait=BOUND, limit=200)
            assert answer[1].excerpt.text == "kept\n"
        assert (files_of(nodes[0], person), files_of(nodes[1], person)) == ([], ["file"])
        assert not [path for node in nodes for path in (node.state / "moves").glob(f"{person}*.tar.gz*")]

    with database(tmp_path) as store:
        asyncio.run(body(store))


def test_what_can_not_be_done_is_a_sentence(
    nodes: list[NodeProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger, person, elsewhere = fake_principal(), fake_principal(), fake_principal()
    folder = nodes[1].state / "workspaces" / person
    folder.mkdir()
    (folder / "file").write_text("by no move")
    addresses = [word for node in nodes for word in ("--node", str(node.address))]

    def said(*words: str, given: list[str] = addresses) -> tuple[int, str]:
        code = cli.run(["node", *words, "--state", str(tmp_path / "gateway"), *given])
        output = capsys.readouterr()
        return code, (output.out + output.err).strip()

    assert said("list", given=[]) == (
        1,
        "toolgate: no node is known here: give the address of each node with --node, as to the server",
    )
    with database(tmp_path) as store:
        asyncio.run(place_at(store, person, "attic"))
        asyncio.run(place_at(store, elsewhere, "lighthouse"))
    assert said("drain", "attics") == (
        2,
        "toolgate: there is no node 'attics': nodes are attic, cellar, lighthouse",
    )
    assert said("drain", "attic") == (
        0,
        "the node attic gets no new people; 1 are on it: toolgate node move takes one to another",
    )
    listed = said("list", given=["--node", f"unix:{tmp_path}/nobody"])[1].splitlines()[1:]
    assert [line.split() for line in listed] == [
        ["?", f"unix:{tmp_path}/nobody", "no", "-", "-", "0", "-", "no"],
        ["attic", str(nodes[0].address), "yes", "0.1.0", "none", "1", "0", "yes"],
        ["lighthouse", "?", "no", "-", "-", "1", "-", "no"],
    ]
    assert said("drain", "lighthouse")[0] == 0  # which no server has reached
    listed = said("list")[1].splitlines()
    assert listed[-1].split() == ["lighthouse", "?", "no", "-", "-", "1", "-", "yes"]
    assert said("drain", "attic", "--undo") == (0, "the node attic gets new people again")
    assert said("move", stranger, "attic") == (
        1,
        f"toolgate: {stranger} is on no node yet: its first call chooses one",
    )
    assert said("move", "ada", "attic") == (1, "toolgate: there is no person 'ada': see toolgate workspace list")
    assert said("move", "local", "attic") == (1, "toolgate: local is on no node yet: its first call chooses one")
    with database(tmp_path) as store:
        asyncio.run(place_at(store, "local", "attic"))
    reason = "a workspace without sign-in belongs to its node"
    refused = f"toolgate: local stays where it is: the node attic does not give it away: {reason}"
    assert said("move", "local", "cellar") == (1, refused)
    assert said("move", person, "lighthouse") == (
        1,
        "toolgate: the node lighthouse does not answer: nothing was moved",
    )
    assert said("move", elsewhere, "attic") == (
        1,
        f"toolgate: {elsewhere} is on the node lighthouse, which does not answer: nothing was done",
    )
    assert said("move", person, "cellar") == (
        1,
        f"toolgate: {person} stays where it is: the node cellar does not take it: that node has files of theirs that "
        "came by no move: archive them there first",
    )
    assert said("move", person, "attic") == (0, f"{person} is on the node attic")
    assert files_of(nodes[1], person) == ["file"]


def test_packing_ends_soon_after_the_gateway_is_gone(nodes: list[NodeProcess], tmp_path: Path) -> None:
    person = fake_principal()
    attic = nodes[0].state

    def is_packing() -> bool:
        return any(archive.stat().st_size for archive in attic.glob(f"moves/{person}-*"))

    def is_locked() -> bool:
        try:
            with PrincipalFolders(attic).hold_lock():
                return False
        except WorkspaceInUseError:
            return True

    async def body() -> None:
        folder = attic / "workspaces" / person
        folder.mkdir()
        (folder / "large").write_bytes(os.urandom(2**20) * 160)  # packed in five seconds
        link = greet_nodes(nodes[0])[0]
        move = asyncio.ensure_future(remote_methods.request(link, person, "node.begin_move"))
        await until(is_packing)
        assert is_locked()
        await link.close()
        await asyncio.gather(move, return_exceptions=True)
        async with asyncio.timeout(4.0):  # packing goes on for longer
            await until(lambda: not is_locked())
        assert not list(attic.glob(f"moves/{person}-*")) and files_of(nodes[0], person) == ["large"]
        (folder / "large").unlink()

    asyncio.run(body())
