"""Check the secret of keys in PostgreSQL, and its clock."""

from collections.abc import Callable
from contextlib import aclosing
from functools import partial

from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckNote, CheckSkippedError, DoctorPart
from toolgate.server.cli.terminal.output import format_count
from toolgate.server.config.load import Config
from toolgate.server.protocol.errors import UsageError


def list_checks(config: Config) -> DoctorPart:
    """Return the checks that --database and --secret ask for."""
    has_database = config.database is not None
    checks = [("secret", partial(secret, config), ("state database",) if has_database else ())]
    needs = {"signing key": ("secret",)} if config.secret is not None else {}
    clocks = {"PostgreSQL": partial(_read_clock, config)} if has_database else {}
    return DoctorPart(checks, after="state database", needs=needs, clocks=clocks)


async def secret(config: Config) -> CheckFinding:
    """Check that --secret opens the keys in PostgreSQL."""
    from toolgate.server.app.features import build_host
    from toolgate.server.state.errors import StateError
    from toolgate.server.state.keys.sealing_keys import SEALED, has_keys
    from toolgate.server.state.keys.table import KeyTable

    host, _ = build_host(config, upgrades=False)
    try:
        key = host.secret()
    except UsageError as error:
        raise CheckError(str(error), "correct it: the server refuses to start with it") from None
    async with aclosing(host.store()) as store:
        try:
            is_sealed = await store.read(has_keys)
        except StateError as error:  # there are no tables of this version
            raise CheckSkippedError(str(error)) from None
        if key is not None and is_sealed:
            try:
                return f"it opens {format_count(len(await store.read(KeyTable(store, key).to_files)), 'key')}"
            except StateError as error:
                raise CheckError(str(error), "correct --secret") from None
    if key is not None:
        return "the first start seals keys with it"
    if is_sealed:
        raise CheckError(SEALED, "name its file with --secret")
    if not host.is_shared:
        raise CheckSkippedError("without --secret, the keys are in the state folder")
    return CheckNote(
        "without --secret, each server has keys of its own: a token of one is refused by the others",
        "--secret FILE, the same for all servers",
    )


async def _read_clock(config: Config, now: Callable[[], float]) -> tuple[float, float, float]:
    from toolgate.server.state.postgres_description import read_clock  # start-up, and it imports asyncpg

    return await read_clock(config.database, now)
