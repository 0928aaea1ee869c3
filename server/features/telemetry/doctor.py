"""Check the newest part of the record of calls. `audit verify` reads all of it, up to 160 MiB."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import describe_os_error
from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckSkippedError, DoctorPart
from toolgate.server.cli.doctor.state import RESTORE_KEYS
from toolgate.server.config.load import Config
from toolgate.server.state.keys import file as key_file

if TYPE_CHECKING:
    from toolgate.server.features.telemetry.audit.chain_checker import AuditVerdict

NO_RECORD = "nothing is on record"


def list_checks(config: Config) -> DoctorPart:
    """Return the check of the audit log."""
    return DoctorPart([("audit", partial(audit, config), ())], after="signing key")


async def audit(config: Config) -> CheckFinding:
    """Check the newest rows where PostgreSQL has them, else the newest file."""
    rows = await asyncio.to_thread(_verify_rows, config)
    if rows is not None:
        return _judge(rows, "the database", "its newest part")
    verdict = await asyncio.to_thread(_verify_files, config)
    return _judge(verdict, str(config.state / "audit"), "its newest file")


def _judge(verdict: "AuditVerdict", place: str, part: str) -> CheckFinding:
    """Return the finding about the `part` of the record, which is in `place`, that was verified. Raises CheckError."""
    broken = next((finding for finding in verdict.findings if not finding.is_harmless), None)
    if broken is not None:
        raise CheckError(
            f"the record of calls is broken: {broken.place}: {broken.text}",
            f"keep a copy of {place}, run toolgate audit verify, and find out who can write there",
        )
    if verdict.newest is None:
        raise CheckSkippedError(NO_RECORD)
    return f"intact in {part}, {verdict.lines:,} lines up to {verdict.newest.time}"


def _verify_rows(config: Config) -> "AuditVerdict | None":
    """Return the verdict on the rows, or None where the log is in files."""
    from toolgate.server.features.telemetry.commands import audit_sources  # start-up

    try:
        with audit_sources.open_shared_rows(config) as rows:
            if rows is None:
                return None
            if not rows.has_key():
                raise CheckSkippedError(NO_RECORD)
            return rows.verify_newest()
    except (audit_sources.AuditSourceError, UsageError) as error:
        raise CheckError(f"the record of calls can't be read: {error}", "correct --database and --secret") from None


def _verify_files(config: Config) -> "AuditVerdict":
    from toolgate.server.features.telemetry.audit import reader  # start-up

    folder, key = config.state / "audit", config.state / "keys" / "audit"
    if not (folder.is_dir() or key.exists()):
        raise CheckSkippedError(NO_RECORD)
    try:
        return reader.verify(folder, key_file.read_key(key), newest=True)
    except (OSError, TimeoutError) as error:
        raise CheckError(f"the record of calls can't be read: {describe_os_error(error)}", RESTORE_KEYS) from None
