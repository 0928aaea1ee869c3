"""`toolgate user …`: the accounts of the built-in login, in the state database, whether a server runs beside or not.
Also how the commands that keep people and clients are run. A password comes from the terminal or a pipe alone.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from toolgate.server.config.load import Config
from toolgate.server.protocol.errors import UsageError
from toolgate.server.state import lock
from toolgate.server.state.store import NewerStateError, Store
from toolgate.server.text import escape_unprintable
from toolgate.tools import ToolError

if TYPE_CHECKING:
    from toolgate.server.auth.login.accounts import Accounts

DONE, FAULT, USAGE = 0, 1, 2
ENDS_SOON = "a server that runs ends what is open for it within fifteen seconds"
MAX_LINE = 8_192  # bytes of a piped password's line; one has 1024 characters at most

Action = Callable[[Store, Sequence[str]], Awaitable[None]]


class CommandError(Exception):
    """It can't be done; the text says why."""


def user(config: Config, words: Sequence[str]) -> int:
    """`toolgate user add NAME | list | remove NAME | passwd NAME`."""
    return run_action("user", {"add": _add, "list": _list, "remove": _remove, "passwd": _passwd}, config, words)


def run_action(command: str, actions: Mapping[str, Action], config: Config, words: Sequence[str]) -> int:
    """Do the action that the first word names. Raises UsageError."""
    if not words or words[0] not in actions:
        raise UsageError(f"{command}: say what to do: {', '.join(actions)}")
    if config.state.exists() and not config.state.is_dir():
        raise UsageError(f"--state: {config.state} is no folder")

    async def work() -> None:
        store = Store(config.state, upgrades=words[0] != "list")  # to look changes nothing
        try:
            await actions[words[0]](store, words[1:])
        finally:
            store.close()

    from toolgate.server.auth.login.accounts import SignInError

    with lock.hold_shared(config.state) if config.state.exists() else nullcontext():
        try:
            asyncio.run(work())
        except (CommandError, SignInError, ToolError) as error:
            print(f"toolgate: {error}", file=sys.stderr)
            return USAGE if isinstance(error, NewerStateError) else FAULT
    return DONE


def require_one(words: Sequence[str], what: str) -> str:
    """The one word there has to be. Raises UsageError."""
    if len(words) != 1 or not words[0]:
        raise UsageError(f"{what} belongs here, and nothing else")
    return words[0]


def reject_extra(words: Sequence[str]) -> None:
    """Raises UsageError for words too many."""
    if words:
        raise UsageError(f"unexpected {words[0]!r}")


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def format_time(moment: float | None) -> str:
    """A date and a time of day, in UTC."""
    return "never" if moment is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment))


async def _add(store: Store, words: Sequence[str]) -> None:
    from toolgate.server.auth.login.accounts import normalize_name

    name = normalize_name(require_one(words, "user add: the NAME of the account"))
    accounts = _accounts(store)
    if not store.is_empty() and await accounts.find_account(name) is not None:
        raise CommandError(f"there is an account {name!r} already")
    person = await accounts.add(name, _read_password(name))
    print(f"{person.name} can sign in now, at servers with the state in {store.folder}")


async def _list(store: Store, words: Sequence[str]) -> None:
    """The accounts; and behind them, if there are any, who came from elsewhere, as --allow-users calls them."""
    from toolgate.server.state import grant_rows

    reject_extra(words)
    rows = [] if store.is_empty() else await _accounts(store).list_accounts()
    seen = [] if store.is_empty() else await store.transact(grant_rows.list_external_people)
    if not rows:
        print("there is no account yet: toolgate user add NAME", file=sys.stderr)
    if seen:
        ours = ((name, format_time(made_at), "account", f"account:{name}") for name, made_at in rows)
        theirs = (
            (
                escape_unprintable(row.name),
                format_time(row.seen_at),
                row.issuer,
                format_identity(row.issuer, row.known_as),
            )
            for row in seen
        )
        print_table([("NAME", "SINCE", "ISSUER", "CALLED"), *ours, *theirs])
    elif rows:
        print_table([("NAME", "SINCE"), *((name, format_time(made_at)) for name, made_at in rows)])


async def _remove(store: Store, words: Sequence[str]) -> None:
    from toolgate.server.auth.grants import Grants
    from toolgate.server.principal import derive_subject

    name = require_one(words, "user remove: the NAME of the account")
    _require_database(store, name)
    person = await _accounts(store).remove(name)
    ended = await Grants(store, {}).revoke_all(subject=derive_subject(person.issuer, person.subject))
    print(f"{person.name} is gone, signed out everywhere; {format_count(ended, 'grant')} ended")
    print(f"{ENDS_SOON}, with background tasks and callbacks", file=sys.stderr)


async def _passwd(store: Store, words: Sequence[str]) -> None:
    name = require_one(words, "user passwd: the NAME of the account")
    _require_database(store, name)
    accounts = _accounts(store)
    found = await accounts.find_account(name)
    if found is None:
        raise CommandError(f"there is no account {name!r}")
    await accounts.set_password(name, _read_password(found.name))
    print(f"{found.name} has a new password and is signed out everywhere; clients keep what they were granted")


def format_identity(issuer: str, subject: str) -> str:
    """How a person who is no account is named on a command line, and in --allow-users."""
    from toolgate.server.auth.login.providers import GITHUB
    from toolgate.server.auth.login.trusted_proxies import HEADER_ISSUER

    prefix = {HEADER_ISSUER: "header", GITHUB: "github"}.get(issuer, "oidc")
    return f"{prefix}:{escape_unprintable(subject)}"


def format_count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _accounts(store: Store) -> "Accounts":
    from toolgate.server.auth.login.accounts import Accounts

    return Accounts(store)


def _require_database(store: Store, name: str) -> None:
    """A database that was never made is not made to find that nothing is in it."""
    if store.is_empty():
        raise CommandError(f"there is no account {name!r}")


def _read_password(name: str) -> str:
    """From a terminal without echo, asked twice; from a pipe its first line, which a second one has to repeat."""
    from toolgate.server.auth.login.accounts import MAX_PASSWORD

    if sys.stdin.isatty():
        first, again = _prompt_password(f"Password for {name}: "), _prompt_password("The same again: ")
    else:
        lines = [sys.stdin.buffer.readline(MAX_LINE) for _ in range(2)]
        try:
            first, again = (line.decode().removesuffix("\n").removesuffix("\r") for line in lines)
        except UnicodeDecodeError:
            raise CommandError("a password is text in UTF-8") from None
        if any(len(line) == MAX_LINE for line in lines):
            raise CommandError(f"a password has at most {MAX_PASSWORD} characters")
        again = again if lines[1] else first
    if not first:
        raise CommandError("no password was given: type one, or pipe it in")
    if first != again:
        raise CommandError("the two passwords differ")
    return first


def _prompt_password(prompt: str) -> str:
    import getpass  # start-up

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the loop's own would wait for the line's end
    try:
        return getpass.getpass(prompt)
    except EOFError:
        raise CommandError("no password was given") from None
    except UnicodeDecodeError:
        raise CommandError("a password is text in UTF-8") from None
    finally:
        signal.signal(signal.SIGINT, before)
