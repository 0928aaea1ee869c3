"""Check the state folder, its database, and the key that signs tokens."""

import asyncio
import os
import stat
import time
from pathlib import Path

from toolgate.server.base.text import describe_os_error
from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckNote, CheckSkippedError
from toolgate.server.config.load import Config
from toolgate.server.state import lock
from toolgate.server.state.keys import file as key_file

DAY = 86_400.0
EXPIRED_AFTER = 2  # lifetimes of a key: no server has replaced it
RESTORE_KEYS = "restore keys/ from the backup that state.db is from"
SLACK = 300.0  # seconds: clocks differ


async def signing_key(config: Config) -> CheckFinding:
    """Check that the key can be opened, and how old it is."""
    from toolgate.server.base.errors import StateError  # start-up
    from toolgate.server.state.keys import rows as key_rows

    try:
        newest = await asyncio.to_thread(key_rows.read_newest_key, config.state / "state.db")
    except StateError as error:
        raise CheckSkippedError(str(error)) from None
    return judge_signing_key(config, newest)


def judge_signing_key(
    config: Config, newest: tuple[str, str, float] | None, stored: tuple[bytes, str] | None = None
) -> CheckFinding:
    """Return the finding about kid, sealed key and time of the newest key, if there is one. Raises CheckError.

    stored: the key that seals it, and what people call that; None: it is in the state folder
    """
    from toolgate.server.auth.tokens.signing_keys import AGE, PURPOSE  # start-up
    from toolgate.server.state.keys.sealed_state import FixedKey, Sealer, SealError

    if newest is None:
        raise CheckSkippedError("none yet")
    kid, sealed, made_at = newest
    file = config.state / "keys" / "signing"
    remedy = f"{RESTORE_KEYS}; otherwise the next start makes a new key, and everybody signs in again"
    try:
        key = key_file.read_key(file) if stored is None else stored[0]
        Sealer(FixedKey(key), None).unseal(sealed, PURPOSE, kid)
    except FileNotFoundError:
        raise CheckError(f"{file} is missing: the key that signs tokens can't be opened", remedy) from None
    except OSError as error:
        reason = describe_os_error(error)
        raise CheckError(f"the key that signs tokens can't be opened: {reason}", remedy) from None
    except SealError:
        reason = f"{file if stored is None else stored[1]} belongs to another state"
        raise CheckError(f"the key that signs tokens can't be opened: {reason}", remedy) from None
    return _judge_age(time.time() - made_at, AGE)


def _judge_age(age: float, lasting: float) -> CheckFinding:
    days = f"{max(0.0, age) / DAY:.0f} days"
    if age < -SLACK:
        raise CheckError("it was made in the future", "set the clock: tokens go by it")
    if age > EXPIRED_AFTER * lasting:
        return CheckNote(f"the signing key has expired: it is {days} old", "toolgate key rotate, or start the server")
    if age > lasting:
        return f"made {days} ago; the server replaces it when it signs next"
    return f"made {days} ago; replaced in {(lasting - age) / DAY:.0f} days"


async def folder(config: Config) -> str:
    return await asyncio.to_thread(_check_folder, config.state)


def _check_folder(folder: Path) -> str:
    if not folder.exists():
        above = next(parent for parent in folder.parents if parent.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            raise CheckError(f"{folder} does not exist, and {above} is not writable", "name another with --state")
        return f"{folder} will be made at the start"
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode) or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise CheckError(f"{folder} is not a writable folder", "name another with --state")
    if found.st_uid != os.geteuid():
        raise CheckError(
            f"{folder} belongs to another user",
            f"chown it, or name another with --state (its owner is uid {found.st_uid})",
        )
    if lock.find_unfinished(folder) is not None:
        raise CheckError(f"{folder} is half restored", lock.UNFINISHED)
    for path in (folder, folder / "keys", folder / "state.db", *(folder / "keys").glob("*")):
        private = 0o066 if path == folder else 0o077  # at level `uid`, sandbox users pass through it
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & private:
            remedy = f"chmod go-rw {path}" if path == folder else f"chmod go= {path}"
            raise CheckError(f"{path} can be read by others", remedy)
    return f"{folder}, private"


async def database(config: Config) -> CheckFinding:
    from toolgate.server.base.errors import StateError
    from toolgate.server.state.sqlite.database import check_database
    from toolgate.server.state.tables import OLDEST, VERSION

    path = config.state / "state.db"
    if not path.exists():
        raise CheckSkippedError("none yet")
    try:
        version, compatible_since = await asyncio.to_thread(check_database, path)
    except StateError as error:
        raise CheckError(str(error), "restore state.db and keys/ from a backup, or name another --state") from None
    if compatible_since > VERSION:
        raise CheckError(f"version {version} is from a newer Toolgate; this one knows {VERSION}", "use the newer one")
    if version < 1:
        raise CheckError("it was not made by Toolgate", "move it away, or name another folder with --state")
    if version < OLDEST:
        raise CheckError(
            f"version {version} is too old: those from {OLDEST} on are upgraded",
            "start a Toolgate between the two once",
        )
    if version < VERSION:
        return f"intact; version {version}, will be upgraded at the next start: make a backup first"
    return f"intact; version {version}"
