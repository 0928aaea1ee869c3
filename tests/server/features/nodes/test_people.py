"""Who is gone at a node, where gateways may have different people, and what the node then does."""

import asyncio
import os
import sys
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.clients.raw_client import ROOT, eventually
from tests.server.features.nodes.nodes import NodeProcess, fake_principal, gateway, running_node
from tests.tools.shell_commands import BOUND, until
from toolgate.server.features.nodes.gateway import remote_methods
from toolgate.server.features.nodes.gateway.link import PATIENCE, NodeLink
from toolgate.server.features.nodes.node.databases import (
    DATABASE_ID,
    DATABASES_FILE,
    MAX_DATABASES,
    KnownDatabases,
    find_database_id,
    make_database_id,
)
from toolgate.server.features.nodes.node.people import MAX_PRINCIPALS, GatewayPeople, GonePrincipals
from toolgate.tools.api.errors import ToolError

OURS, THEIRS = "0a" * 16, "1b" * 16  # ids of databases


def gateways(*gone: Collection[str] | None) -> tuple[GonePrincipals, list[GatewayPeople]]:
    """Return gateways that have said that these are gone."""
    principals, made = GonePrincipals(), []
    for each in gone:
        people = GatewayPeople()
        people.gone = None if each is None else set(each)
        principals.add(people)
        made.append(people)
    return principals, made


def test_who_is_gone_is_unknown_until_a_gateway_says() -> None:
    assert not gateways()[0].is_known
    assert not gateways(None)[0].is_known
    assert gateways(None, ())[0].is_known


def test_a_gateway_that_does_not_know_a_person_has_no_say() -> None:
    assert set(gateways({"ada"}, {"bob"}, None)[0]) == {"ada", "bob"}


def test_a_person_whom_another_gateway_serves_is_not_gone() -> None:
    principals, (_, second) = gateways({"ada", "bob"}, ())
    second.note_call("ada")
    assert set(principals) == {"bob"} and "ada" not in principals
    second.gone = {"ada"}
    assert "ada" in principals


def test_a_person_who_calls_after_the_report_is_not_gone() -> None:
    principals, (first,) = gateways({"ada"})
    assert "ada" in principals
    first.note_call("ada")
    assert "ada" not in principals


def test_a_gateway_that_has_left_says_nothing_and_whom_it_served_stays() -> None:
    principals, (first, second) = gateways({"ada", "bob"}, {"eve"})
    second.note_call("ada")
    principals.remove(second)
    assert set(principals) == {"bob"}
    principals.remove(first)
    assert not principals.is_known and set(principals) == set()


def test_nobody_is_gone_at_a_node_that_gateways_of_two_databases_have_used(tmp_path: Path) -> None:
    file = tmp_path / "uses" / "databases"

    def report(*databases: str) -> GonePrincipals:
        """Return who is gone in a new life of the node, where gateways of these databases all say that Ada is."""
        principals = GonePrincipals(KnownDatabases(file))
        for each in databases:
            people = GatewayPeople(each)
            principals.add(people)
            people.gone = {"ada"}
        asyncio.run(principals.keep())
        return principals

    assert set(report(OURS)) == set(report(OURS, OURS)) == {"ada"}
    assert set(report(OURS, "")) == set()
    assert set(report(OURS)) == {"ada"}
    assert set(report(OURS, THEIRS)) == set()
    again = report(OURS)  # the other database's gateway may still serve Ada, and is away
    assert again.is_known and set(again) == set() and "ada" not in again
    file.unlink()
    assert set(report(OURS)) == {"ada"}


def test_a_node_remembers_a_bounded_number_of_databases(tmp_path: Path) -> None:
    databases = KnownDatabases(tmp_path / "databases")
    for number in range(MAX_DATABASES + 5):
        databases.note(f"{number:032x}")
    asyncio.run(databases.keep())
    kept = KnownDatabases(tmp_path / "databases")
    assert kept.ids == databases.ids == {f"{number:032x}" for number in range(MAX_DATABASES)}


def test_a_damaged_list_of_databases_is_refused(tmp_path: Path) -> None:
    (tmp_path / "databases").write_text(f"{OURS}\nada\n")
    with pytest.raises(ValueError, match="is damaged"):
        KnownDatabases(tmp_path / "databases")


def test_a_database_is_remembered_when_the_disk_can_be_written_again(tmp_path: Path) -> None:
    (tmp_path / "uses").write_text("in the way")
    databases = KnownDatabases(tmp_path / "uses" / "databases")
    databases.note(OURS)
    asyncio.run(databases.keep())
    (tmp_path / "uses").unlink()
    asyncio.run(databases.keep())
    assert KnownDatabases(tmp_path / "uses" / "databases").ids == {OURS}


def test_a_node_with_a_slow_disk_answers_the_first_gateway_of_a_database(tmp_path: Path) -> None:
    slowly = (sys.executable, str(ROOT / "tests" / "servers" / "slow_commits.py"), f"{PATIENCE + 0.5}")

    async def call(node: NodeProcess) -> None:
        async with gateway(node, database=OURS) as remote:
            assert await remote.get_or_open(fake_principal()).list() == []

    with running_node(tmp_path, enter=slowly) as node:
        asyncio.run(call(node))
        assert eventually(lambda: KnownDatabases(node.state / DATABASES_FILE).ids == {OURS})
        assert node.stop() == 0


def test_the_id_of_a_database_is_made_once(tmp_path: Path) -> None:
    assert find_database_id(tmp_path) == ""
    made = make_database_id(tmp_path)
    assert DATABASE_ID.fullmatch(made) and made == make_database_id(tmp_path) == find_database_id(tmp_path)


def test_a_gateway_is_known_to_serve_a_bounded_number_of_people() -> None:
    people = GatewayPeople()
    for number in range(MAX_PRINCIPALS + 5):
        assert people.note_call(f"u-{number}")
    assert len(people.served) == MAX_PRINCIPALS and not people.note_call("u-100")


def test_a_gone_persons_workspace_is_archived_and_an_idle_ones_is_said_at_their_return(tmp_path: Path) -> None:
    gone, idle, present = (fake_principal() for _ in range(3))

    def is_archived(node: NodeProcess, name: str) -> bool:
        return (node.state / "uses" / f"{name}.word").exists() and any((node.state / "archive").glob(f"{name}*"))

    async def fill(node: NodeProcess) -> None:
        async with gateway(node, database=OURS) as remote:
            for each in (gone, idle, present):
                await remote.get_or_open(each).execute("echo kept > file", wait=BOUND, limit=100)
                await remote.prepare(each, lambda _, __: None)
            await until(lambda: all((node.state / "uses" / each).exists() for each in (gone, idle, present)))

    async def come_back(node: NodeProcess) -> None:
        messages: list[tuple[str, str]] = []
        assert (node.state / "uses" / "databases").read_text() == f"{OURS}\n"
        async with gateway(node, database=OURS) as remote:
            assert node.stop() == 0
            starting = asyncio.create_task(asyncio.to_thread(node.start))
            await report(remote.links[0])  # before the node cleans, which it does 3 s after its start
            await starting
            await until(lambda: is_archived(node, gone) and is_archived(node, idle))
            await remote.prepare(idle, lambda *said: messages.append(said))
            await until(lambda: bool(messages))
            (said,) = messages
            assert said[0] == idle and said[1].startswith("your workspace was archived after 4 days without a call")
            _, conclusion = await remote.get_or_open(present).execute("cat file", wait=BOUND, limit=100)
            assert conclusion is not None and conclusion.excerpt.text == "kept\n"

    async def report(link: NodeLink) -> None:
        async with asyncio.timeout(BOUND):
            while True:
                try:
                    return await remote_methods.request(link, "local", "node.report_gone", [gone])
                except ToolError:
                    await asyncio.sleep(0.05)

    words = ("--sandbox", "none", "--idle-workspaces", "archive", "--idle-after", "3d", "--gone-after", "1h")
    with running_node(tmp_path, *words) as node:
        asyncio.run(fill(node))
        long_ago = time.time() - 4 * 86_400 - 60
        for name in (idle, f"{gone}.gone"):
            (node.state / "uses" / name).touch()
            os.utime(node.state / "uses" / name, (long_ago, long_ago))
        asyncio.run(come_back(node))
