"""Verify the audit log in the state database: each chain, and what chains say of each other.

A chain's row is sealed, so a line that is changed, removed or cut off is found by the chain alone. An older copy of its
row and lines, or no chain at all, is found by a line of another chain that vouches for what is missing.
"""

from collections.abc import Callable, Iterator
from typing import Any

from toolgate.server.features.telemetry.audit.chain_checker import AuditVerdict, ChainChecker, format_span
from toolgate.server.state import tables
from toolgate.server.state.audit import chains
from toolgate.server.state.audit.chains import AuditChain, ChainPoint
from toolgate.server.state.audit.entry import AuditLink, ChainKey, DamagedLineError, parse_entry, parse_line

PROGRESS_EVERY = 1_000  # lines between two reports of progress
NEWEST = 500  # lines of the newest that a quick check reads
BATCH = 500  # rows in memory at a time

Vouch = tuple[int, str, str]  # seq and hash of a line, and the line that vouches for it


def verify(
    connection: "tables.Connection", key: ChainKey, on_progress: Callable[[int, int], None] = lambda _done, _of: None
) -> AuditVerdict:
    """Check all chains as they are at one moment. `on_progress` gets the lines read so far, and the lines of all."""
    verifier = ChainVerifier(connection, key, on_progress)
    for id, rows in verifier.split_lines():
        verifier.check_chain(id, rows)
    verifier.check_vouches()
    return verifier.verdict


def verify_newest(connection: "tables.Connection", key: ChainKey) -> AuditVerdict:
    """Check each chain's row and newest line, and the newest lines of all."""
    verifier = ChainVerifier(connection, key)
    verifier.check_heads()
    for row in chains.read_page(connection, before=chains.LAST, most=NEWEST):
        checker = ChainChecker(verifier.verdict, key)
        verifier.check_row(checker, row)
        checker.report_damaged()
    return verifier.verdict


class ChainVerifier:
    """Collects what it finds in `verdict`."""

    def __init__(
        self,
        connection: "tables.Connection",
        key: ChainKey,
        on_progress: Callable[[int, int], None] = lambda _done, _of: None,
    ) -> None:
        self.verdict = AuditVerdict()
        self._connection = connection
        self._key = key
        self._on_progress = on_progress
        found, damaged = chains.read_chains(connection, key)
        self.chains: dict[str, AuditChain] = {chain.id: chain for chain in found}
        self._damaged = set(damaged)
        for id in damaged:
            self.verdict.add_fault(f"chain {_show(id)}", "its row was changed, or was written under another key")
        self._empty = set(self.chains)  # of which no line was read
        self._vouches: dict[str, Vouch] = {}  # the newest for each chain
        self._all = sum(chain.head.seq - chain.floor.seq for chain in found)
        self._read = 0

    def split_lines(self) -> Iterator[tuple[str, Iterator[Any]]]:
        """Yield each chain with lines, and its lines."""
        table = tables.audit_line
        statement = table.select().order_by(table.c.chain, table.c.seq)
        result = self._connection.execute(statement, execution_options={"stream_results": True, "yield_per": BATCH})
        rows = iter(result)
        row = next(rows, None)
        while row is not None:
            first, row = row, None

            def same_chain(first: Any = first) -> Iterator[Any]:
                nonlocal row
                yield first
                for following in rows:
                    if following.chain != first.chain:
                        row = following
                        return
                    yield following

            yield first.chain, same_chain()

    def check_chain(self, id: str, rows: Iterator[Any]) -> None:
        """Check the lines of a chain from its floor to its head. All rows are read."""
        self.verdict.chains += 1
        self._empty.discard(id)
        chain = self.chains.get(id)
        place = f"chain {_show(id)}"
        if chain is None and id not in self._damaged:
            self.verdict.add_fault(place, "its row is missing: whether lines are missing at its ends is not known")
        floor = None if chain is None else AuditLink(chain.floor.seq, "", "", chain.floor.hash)
        checker = ChainChecker(self.verdict, self._key, floor)
        for row in rows:
            link = self.check_row(checker, row)
            if link is not None and link.event == "begins" and link.about.get("chain") != id:
                self.verdict.add_fault(f"{place}:{row.seq}", "the line is of another chain")
        checker.report_damaged()
        if chain is not None:
            self._check_end(place, checker.newest, chain.head)

    def check_row(self, checker: ChainChecker, row: Any) -> AuditLink | None:
        """Check a line, and that it is found by what it says."""
        place = f"chain {_show(row.chain)}:{row.seq}"
        self._read += 1
        if self._read % PROGRESS_EVERY == 0:
            self._on_progress(self._read, max(self._all, self._read))
        link = checker.check_line(place, row.line)
        if link is None:
            return None
        entry = parse_entry(row.line, self._key)
        principal = None if entry is None else entry["principal"]
        if (link.seq, link.time, principal) != (row.seq, row.time, row.principal):
            self.verdict.add_fault(place, "the number, time or principal beside the line was changed")
        if link.event == "vouches":
            self._note_vouches(place, link)
        verdict = self.verdict
        if verdict.first is None or link.time < verdict.first.time:
            verdict.first = link
        if verdict.newest is None or link.time >= verdict.newest.time:
            verdict.newest = link
        return link

    def check_heads(self) -> None:
        """Check that each chain has its newest line."""
        for chain in self.chains.values():
            place = f"chain {chain.id}"
            newest = self._read_link(chain.id, chain.head.seq)
            if chain.head.seq > chain.floor.seq and (newest is None or newest.hash != chain.head.hash):
                self.verdict.add_fault(f"{place}:{chain.head.seq}", "its newest line is missing or was changed")

    def check_vouches(self) -> None:
        """Check that there is what other chains vouch for, and that chains without lines had theirs removed."""
        for id in sorted(self._empty):
            empty = self.chains[id]
            floor = AuditLink(empty.floor.seq, "", "", empty.floor.hash)
            self._check_end(f"chain {id}", floor, empty.head)
        for id, (seq, hash, voucher) in sorted(self._vouches.items()):
            chain = self.chains.get(id)
            if chain is None:
                if id not in self._damaged:
                    text = f"the chain is missing: {voucher} vouches for its line {seq}"
                    self.verdict.add_fault(f"chain {id}", text)
            elif seq > chain.head.seq:
                missing = format_span(chain.head.seq + 1, seq)
                text = f"{missing} missing at the end: cut off, as {voucher} shows"
                self.verdict.add_fault(f"chain {id}", text)
            elif seq > chain.floor.seq:
                link = self._read_link(id, seq)
                if link is not None and link.hash != hash:
                    self.verdict.add_fault(f"chain {id}:{seq}", f"it is not the line that {voucher} vouches for")

    def _check_end(self, place: str, newest: AuditLink | None, head: ChainPoint) -> None:
        seq, hash = (0, "") if newest is None else (newest.seq, newest.hash)
        if seq < head.seq:
            self.verdict.add_fault(place, f"{format_span(seq + 1, head.seq)} missing at the end: cut off")
        elif (seq, hash) != (head.seq, head.hash):
            self.verdict.add_fault(place, f"its row is of another line {head.seq}")

    def _note_vouches(self, place: str, link: AuditLink) -> None:
        for id, (seq, hash) in link.about["chains"].items():
            if id not in self._vouches or seq > self._vouches[id][0]:
                self._vouches[id] = (seq, hash, place)

    def _read_link(self, id: str, seq: int) -> AuditLink | None:
        table = tables.audit_line
        statement = tables.select(table.c.line).where(table.c.chain == id, table.c.seq == seq)
        line = self._connection.execute(statement).scalar()
        try:
            return None if line is None else parse_line(line, self._key)
        except DamagedLineError:
            return None


def _show(id: str) -> str:
    """Return a chain's id for people: a row may have any text."""
    return id if id.isascii() and id.isalnum() and len(id) <= 32 else ascii(id)[:40]
