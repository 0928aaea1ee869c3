"""Writes that share a transaction, one of which fails."""

import asyncio
import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.server.state.each_store import ON_EACH, ON_SQLITE, with_store
from toolgate.server.base.errors import StateError
from toolgate.server.state import tables
from toolgate.server.state.batch import WriteBatch
from toolgate.server.state.rows.sessions import SessionRecords
from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from sqlalchemy import Connection

pytestmark = ON_EACH
HALF = "\ud800"  # of a surrogate pair: JSON may carry one, UTF-8 has no such character


def written(connection: "Connection") -> list[str]:
    of = tables.session
    return sorted(connection.execute(of.select().with_only_columns(of.c.id)).scalars())


def test_what_cant_be_written_of_one_session_keeps_no_other_out(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        processes = store.open_processes()
        records = SessionRecords(store, processes, "")
        await records.add("first", ("", "", ""), b"{}")
        told = await asyncio.gather(
            records.add("before", ("issuer", "ada", "client"), b"{}"),
            records.add("half", ("issuer", HALF, "client"), b"{}"),
            records.add("first", ("issuer", "again", "client"), b"{}"),  # a key that is taken
            records.add("after", ("issuer", "bob", "client"), b"{}"),
            return_exceptions=True,
        )
        assert [type(one) for one in told] == [type(None), StateError, StateError, type(None)]
        assert await store.transact(written) == ["after", "before", "first"]
        processes.close()

    with_store(tmp_path, body)


def test_half_a_write_is_taken_back_whole(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        batch, row = WriteBatch(store), {"issuer": "", "subject": "", "client": "", "details": b"", "process": ""}
        row |= {"began_at": 0.0, "seen_at": 0.0}

        def put(connection: "Connection", *ids: str) -> None:
            for id in ids:
                connection.execute(tables.session.insert(), {**row, "id": id})

        half = batch.add(lambda connection: put(connection, "one", HALF))
        whole = batch.add(lambda connection: put(connection, "two"))
        with pytest.raises(StateError):
            await half
        await whole
        assert await store.transact(written) == ["two"]

    with_store(tmp_path, body)


@ON_SQLITE
def test_a_transaction_ended_by_a_full_disk_fails_all_its_writes(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        batch = WriteBatch(store)

        def put(connection: "Connection") -> None:
            connection.exec_driver_sql("INSERT INTO session VALUES ('one', '', '', '', x'', '', 0, 0)")

        def ended(connection: "Connection") -> None:
            connection.exec_driver_sql("ROLLBACK")  # as SQLite does by itself
            raise OSError(errno.ENOSPC, "the disk is full")

        told = await asyncio.gather(*map(batch.add, (put, ended, put)), return_exceptions=True)
        assert all(isinstance(one, OSError) and one.errno == errno.ENOSPC for one in told), told
        assert await store.transact(written) == []

    with_store(tmp_path, body)
