"""The audit log in PostgreSQL: tampering by SQL is found, and an outage or a killed server is not reported as such."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.server.features.telemetry.audit.test_log import entry
from tests.servers.postgres import Postgres
from toolgate.server.features.postgres import audit_log
from toolgate.server.features.postgres.audit_log import DatabaseLog
from toolgate.server.features.postgres.database.clock import DatabaseClock
from toolgate.server.features.postgres.database.store import PostgresStore
from toolgate.server.features.postgres.database_url import parse_database_url
from toolgate.server.features.telemetry.audit import chain_verifier
from toolgate.server.features.telemetry.audit.chain_checker import AuditVerdict
from toolgate.server.state import tables
from toolgate.server.state.audit import chains
from toolgate.server.state.audit.entry import ChainKey, parse_entry
from toolgate.server.state.keys.sealed_state import FixedKey

KEY = b"k" * 32
SIGNER = ChainKey(KEY)
Body = Callable[[PostgresStore], Awaitable[Any]]


@pytest.fixture(scope="module")
def url(postgres: Postgres) -> str:
    return postgres.create_database()


@pytest.fixture
def run(url: str) -> Iterator[Callable[[Body], Any]]:
    """Run `body(store)` on a database without lines."""

    def run(body: Body) -> Any:
        async def bounded() -> Any:
            store = opened(url)
            try:
                async with asyncio.timeout(30):
                    await execute(store, "TRUNCATE audit_chain, audit_line")
                    return await body(store)
            finally:
                await store.aclose()

        return asyncio.run(bounded())

    yield run


def opened(url: str, **options: Any) -> PostgresStore:
    return PostgresStore(Path("/nowhere"), parse_database_url(url), **options)


async def execute(store: PostgresStore, *statements: str) -> None:
    def work(connection: tables.Connection) -> None:
        for statement in statements:
            connection.exec_driver_sql(statement)

    await store.transact(work)


def log_in(store: PostgresStore, **options: Any) -> DatabaseLog:
    return DatabaseLog(store, FixedKey(KEY), **options)


async def write(log: DatabaseLog, *names: str) -> str:
    """Write entries a millisecond apart, and return the chain's id."""
    for name in names:
        log.add(entry(name))
        await asyncio.sleep(0.001)
    while log._has_lines():
        await asyncio.sleep(0.005)
    return log._chain


async def verify(store: PostgresStore, key: bytes = KEY) -> AuditVerdict:
    return await store.read(partial(chain_verifier.verify, key=ChainKey(key)))


async def find_faults(store: PostgresStore) -> list[str]:
    verdict = await verify(store)
    return [f"{finding.place}: {finding.text}" for finding in verdict.findings if not finding.is_harmless]


async def list_tools(store: PostgresStore) -> list[str]:
    rows = await store.read(partial(chains.read_page, most=100_000))
    entries = (parse_entry(row.line, SIGNER) for row in rows)
    return [found["tool"] for found in entries if found is not None]


async def head_of(store: PostgresStore, id: str) -> str:
    table = tables.audit_chain
    statement = tables.select(table.c.head).where(table.c.id == id)
    head: str = await store.read(lambda connection: connection.execute(statement).scalar_one())
    return head


LINE = "UPDATE audit_line SET {} WHERE chain = 'A' AND seq = 3"
COPY = "INSERT INTO audit_line SELECT chain, 7, time, principal, line FROM audit_line WHERE chain = 'A' AND seq = 6"
TURN = """UPDATE audit_line a SET line = (SELECT line FROM lines b WHERE b.chain = a.chain AND b.seq = 9 - a.seq)
    WHERE chain = 'A' AND seq IN (4, 5)"""
SET_BACK = """UPDATE audit_chain SET head = '{head}' WHERE id = 'A';
    DELETE FROM audit_line WHERE chain = 'A' AND seq > 5"""
OTHER = "CASE {} WHEN 'A' THEN 'B' WHEN 'B' THEN 'A' ELSE 'C' END"
SWAP_LINES = f"""DELETE FROM audit_line;
    INSERT INTO audit_line SELECT {OTHER.format("chain")}, seq, time, principal, line FROM lines"""
SWAP_ROWS = f"""DELETE FROM audit_chain;
    INSERT INTO audit_chain SELECT {OTHER.format("id")}, head, floor, vouched FROM rows"""
TAMPERING = {  # how → SQL, and what is found
    "edited": (LINE.format("line = set_byte(line, 90, 120)"), "A:3: the line was changed"),
    "forged": ("INSERT INTO audit_line VALUES ('A', 7, '2026', 'local', '{}')", "A:7: the line was changed"),
    "repeated": (COPY, "A:7: line 6 is out of order"),
    "removed": ("DELETE FROM audit_line WHERE chain = 'A' AND seq = 3", "A:4: line 3 is missing before it"),
    "cut off": ("DELETE FROM audit_line WHERE chain = 'A' AND seq > 4", "A: lines 5 to 6 are missing at the end"),
    "beginning": ("DELETE FROM audit_line WHERE chain = 'A' AND seq < 3", "A:3: lines 1 to 2 are missing"),
    "reordered": (TURN, "A:5: line 4 is out of order"),
    "hidden": (LINE.format("principal = 'another'"), "A:3: the number, time or principal beside the line was"),
    "put elsewhere": (LINE.format("chain = 'B', seq = 4"), "B:4: line 3 is out of order"),
    "lines gone": ("DELETE FROM audit_line WHERE chain = 'A'", "A: lines 1 to 6 are missing at the end"),
    "row gone": ("DELETE FROM audit_chain WHERE id = 'A'", "A: its row is missing"),
    "row changed": ("UPDATE audit_chain SET vouched = '9 ' || vouched WHERE id = 'A'", "A: its row was changed"),
    "floor made up": ("UPDATE audit_chain SET floor = '9 0 0 0 0' WHERE id = 'A'", "A: its row was changed"),
    "set back": (SET_BACK, "A: line 6 is missing at the end: cut off, as chain B:2 shows"),
    "gone": (
        "DELETE FROM audit_chain WHERE id = 'A'; DELETE FROM audit_line WHERE chain = 'A'",
        "A: the chain is missing: chain B:2 vouches for its line 6",
    ),
    "lines swapped": (SWAP_LINES, "A:1: the line is of another chain"),
    "swapped": (f"{SWAP_LINES}; {SWAP_ROWS}", "A: its row was changed"),
}


def test_tampering_by_sql_is_found_with_its_place(run: Callable[[Body], Any]) -> None:
    """Each attack on its own, on the lines of two servers of which one ended."""

    async def body(store: PostgresStore) -> None:
        first, second = log_in(store), log_in(store)
        names = {"A": await write(first, "a1", "a2", "a3", "a4")}
        older = await head_of(store, names["A"])
        await write(first, "a5")
        await first.aclose()
        names["B"] = await write(second, "b1")
        await second.aclose()
        third = log_in(store)
        names["C"] = await write(third, "c1")
        await third.aclose()
        assert (await find_faults(store), await list_tools(store)) == ([], ["a1", "a2", "a3", "a4", "a5", "b1", "c1"])
        await execute(store, "CREATE TABLE lines AS TABLE audit_line", "CREATE TABLE rows AS TABLE audit_chain")
        try:
            for how, (sql, expected) in TAMPERING.items():
                for name, id in names.items():
                    sql = sql.replace(f"'{name}'", f"'{id}'")
                await execute(store, *sql.replace("{head}", older).split(";"))
                found = await find_faults(store)
                for name, id in names.items():
                    found = [text.replace(id, name) for text in found]
                assert any(text.startswith(f"chain {expected}") for text in found), (how, found)
                await execute(store, "TRUNCATE audit_line, audit_chain")
                await execute(store, "INSERT INTO audit_line TABLE lines", "INSERT INTO audit_chain TABLE rows")
        finally:
            await execute(store, "DROP TABLE lines", "DROP TABLE rows")
        assert await find_faults(store) == []

    run(body)


def test_a_live_chain_vouches_for_the_others(run: Callable[[Body], Any]) -> None:
    """So an end that was cut off, with the row of the time before, is found before the next server starts."""

    async def body(store: PostgresStore) -> None:
        first, second = log_in(store, vouch_every=0.05), log_in(store)
        await write(first, "a1")
        id = await write(second, "b1")
        older = await head_of(store, id)
        await write(second, "b2")
        await second.aclose()

        async def is_vouched() -> bool:
            return id not in chains.find_unvouched((await store.read(partial(chains.read_chains, key=SIGNER)))[0])

        while not await is_vouched():
            await asyncio.sleep(0.02)
        await first.aclose()
        assert await find_faults(store) == []
        await execute(
            store,
            f"UPDATE audit_chain SET head = '{older}' WHERE id = '{id}'",
            f"DELETE FROM audit_line WHERE chain = '{id}' AND seq = 4",
        )
        (found,) = await find_faults(store)
        assert found.startswith(f"chain {id}: line 4 is missing at the end: cut off, as chain ")

    run(body)


def test_a_chain_that_was_removed_under_its_server_is_missed(run: Callable[[Body], Any]) -> None:
    async def body(store: PostgresStore) -> None:
        log = log_in(store)
        first = await write(log, "a", "b")
        await execute(store, "TRUNCATE audit_line, audit_chain")
        second = await write(log, "c")
        await log.aclose()
        assert await find_faults(store) == [
            f"chain {first}: the chain is missing: chain {second}:2 vouches for its line 3"
        ]
        assert await list_tools(store) == ["c"]

    run(body)


def test_lines_written_twice_after_a_lost_answer_are_there_once(run: Callable[[Body], Any]) -> None:
    async def body(store: PostgresStore) -> None:
        log = log_in(store)
        id = await write(log, "a")
        before = log._end
        lines = chains.format_lines(id, [entry("b"), entry("c")], before, SIGNER)
        for expected in (True, True):
            append = partial(chains.append_lines, id=id, before=before, lines=lines, key=SIGNER)
            assert await store.transact(append, alone=None) is expected
        other = chains.format_lines(id, [entry("d")], before, SIGNER)
        append = partial(chains.append_lines, id=id, before=before, lines=other, key=SIGNER)
        assert await store.transact(append, alone=None) is False
        assert sorted(await list_tools(store)) == ["a", "b", "c"] and await find_faults(store) == []
        await log.aclose()

    run(body)


def test_two_servers_write_at_once_by_the_clock_of_the_database(run: Callable[[Body], Any], url: str) -> None:
    async def body(store: PostgresStore) -> None:
        late = opened(url, clock=DatabaseClock(local=lambda: time.time() - 300))
        await late.prepare()
        logs = log_in(store), log_in(late)
        began = time.time()

        async def work(log: DatabaseLog, name: str) -> None:
            for number in range(250):
                log.add(entry(f"{name}{number}"))
                await asyncio.sleep(0)
            await log.aclose()

        await asyncio.gather(work(logs[0], "a"), work(logs[1], "b"))
        await late.aclose()
        assert (await verify(store)).findings == []
        for name in "ab":
            written = [tool for tool in await list_tools(store) if tool[0] == name]
            assert written == [f"{name}{number}" for number in range(250)]
        oldest = (await store.read(partial(chains.read_page, most=1)))[0].time
        assert abs(datetime.fromisoformat(oldest).timestamp() - began) < 60

    run(body)


def test_entries_wait_for_a_database_that_is_away_and_those_beyond_the_limit_are_counted(
    run: Callable[[Body], Any], postgres: Postgres
) -> None:
    async def body(store: PostgresStore) -> None:
        log = log_in(store, max_waiting=10)
        await write(log, "before")
        postgres.stop()
        for number in range(12):
            log.add(entry(f"t{number}"))
        await asyncio.sleep(audit_log.GATHER * 2)  # they are tried
        postgres.start()
        await write(log)
        await write(log, "after")
        await log.aclose()
        (finding,) = (await verify(store)).findings
        assert finding.is_harmless and "calls could not be recorded" in finding.text
        assert sorted(await list_tools(store)) == sorted(["before", *(f"t{number}" for number in range(10)), "after"])

    run(body)


def test_the_oldest_lines_of_all_chains_are_removed_and_none_before_its_time(run: Callable[[Body], Any]) -> None:
    async def body(store: PostgresStore) -> None:
        names = [f"t{number}" for number in range(60)]
        for start in range(0, 60, 20):
            log = log_in(store)
            await write(log, *names[start : start + 20])
            await log.aclose()
        prune = partial(chains.prune_lines, key=SIGNER, now=time.time(), max_size=15_000)
        # one made to look old is not removed, nor are those behind it
        last = "(SELECT chain FROM audit_line ORDER BY time DESC LIMIT 1)"
        await execute(store, f"UPDATE audit_line SET time = '2000' WHERE chain = {last} AND seq > 10")
        assert not await store.transact(prune, alone="audit")
        kept = await list_tools(store)
        assert sorted(kept) == sorted(names[-len(kept) :]) and 20 < len(kept) < 40
        assert {text.partition(": ")[2] for text in await find_faults(store)} == {
            "the number, time or principal beside the line was changed"
        }
        await execute(store, "UPDATE audit_line SET time = convert_from(line, 'UTF8')::json->>'time'")
        assert (await verify(store)).findings == []
        log = log_in(store, max_size=10_000)
        await write(log, "last")
        await log.aclose()
        assert (await verify(store)).findings == [] and (await list_tools(store))[-1] == "last"
        # the chains that have no lines are still remembered
        await execute(store, "DELETE FROM audit_chain WHERE floor IS NOT NULL")
        assert await find_faults(store)

    run(body)
