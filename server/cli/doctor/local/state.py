"""Check the key that signs tokens, and the record of calls."""

import asyncio
import time

from toolgate.server.cli.doctor.report import CheckFailedError, CheckFinding, CheckNote, CheckSkippedError
from toolgate.server.config.load import Config
from toolgate.server.state import key_file
from toolgate.server.text import describe_os_error

DAY = 86_400.0
EXPIRED_AFTER = 2  # times its lifetime: no server has run to replace it
RESTORE_KEYS = "restore keys/ from the backup that state.db is from"
SLACK = 300.0  # seconds: clocks differ


async def signing_key(config: Config) -> CheckFinding:
    """Check that the key can be opened, and how old it is."""
    from toolgate.server.auth.tokens.signing_keys import AGE, PURPOSE  # start-up
    from toolgate.server.protocol.errors import InvalidParams
    from toolgate.server.state import key_rows
    from toolgate.server.state.sealed_state import Sealer
    from toolgate.server.state.store import StateError

    try:
        row = await asyncio.to_thread(key_rows.read_newest_key, config.state / "state.db")
    except StateError as error:
        raise CheckSkippedError(str(error)) from None
    if row is None:
        raise CheckSkippedError("none yet")
    kid, sealed, made_at = row
    file = config.state / "keys" / "signing"
    again = f"{RESTORE_KEYS}; otherwise the next start makes a new key, and everybody signs in again"
    try:
        key_file.read_key(file)
        Sealer(file, None).unseal(sealed, PURPOSE, kid)
    except FileNotFoundError:
        raise CheckFailedError(f"{file} is missing: the key that signs tokens can't be opened", again) from None
    except (OSError, InvalidParams) as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else f"{file} belongs to another state"
        raise CheckFailedError(f"the key that signs tokens can't be opened: {reason}", again) from None
    return _judge_age(time.time() - made_at, AGE)


def _judge_age(age: float, lasting: float) -> CheckFinding:
    days = f"{max(0.0, age) / DAY:.0f} days"
    if age < -SLACK:
        raise CheckFailedError("it was made in the future", "set the clock: tokens go by it")
    if age > EXPIRED_AFTER * lasting:
        return CheckNote(f"the signing key has expired: it is {days} old", "toolgate key rotate, or start the server")
    if age > lasting:
        return f"made {days} ago; the server replaces it when it signs next"
    return f"made {days} ago; replaced in {(lasting - age) / DAY:.0f} days"


async def audit(config: Config) -> CheckFinding:
    """Check the newest file of the record. All of it may be 160 MiB, and `audit verify` reads that."""
    from toolgate.server.telemetry.audit import reader  # start-up

    folder, key_path = config.state / "audit", config.state / "keys" / "audit"
    if not await asyncio.to_thread(lambda: folder.is_dir() or key_path.exists()):
        raise CheckSkippedError("nothing is on record")
    try:
        key = key_file.read_key(key_path)
        verdict = await asyncio.to_thread(reader.verify, folder, key, newest=True)
    except (OSError, TimeoutError) as error:
        raise CheckFailedError(f"the record of calls can't be read: {describe_os_error(error)}", RESTORE_KEYS) from None
    broken = next((finding for finding in verdict.findings if not finding.is_harmless), None)
    if broken is not None:
        raise CheckFailedError(
            f"the record of calls is broken: {broken.place}: {broken.text}",
            f"keep a copy of {folder}, run toolgate audit verify, and find out who can write there",
        )
    if verdict.newest is None:
        raise CheckSkippedError("nothing is on record")
    return f"whole in its newest file, {verdict.lines:,} lines up to {verdict.newest.time}"
