"""Set, list and remove the secrets that mounts name (`toolgate secret …`). No value is ever printed."""

import sys
from typing import Any

from toolgate.server.app.features import build_host
from toolgate.server.auth.login.accounts import Accounts
from toolgate.server.auth.tokens.access_tokens import name_principal
from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import escape_unprintable
from toolgate.server.cli.commands.store_command import CommandError, read_people, with_store
from toolgate.server.cli.commands.workspace import find_principal
from toolgate.server.cli.terminal.hidden_input import prompt_hidden
from toolgate.server.cli.terminal.output import format_time, print_json_line, print_table
from toolgate.server.config.load import Config
from toolgate.server.features.mounts.config.table import read_own_mounts
from toolgate.server.features.mounts.kept_secrets.resolver import find_secret_names
from toolgate.server.features.mounts.kept_secrets.secret_store import MAX_VALUE, TEAM, SecretError, SecretStore
from toolgate.server.state.store import Store

EVERYBODY = "everybody"


@with_store()
async def set_secret(store: Store, config: Config, /, *, name: str, **flags: Any) -> None:
    """Store the value from the terminal or a pipe. `for`, a word of Python, names the person."""
    principal = await _find_owner(store, flags["for"])
    value = _read_value(name)
    try:
        await (await _open_secrets(store, config)).set(principal, name, value)
    except SecretError as error:
        raise UsageError(f"secret set: {error}") from None
    print(f"{name} is set for {flags['for'] or EVERYBODY}")
    users = [mount.name for mount in read_own_mounts(config).mounts if name in find_secret_names(mount)]
    if users:
        print(f"{', '.join(users)} will use it from the next call on", file=sys.stderr)
    else:
        print(f"no mount names it yet: write ${{secret:{name}}} into its env, headers or url", file=sys.stderr)


@with_store(upgrades=False)
async def list_secrets(store: Store, config: Config, /, *, json: bool = False, **flags: Any) -> None:
    """Print the names of secrets, whose they are and since when."""
    owner = None if flags["for"] is None else await _find_owner(store, flags["for"])
    found = await (await _open_secrets(store, config)).list(owner)
    people = {TEAM: "", **(await read_people(store))}
    shown = [(each.name, people.get(each.principal, each.principal), each.set_at) for each in found]
    if json:
        print_json_line({"secrets": [{"name": name, "for": owner, "set": set_at} for name, owner, set_at in shown]})
    elif not found:
        print("no secrets are set: toolgate secret set NAME sets one", file=sys.stderr)
    else:
        rows = [(name, escape_unprintable(owner or EVERYBODY), format_time(set_at)) for name, owner, set_at in shown]
        print_table([("NAME", "FOR", "SET"), *rows])


@with_store()
async def remove_secret(store: Store, config: Config, /, *, name: str, **flags: Any) -> None:
    """Remove a secret."""
    principal = await _find_owner(store, flags["for"])
    if not await (await _open_secrets(store, config)).remove(principal, name):
        raise CommandError(f"{name!r} is not set for {flags['for'] or EVERYBODY}: toolgate secret list shows what is")
    print(f"{name} is removed for {flags['for'] or EVERYBODY}")


async def _find_owner(store: Store, person: str | None) -> str:
    """Return the principal of a person, who need not have signed in yet. Raises CommandError."""
    if person is None:
        return TEAM
    account = None if store.is_empty() else await Accounts(store).find_account(person)
    if account is None:
        return await find_principal(store, person)
    return name_principal(account.issuer, account.subject)


async def _open_secrets(store: Store, config: Config) -> SecretStore:
    keys = build_host(config)[0].keys()
    await keys.load()
    return SecretStore(store, keys)


def _read_value(name: str) -> str:
    """Return what is typed without echo, or all that is piped in but for the end of its last line."""
    if sys.stdin.isatty():
        return prompt_hidden(f"Value of {name}: ", "value")
    data = sys.stdin.buffer.read(MAX_VALUE + 3)
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise CommandError("a value must be valid UTF-8") from None
