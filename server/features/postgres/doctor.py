"""Check PostgreSQL, the secret of its keys, its clock, and what the state has there in place of files."""

from collections.abc import Callable
from contextlib import aclosing
from functools import partial

from toolgate.server.base.errors import UsageError
from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckNote, CheckSkippedError, DoctorPart
from toolgate.server.cli.doctor.state import judge_signing_key
from toolgate.server.cli.terminal.output import format_count
from toolgate.server.config.load import Config


def list_checks(config: Config) -> DoctorPart:
    """Return the checks that --database and --secret ask for."""
    needs = {"signing key": ("secret",)} if config.secret is not None else {}
    if config.database is None:
        return DoctorPart([("secret", partial(secret, config), ())], after="state database", needs=needs)
    return DoctorPart(
        [("secret", partial(secret, config), ("state database",))],
        after="state database",
        replaced={
            "state database": partial(database, config),
            "signing key": partial(signing_key, config),
        },
        needs=needs,
        clocks={"PostgreSQL": partial(_read_clock, config)},
    )


async def database(config: Config) -> CheckFinding:
    """Check whether PostgreSQL answers and suits."""
    from toolgate.server.features.postgres import database_check  # start-up

    return await database_check.check_database(config.database)


async def secret(config: Config) -> CheckFinding:
    """Check that --secret opens the keys in PostgreSQL."""
    from toolgate.server.app.features import build_host
    from toolgate.server.base.errors import StateError
    from toolgate.server.features.postgres.key_table import KeyTable
    from toolgate.server.features.postgres.open_store import SEALED, has_keys

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


async def signing_key(config: Config) -> CheckFinding:
    """Check that the key in PostgreSQL that signs tokens can be opened, and how old it is."""
    from toolgate.server.app.features import build_host
    from toolgate.server.base.errors import StateError
    from toolgate.server.features.postgres.key_table import KeyTable
    from toolgate.server.state.keys import rows as key_rows

    host, _ = build_host(config, upgrades=False)
    stored = None
    try:
        async with aclosing(host.store()) as store:
            row = next(iter(await store.read(key_rows.list_keys)), None)
            if row is not None and (key := host.secret()) is not None:
                try:
                    files = await store.read(KeyTable(store, key).to_files)
                except StateError as error:
                    raise CheckError(str(error), "correct --secret") from None
                stored = files.get("signing", key), "the key that seals it in PostgreSQL"
    except StateError as error:
        raise CheckSkippedError(str(error)) from None
    return judge_signing_key(config, None if row is None else (row.kid, row.sealed, row.made_at), stored)


async def _read_clock(config: Config, now: Callable[[], float]) -> tuple[float, float, float]:
    from toolgate.server.features.postgres.database.description import read_clock  # start-up, and it imports asyncpg

    return await read_clock(config.database, now)
