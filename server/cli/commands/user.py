"""Manage the accounts of the built-in login in the state database (`toolgate user …`)."""

import sys

from toolgate.server.app.features import list_state_parts
from toolgate.server.auth.grants import Grants
from toolgate.server.auth.login.accounts import Accounts, normalize_name
from toolgate.server.auth.login.passwords import MAX_PASSWORD
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.principals.principal import Principal, derive_subject
from toolgate.server.base.principals.sign_in_methods import format_identity
from toolgate.server.base.text import escape_unprintable
from toolgate.server.cli.commands.store_command import CommandError, with_store
from toolgate.server.cli.terminal.hidden_input import prompt_hidden
from toolgate.server.cli.terminal.output import format_count, format_time, print_table
from toolgate.server.config.load import Config
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.store import Store

MAX_LINE = 8_192  # bytes of a piped password's line; one has 1024 characters at most


@with_store()
async def add(store: Store, config: Config, *, name: str) -> None:
    """Add an account with a password from the terminal or a pipe."""
    name = normalize_name(name)
    accounts = Accounts(store, server=config.name)
    if not store.is_empty() and await accounts.find_account(name) is not None:
        raise CommandError(f"there is an account {name!r} already")
    person = await accounts.add(name, _read_password(name))
    print(f"Created {person.name} (state: {store.place}).")


@with_store(upgrades=False)
async def list_users(store: Store, _config: Config) -> None:
    """Print the accounts, then people of external providers as --allow-users writes them."""
    rows = [] if store.is_empty() else await Accounts(store).list_accounts()
    seen = [] if store.is_empty() else await store.read(grant_rows.list_external_people)
    if not rows:
        print("no accounts yet: add one with toolgate user add NAME", file=sys.stderr)
    if seen:
        table = [("NAME", "SINCE", "ISSUER", "CALLED")]
        table += [(name, format_time(made_at), "account", f"account:{name}") for name, made_at in rows]
        for row in seen:
            called = format_identity(row.issuer, row.known_as)
            table.append((escape_unprintable(row.name), format_time(row.seen_at), row.issuer, called))
        print_table(table)
    elif rows:
        print_table([("NAME", "SINCE"), *((name, format_time(made_at)) for name, made_at in rows)])


@with_store()
async def remove(store: Store, _config: Config, *, name: str) -> None:
    """Remove an account, with its sign-ins and grants."""
    _require_database(store, name)
    person = await Accounts(store).remove(name)
    subject = derive_subject(person.issuer, person.subject)
    ended = await Grants(store, {}).revoke_all(subject=subject)
    for part in list_state_parts():
        await part.end_person(store, Principal(OWN_ISSUER, subject, "").name)
    print(f"{person.name} is removed and signed out everywhere; {format_count(ended, 'grant')} ended")
    print("Running servers end its sessions, tasks and callbacks within 15 seconds.", file=sys.stderr)


@with_store()
async def passwd(store: Store, config: Config, *, name: str) -> None:
    """Change a password and end the person's sign-ins."""
    _require_database(store, name)
    accounts = Accounts(store, server=config.name)
    found = await accounts.find_account(name)
    if found is None:
        raise CommandError(f"there is no account {name!r}: toolgate user list shows them")
    await accounts.set_password(name, _read_password(found.name))
    print(f"{found.name} has a new password and is signed out everywhere; clients keep their grants")


def _require_database(store: Store, name: str) -> None:
    """Raise CommandError without a database, rather than create an empty one."""
    if store.is_empty():
        raise CommandError(f"there is no account {name!r}: toolgate user list shows them")


def _read_password(name: str) -> str:
    """Read a password: from a terminal twice without echo, or a pipe's first line; a second one must be equal."""
    if sys.stdin.isatty():
        first, again = (prompt_hidden(text, "password") for text in (f"Password for {name}: ", "The same again: "))
    else:
        lines = [sys.stdin.buffer.readline(MAX_LINE) for _ in range(2)]
        try:
            first, again = (line.decode().removesuffix("\n").removesuffix("\r") for line in lines)
        except UnicodeDecodeError:
            raise CommandError("a password must be valid UTF-8") from None
        if any(len(line) == MAX_LINE for line in lines):
            raise CommandError(f"a password may have at most {MAX_PASSWORD} characters")
        again = again if lines[1] else first
    if not first:
        raise CommandError("no password was given: type one, or pipe it in")
    if first != again:
        raise CommandError("the two passwords differ")
    return first
