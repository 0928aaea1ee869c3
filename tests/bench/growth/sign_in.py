"""Rows about sign-in and its records: people, and the audit log."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.bench.growth.measure import Row, Trial
from tests.server.auth.authorization_in_process import auth_server
from toolgate.server.features.telemetry.audit.log import AuditLog
from toolgate.server.features.telemetry.commands.audit_sources import AuditFiles
from toolgate.server.state import tables
from toolgate.server.state.audit.entry import AuditEntry

ENTRY = AuditEntry(0, "", "local", "tests", "", "Bash", None, "d" * 64, None, "allowed", "none", "ok", 0, 1.5, 10)


@contextmanager
def beside_people(folder: Path, size: int) -> Generator[Trial]:
    """Yield a trial that checks who may still sign in, of `size` people who have been here."""
    with asyncio.Runner() as runner:
        serving = auth_server(folder)
        server = runner.run(serving.__aenter__())
        row = {"issuer": "https://issuer.example", "name": "x", "seen_at": 0.0}
        rows = [{**row, "subject": f"s-{n}", "known_as": str(n)} for n in range(size)]
        runner.run(server.store.transact(lambda connection: connection.execute(tables.person.insert(), rows)))
        try:
            yield Trial(lambda: runner.run(server.authorization.revoke_barred_people()))
        finally:
            runner.run(serving.__aexit__(None, None, None))


@contextmanager
def beside_calls(folder: Path, size: int) -> Generator[Trial]:
    """Yield a trial that reads the newest call of an audit log with `size` lines."""

    async def write() -> None:
        log = AuditLog(folder / "audit", folder / "keys" / "audit")
        for _ in range(size):
            log.add(msgspec.structs.replace(ENTRY))
        log.close()

    asyncio.run(write())
    files = AuditFiles(folder)
    yield Trial(lambda: files.newest(lambda lines: ({"line": line} for line in lines), 1, None, None))


ROWS = (
    Row("check who may still sign in, of n people", 400, beside_people),
    Row("read the newest call of n in the audit log", 1_000, beside_calls),
)
