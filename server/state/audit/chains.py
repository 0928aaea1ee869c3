"""Store the audit log in the state database: a chain of lines for each process that writes it.

    audit_line      the lines, as in the files, with their time and principal, by which they are found
    audit_chain     of each chain: its newest line (`head`), the last line that retention removed (`floor`), and the
                    newest line that another chain vouches for

What a row of `audit_chain` says is sealed under the key of the lines, so a writer of the tables can't make one up.
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from toolgate.server.base.text import format_time
from toolgate.server.state import tables
from toolgate.server.state.audit.entry import (
    FIRST_PREV,
    AuditEntry,
    AuditNote,
    ChainKey,
    DamagedLineError,
    format_line,
    format_statement,
    parse_line,
    parse_statement,
)

KEY = "audit-chains"  # the name of the key
MAX_SIZE = 160 * 2**20  # bytes of all lines, as of the files: some 300,000 calls
MAX_CHAINS = 10_000  # with lines: each new chain reads all
PAGE = 500  # lines
MAX_DIGITS = 19  # of a number that was not checked yet
VOUCHES_A_LINE = 200  # of some 100 bytes each: a line has at most 32 KiB
REMEMBERED = 86_400.0  # seconds that a chain without lines is remembered longer than lines that may name it

WRITE = """
INSERT INTO audit_line (chain, seq, time, principal, line) VALUES (:chain, :seq, :time, :principal, :line)
ON CONFLICT (chain, seq) DO UPDATE
SET time = excluded.time, principal = excluded.principal, line = excluded.line
"""
APPEND = """
WITH moved AS (UPDATE audit_chain SET head = :new WHERE id = :chain AND head = :old RETURNING id)
INSERT INTO audit_line (chain, seq, time, principal, line)
SELECT moved.id, new.* FROM moved, unnest(
    CAST(:seqs AS BIGINT[]), CAST(:times AS VARCHAR[]), :principals, CAST(:lines AS BYTEA[])
) AS new
ON CONFLICT (chain, seq) DO UPDATE
SET time = excluded.time, principal = excluded.principal, line = excluded.line
RETURNING 1
"""  # one statement, of PostgreSQL: each takes the server a third of a millisecond

LAST = ("~", "", 0)  # after all lines: "~" follows all digits
log = logging.getLogger("toolgate.audit")

Cursor = tuple[str, str, int]  # time, chain and seq of a line
Newest = dict[str, list[Any]]  # seq and hash of the newest line, by chain


class ChainPoint(NamedTuple):
    """A line of a chain, and the bytes of the lines up to it."""

    seq: int = 0
    hash: str = FIRST_PREV
    size: int = 0


class AuditChain(NamedTuple):
    """A row of `audit_chain` whose seals are right. `floor_at` is when the floor was set, in seconds since the
    epoch; `vouched` is a seq."""

    id: str
    head: ChainPoint
    floor: ChainPoint
    floor_at: float
    vouched: int


class FormattedLines(NamedTuple):
    """Lines as rows, and what they end at."""

    rows: list[dict[str, Any]]
    end: ChainPoint


def create_id() -> str:
    return os.urandom(8).hex()


def format_lines(
    chain: str, entries: Sequence[AuditEntry | AuditNote], after: ChainPoint, key: ChainKey
) -> FormattedLines:
    """Return the entries as the lines that follow `after`."""
    seq, hash, size = after
    rows: list[dict[str, Any]] = []
    for entry in entries:
        seq += 1
        entry.seq, entry.prev = seq, hash
        line, hash = format_line(entry, key)
        size += len(line) - 1
        principal = entry.principal if isinstance(entry, AuditEntry) else None
        rows.append({"chain": chain, "seq": seq, "time": entry.time, "principal": principal, "line": line[:-1]})
    return FormattedLines(rows, ChainPoint(seq, hash, size))


def parse_chain(row: Any, key: ChainKey) -> AuditChain:
    """Return what a row says. Raises DamagedLineError."""
    seq, hash, size = parse_statement("head", row.id, row.head, 3, key)
    floor, floor_at, vouched = ChainPoint(), 0.0, 0
    if row.floor is not None:
        floor_seq, floor_hash, floor_size, at = parse_statement("floor", row.id, row.floor, 4, key)
        floor, floor_at = ChainPoint(int(floor_seq), floor_hash, int(floor_size)), float(at)
    if row.vouched is not None:
        vouched = int(parse_statement("vouched", row.id, row.vouched, 1, key)[0])
    return AuditChain(row.id, ChainPoint(int(seq), hash, int(size)), floor, floor_at, vouched)


def read_chains(connection: "tables.Connection", key: ChainKey) -> tuple[list[AuditChain], list[str]]:
    """Return all chains, and the ids of those whose rows are damaged."""
    chains: list[AuditChain] = []
    damaged: list[str] = []
    for row in connection.execute(tables.audit_chain.select()):
        try:
            chains.append(parse_chain(row, key))
        except DamagedLineError:
            damaged.append(row.id)
    return chains, damaged


def find_unvouched(chains: Iterable[AuditChain]) -> Newest:
    """Return the newest lines that no other chain vouches for."""
    return {chain.id: [chain.head.seq, chain.head.hash] for chain in chains if chain.head.seq > chain.vouched}


def note_vouches(newest: Newest, time: str) -> list[AuditNote]:
    """Return the notes that vouch for these lines."""
    names = sorted(newest)
    parts = [names[start : start + VOUCHES_A_LINE] for start in range(0, len(names), VOUCHES_A_LINE)]
    return [AuditNote(0, time, "vouches", {"chains": {name: newest[name] for name in part}}) for part in parts]


def begin_chain(connection: "tables.Connection", id: str, begins: AuditNote, lost: Newest, key: ChainKey) -> ChainPoint:
    """Begin a chain whose first lines vouch for all others, and for those that are `lost`. Return what it ends at.
    It needs "audit" alone."""
    newest = find_unvouched(read_chains(connection, key)[0])
    lines = format_lines(id, [begins, *note_vouches(newest | lost, begins.time)], ChainPoint(), key)
    head = format_statement("head", id, lines.end, key)
    connection.execute(tables.audit_chain.insert().values(id=id, head=head))
    write_lines(connection, lines)
    mark_vouched(connection, newest, key)
    return lines.end


def append_lines(
    connection: "tables.Connection", id: str, before: ChainPoint, lines: FormattedLines, key: ChainKey
) -> bool:
    """Append lines to the chain that ends at `before`, unless they are its newest: a transaction that seemed to fail
    may have written them. Return False for a chain that ends elsewhere: nothing is written then."""
    old, new = (format_statement("head", id, point, key) for point in (before, lines.end))
    columns = {f"{name}s": [row[name] for row in lines.rows] for name in ("seq", "time", "principal", "line")}
    if connection.execute(_make_append(), {"chain": id, "old": old, "new": new, **columns}).first() is None:
        table = tables.audit_chain
        return connection.execute(tables.select(table.c.head).where(table.c.id == id)).scalar() == new
    return True


@cache
def _make_append() -> Any:
    """Return a statement that is made once: SQLAlchemy takes longer to make it than the database to carry it out."""
    return tables.text(APPEND).bindparams(tables.bindparam("principals", type_=tables.AnyTexts))


def write_lines(connection: "tables.Connection", lines: FormattedLines) -> None:
    """Write lines in place of what is there: another's line would keep out that of the chain."""
    statement = tables.text(WRITE).bindparams(tables.bindparam("principal", type_=tables.AnyText))
    connection.execute(statement, lines.rows)


def mark_vouched(connection: "tables.Connection", newest: Newest, key: ChainKey) -> None:
    """Note that a line of another chain names these lines. It needs "audit" alone."""
    table = tables.audit_chain
    for id, (seq, _) in newest.items():
        sealed = format_statement("vouched", id, [seq], key)
        connection.execute(table.update().where(table.c.id == id).values(vouched=sealed))


def read_page(
    connection: "tables.Connection",
    *,
    after: Cursor | None = None,
    before: Cursor | None = None,
    since: str | None = None,
    until: str | None = None,
    principal: str | None = None,
    most: int = PAGE,
) -> list[Any]:
    """Return lines by their time: the oldest first, or with `before` the newest first. They are not checked."""
    table = tables.audit_line
    place = tables.tuple_(table.c.time, table.c.chain, table.c.seq)
    order: list[Any] = [table.c.time, table.c.chain, table.c.seq]
    statement = table.select().limit(most)
    if after is not None:
        statement = statement.where(place > after)
    if before is not None:
        statement = statement.where(place < before)
        order = [column.desc() for column in order]
    if since is not None:
        statement = statement.where(table.c.time >= since)
    if until is not None:
        statement = statement.where(table.c.time <= until)
    if principal is not None:
        statement = statement.where(table.c.principal == principal)
    return list(connection.execute(statement.order_by(*order)))


def read_heads(connection: "tables.Connection") -> dict[str, int]:
    """Return the seq of the newest line of each chain, unchecked."""
    table = tables.audit_chain
    rows = connection.execute(tables.select(table.c.id, table.c.head))
    heads = {row.id: row.head.partition(" ")[0] for row in rows}
    return {id: int(seq) for id, seq in heads.items() if seq.isdecimal() and len(seq) < MAX_DIGITS}


def read_after(connection: "tables.Connection", seen: Mapping[str, int], most: int = PAGE) -> list[Any]:
    """Return lines of each chain that follow those that were seen."""
    table = tables.audit_line
    found: list[Any] = []
    for id, seq in read_heads(connection).items():
        if seq > seen.get(id, 0):
            new = table.select().where(table.c.chain == id, table.c.seq > seen.get(id, 0))
            found += connection.execute(new.order_by(table.c.seq).limit(most))
    return sorted(found, key=lambda row: (row.time, row.chain, row.seq))


def prune_lines(
    connection: "tables.Connection", key: ChainKey, now: float, max_size: int = MAX_SIZE, max_chains: int = MAX_CHAINS
) -> bool:
    """Remove a page of the oldest lines if all are more than the limit. Return whether there is more to remove.

    It needs "audit" alone. A line is removed only if it is the chain's next and as it was written: who changes the
    tables can't have the server remove a line before its time.
    """
    chains = {chain.id: chain for chain in read_chains(connection, key)[0]}
    size = sum(chain.head.size - chain.floor.size for chain in chains.values())
    count = sum(chain.head.seq > chain.floor.seq for chain in chains.values())
    if size <= max_size and count <= max_chains:
        return False
    floors: dict[str, ChainPoint] = {}
    stopped: set[str] = set()
    for row in read_page(connection):
        chain = chains.get(row.chain)
        if chain is None or row.chain in stopped:
            continue
        if size <= max_size and count <= max_chains:
            break
        floor = floors.get(row.chain, chain.floor)
        following = _follow(row, floor, key)
        if following is None or following.seq > chain.head.seq:
            stopped.add(row.chain)
            continue
        floors[row.chain] = following
        size -= following.size - floor.size
        count -= following.seq == chain.head.seq
    if not floors:
        log.error("the oldest lines of the audit log were changed, and stay: see toolgate audit verify")
    _write_floors(connection, floors, key, now)
    _forget_chains(connection, chains.values(), now)
    return bool(floors) and (size > max_size or count > max_chains)


def _follow(row: Any, floor: ChainPoint, key: ChainKey) -> ChainPoint | None:
    """Return the line as the new floor, unless it is not the one that follows."""
    try:
        link = parse_line(row.line, key)
    except DamagedLineError:
        return None
    if (link.seq, link.prev, link.time, link.seq) != (floor.seq + 1, floor.hash, row.time, row.seq):
        return None
    return ChainPoint(link.seq, link.hash, floor.size + len(row.line))


def _write_floors(connection: "tables.Connection", floors: Mapping[str, ChainPoint], key: ChainKey, now: float) -> None:
    chain, line = tables.audit_chain, tables.audit_line
    for id, floor in floors.items():
        sealed = format_statement("floor", id, [*floor, round(now, 3)], key)
        connection.execute(chain.update().where(chain.c.id == id).values(floor=sealed))
        connection.execute(line.delete().where(line.c.chain == id, line.c.seq <= floor.seq))


def _forget_chains(connection: "tables.Connection", chains: Iterable[AuditChain], now: float) -> None:
    """Remove chains without lines, once no line is left that may name them."""
    oldest = connection.execute(tables.select(tables.func.min(tables.audit_line.c.time))).scalar()
    table = tables.audit_chain
    for chain in chains:
        is_empty = chain.floor.seq == chain.head.seq
        if is_empty and oldest is not None and format_time(chain.floor_at + REMEMBERED) < oldest:
            connection.execute(table.delete().where(table.c.id == chain.id))
