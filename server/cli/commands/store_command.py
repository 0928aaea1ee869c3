"""Run a command on the state database, with or without a running server."""

import asyncio
import os
import pwd
import sys
from collections import ChainMap
from collections.abc import Awaitable, Callable
from contextlib import aclosing, nullcontext
from pathlib import Path
from typing import Concatenate, ParamSpec

from toolgate.server.app.features import list_state_parts, open_store
from toolgate.server.app.state_part import Elsewhere
from toolgate.server.base.errors import UsageError
from toolgate.server.config import load
from toolgate.server.config.load import Config
from toolgate.server.state import lock
from toolgate.server.state.errors import StateVersionError
from toolgate.server.state.store import Store
from toolgate.tools.api.errors import ToolError

DONE, FAULT, USAGE = 0, 1, 2
ENDS_SOON = "Running servers end its sessions and open calls within 15 seconds."

P = ParamSpec("P")
Action = Callable[Concatenate[Store, Config, P], Awaitable[None]]


class CommandError(Exception):
    """A command can't do its work; the text says why."""


def with_store(*, upgrades: bool = True) -> Callable[[Action[P]], Callable[Concatenate[Config, P], int]]:
    """Return a command from a function that takes the open database first. A read-only command upgrades nothing."""

    def to_command(action: Action[P]) -> Callable[Concatenate[Config, P], int]:
        def command(config: Config, /, *args: P.args, **kwargs: P.kwargs) -> int:
            async def work() -> None:
                async with aclosing(open_store(config, upgrades=upgrades)) as store:
                    await action(store, config, *args, **kwargs)

            from toolgate.server.auth.login.accounts import SignInError

            refuse_other_owner(config)
            if config.state.exists() and not config.state.is_dir():
                raise UsageError(f"--state: {config.state} is not a folder")
            with lock.hold_shared(config.state) if config.state.exists() else nullcontext():
                try:
                    asyncio.run(work())
                except (CommandError, SignInError, ToolError) as error:
                    print(f"toolgate: {error}", file=sys.stderr)
                    return USAGE if isinstance(error, StateVersionError) else FAULT
            return DONE

        return command

    return to_command


def refuse_other_owner(config: Config) -> None:
    """Raise UsageError if root uses the state of another user, as a service has one.

    That user's server could not read files that root makes there. Without --state root means a service's folder, too.
    """
    is_here = config.is_given("state") or config.state.exists()
    folder = config.state if is_here else load.SYSTEM_STATE
    if os.geteuid() != 0 or not folder.exists() or (owner := folder.stat().st_uid) == 0:
        return
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        raise UsageError(f"{folder} belongs to user {owner}: run this as that user, not as root") from None
    raise UsageError(f"{folder} belongs to user {name}: run this as that user: runuser -u {name} -- toolgate …")


async def find_elsewhere(store: Store) -> dict[str, Elsewhere]:
    """Return the workspaces that are elsewhere, by principal. Raises StateError."""
    parts = [await part.find_workspaces(store) for part in list_state_parts()]
    return dict(ChainMap(*parts))


async def read_clients(store: Store, file: Path | None) -> dict[str, str]:
    """Return the names of OAuth clients by id: those in the file, and those that were registered here."""
    from toolgate.server.auth.clients import clients_file  # start-up
    from toolgate.server.auth.grants import Grants

    configured = clients_file.read_clients(file) if file is not None else {}
    stored = [] if store.is_empty() else [client for client, _, _ in await Grants(store, {}).list_clients()]
    return {client.id: client.name for client in (*stored, *configured.values())}


async def read_people(store: Store) -> dict[str, str]:
    """Return the names of people who signed in here, by principal."""
    from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER  # start-up
    from toolgate.server.base.principals.principal import Principal
    from toolgate.server.state.rows import grants as grant_rows

    rows = [] if store.is_empty() else await store.read(grant_rows.list_people)
    return {Principal(OWN_ISSUER, row.subject, "").name: row.name for row in rows}


def read_names(config: Config) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names of people by principal and those of clients by id, or empty dicts if they can't be read."""

    async def read() -> tuple[dict[str, str], dict[str, str]]:
        async with aclosing(open_store(config, upgrades=False)) as store:
            return await read_people(store), await read_clients(store, config.clients)

    try:
        return asyncio.run(read())
    except ToolError as error:  # what they are read for is shown without names
        print(f"people's names are not known: {error}", file=sys.stderr)
        return {}, {}
