"""What a state folder keeps besides people's work: the keys that sign tokens, and the record of calls."""

import asyncio
import time

from toolgate.server.cli.doctor.report import CheckFailedError, CheckFinding, CheckNote, CheckSkippedError
from toolgate.server.config.load import Config
from toolgate.server.state import key_file

DAY = 86_400.0
EXPIRED_AFTER = 2  # times its age after which a key has had no server to make the next one
RESTORE_KEYS = "put keys/ back from the copy that state.db is of"
SLACK = 300.0  # seconds a key may be of the future: clocks differ


async def signing_key(config: Config) -> CheckFinding:
    """That the key which signs can be opened, and how old it is."""
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
        raise CheckSkippedError("none is made yet")
    kid, sealed, made_at = row
    file = config.state / "keys" / "signing"
    again = f"{RESTORE_KEYS}; without it a new key is made at the next start, and everybody signs in again"
    try:
        key_file.read_key(file)
        Sealer(file, None).unseal(sealed, PURPOSE, kid)
    except FileNotFoundError:
        raise CheckFailedError(f"{file} is missing: the key that signs tokens can't be opened", again) from None
    except (OSError, InvalidParams) as error:
        reason = str(error) if isinstance(error, OSError) else f"{file} is of another state"
        raise CheckFailedError(f"the key that signs tokens can't be opened: {reason}", again) from None
    return _judge_age(time.time() - made_at, AGE)


def _judge_age(age: float, lasting: float) -> CheckFinding:
    days = f"{max(0.0, age) / DAY:.0f} days"
    if age < -SLACK:
        raise CheckFailedError("it was made later than it is now", "set the clock: tokens go by it")
    if age > EXPIRED_AFTER * lasting:
        return CheckNote(f"the signing key has expired: it is {days} old", "toolgate key rotate, or start the server")
    if age > lasting:
        return f"made {days} ago; a new one follows when the server signs next"
    return f"made {days} ago; a new one follows in {(lasting - age) / DAY:.0f}"


async def audit(config: Config) -> CheckFinding:
    """The newest file of the record: all of it may be 160 MiB, and `audit verify` reads that."""
    from toolgate.server.telemetry.audit import reader  # start-up

    folder, key_path = config.state / "audit", config.state / "keys" / "audit"
    if not await asyncio.to_thread(lambda: folder.is_dir() or key_path.exists()):
        raise CheckSkippedError("nothing is on record")
    try:
        key = key_file.read_key(key_path)
        verdict = await asyncio.to_thread(reader.verify, folder, key, newest=True)
    except (OSError, TimeoutError) as error:
        raise CheckFailedError(f"the record of calls can't be read: {error}", RESTORE_KEYS) from None
    broken = next((finding for finding in verdict.findings if not finding.is_harmless), None)
    if broken is not None:
        raise CheckFailedError(
            f"the record of calls is broken: {broken.place}: {broken.text}",
            f"keep a copy of {folder}; toolgate audit verify says all; find out who can write there",
        )
    if verdict.newest is None:
        raise CheckSkippedError("nothing is on record")
    return f"whole in its newest file, {verdict.lines:,} lines up to {verdict.newest.time}"
