"""Manage OAuth clients, grants and signing keys in the database (`toolgate client …`, `token …`, `key …`)."""

import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgate.server.app.features import build_host
from toolgate.server.auth.clients import clients_file, redirect_uris
from toolgate.server.auth.clients.model import OAuthClient, display_name, find_client
from toolgate.server.auth.grants import Grants
from toolgate.server.auth.login.accounts import normalize_name_or_empty
from toolgate.server.base.errors import UsageError
from toolgate.server.base.principals.principal import derive_subject
from toolgate.server.base.principals.scopes import OFFLINE, STAY_SIGNED_IN
from toolgate.server.base.principals.sign_in_methods import format_identity
from toolgate.server.cli.commands.store_command import ENDS_SOON, CommandError, with_store
from toolgate.server.cli.terminal.output import format_count, format_time, print_table
from toolgate.server.config.load import Config
from toolgate.server.state.keys.sealing_keys import SealingKeys
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows import people as people_rows
from toolgate.server.state.rows.people import BUILT_IN
from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection


@with_store(upgrades=False)
async def list_clients(store: Store, config: Config) -> None:
    """Print the clients of the file and of the database."""
    found = [(each, "in the file", "") for each in _clients_in_file(config.clients).values()]
    for each, made, approved in [] if store.is_empty() else await Grants(store, {}).list_clients():
        found.append((each, format_time(made), format_time(approved)))
    if not found:
        print("no clients yet: add one with toolgate client add", file=sys.stderr)
        return
    head = ("ID", "NAME", "KIND", "SINCE", "APPROVED")
    print_table([head, *((each.id, each.name, each.kind, made, approved) for each, made, approved in found)])


@with_store()
async def add_client(store: Store, _config: Config, *, name: str, redirects: Sequence[str], confidential: bool) -> None:
    """Add a client. Each of `redirects` is a redirect URI, or the name of a platform with known URIs."""
    platforms = [word for word in redirects if ":" not in word]
    for word in platforms:
        if word not in redirect_uris.PRESETS:
            known = ", ".join(redirect_uris.PRESETS)
            raise UsageError(f"client add: {word!r} is neither a redirect URI nor a platform; platforms are {known}")
    secret = secrets.token_urlsafe(32)
    row: dict[str, Any] = {
        "id": secrets.token_hex(16),
        "name": name,
        "redirect_uris": [word for word in redirects if ":" in word],
        "presets": platforms,
        **({"secret": secret} if confidential else {}),
    }
    try:
        made = clients_file.parse_client(row, Path())
    except ValueError as error:
        raise UsageError(f"client add: {str(error).removeprefix('redirect_uris: ')}") from None
    await Grants(store, {}).add_client(made)
    print(f"client id:     {made.id}")
    if confidential:
        print(f"client secret: {secret}")
        print("the secret is shown only once: the server keeps a digest", file=sys.stderr)


@with_store()
async def remove_client(store: Store, config: Config, *, id: str) -> None:
    """Remove a client and end its grants."""
    if id in _clients_in_file(config.clients):
        raise CommandError(f"the client {id!r} is in {config.clients}: remove it there and restart the server")
    if store.is_empty() or not await Grants(store, {}).remove_client(id):
        raise CommandError(f"there is no client {id!r}: toolgate client list shows them")
    print(f"{id} is removed, and its grants have ended")
    print(ENDS_SOON, file=sys.stderr)


@with_store(upgrades=False)
async def list_grants(store: Store, config: Config) -> None:
    """Print the grants of people to clients."""
    found = [] if store.is_empty() else await Grants(store, _clients_in_file(config.clients)).list_grants()
    if not found:
        print("no grants", file=sys.stderr)
        return
    shows_issuers = any(each.issuer != BUILT_IN for each in found)
    rows = [("GRANT", "USER", *(["ISSUER"] if shows_issuers else []), "CLIENT", "USED", "UNTIL", "SCOPES")]
    for each in found:
        person = display_name(each.person) if each.person else "?"
        issuer = ["account" if each.issuer == BUILT_IN else each.issuer or "?"] if shows_issuers else []
        times = format_time(each.used_at), format_time(each.expires_at)
        rows.append((each.id, person, *issuer, each.client.name, *times, _format_scopes(each.scopes)))
    print_table(rows)


def _format_scopes(scopes: Sequence[str]) -> str:
    words = " ".join(scope for scope in scopes if scope != OFFLINE)
    return f"{words}; {STAY_SIGNED_IN}" if OFFLINE in scopes else words


@with_store()
async def revoke_all(store: Store, _config: Config) -> None:
    """End all grants and sign-ins, with clients' own tokens."""
    await store.transact(people_rows.end_all_logins, alone="accounts")
    ended = await Grants(store, {}).revoke_all()
    print(f"{format_count(ended, 'grant')} ended; everybody is signed out")
    print(ENDS_SOON, file=sys.stderr)


@with_store()
async def revoke_user(store: Store, _config: Config, *, name: str) -> None:
    """End all grants and sign-ins of a person."""
    subject, issuer, known_as = await _find_person(store, name)
    await store.transact(lambda connection: people_rows.end_logins(connection, issuer, known_as), alone="accounts")
    ended = await Grants(store, {}).revoke_all(subject=subject)
    print(f"{format_count(ended, 'grant')} of {name} ended; signed out everywhere")
    print(ENDS_SOON, file=sys.stderr)


@with_store()
async def revoke_client(store: Store, config: Config, *, id: str) -> None:
    """End all grants of a client, even of a removed one."""
    known = await store.read(lambda connection: find_client(connection, _clients_in_file(config.clients), id))
    ended = await Grants(store, {}).revoke_all(client=id)
    if known is None and not ended:
        raise CommandError(f"there is no client {id!r}: toolgate client list shows them")
    print(f"{format_count(ended, 'grant')} of {id} ended")
    print(ENDS_SOON, file=sys.stderr)


@with_store()
async def revoke_grant(store: Store, _config: Config, *, id: str) -> None:
    if not await Grants(store, {}).revoke_grant(None, id):
        raise CommandError(f"there is no active grant {id!r}: toolgate token list shows them")
    print(f"{id} has ended")
    print(ENDS_SOON, file=sys.stderr)


async def _find_person(store: Store, name: str) -> tuple[str, str, str]:
    """Return a person's subject, issuer, and subject there, by name, `account:NAME`, `github:…`, `oidc:…`, `header:…`
    or our subject. Raises CommandError for a name of several people."""
    prefix, _, rest = name.partition(":")
    wanted = normalize_name_or_empty(rest if prefix == "account" else name)

    def find(connection: "Connection") -> dict[str, tuple[str, str, str]]:
        account = people_rows.find_account(connection, wanted)
        found = {}
        if account is not None:
            subject = derive_subject(BUILT_IN, account.subject)
            found[subject] = (f"account:{account.name}", BUILT_IN, account.subject)
        for row in [*grant_rows.find_people(connection, name), *grant_rows.find_people(connection, rest)]:
            way = format_identity(row.issuer, row.known_as)
            if row.issuer != BUILT_IN and name in (row.subject, row.name, row.known_as, way):
                found[row.subject] = (way, row.issuer, row.known_as)
        return found

    found = await store.read(find)
    if len(found) > 1:
        ways = [way for way, _, _ in found.values()]
        people = ", ".join(
            f"{way if ways.count(way) == 1 else subject} ({'here' if issuer == BUILT_IN else issuer})"
            for subject, (way, issuer, _) in found.items()
        )
        raise CommandError(f"{name!r} may be {people}: say which one")
    if not found:
        raise CommandError(f"there is no user {name!r}: toolgate token list shows who has access")
    ((subject, (_, issuer, known_as)),) = found.items()
    return subject, issuer, known_as


@with_store()
async def rotate_key(store: Store, config: Config, *, drop_old: bool) -> None:
    """Make a new key for signing tokens."""
    from toolgate.server.auth.tokens.signing_keys import KEEP, SigningKeys  # start-up
    from toolgate.server.state.keys.sealed_state import Sealer

    keys = build_host(config)[0].keys()
    await keys.load()
    if drop_old:  # until it is removed below, a running server can open what it seals
        await keys.rotate("signing", KEEP, at_once=True)
    kid = await SigningKeys(store, Sealer(keys.find("signing"), None)).rotate(drop_old=drop_old)
    if drop_old:
        await keys.remove_previous("signing")
    await rotate_sealing_keys(keys, drop_old=drop_old)
    if drop_old:
        print(f"{kid} signs from now on; all access tokens have ended, and clients refresh")
        print("people who are signing in or answering a question must start again", file=sys.stderr)
        print("a running server notices within seconds", file=sys.stderr)
    else:
        print(f"{kid} signs new tokens within six minutes; old tokens stay valid until they expire")
        print("if a key may have leaked: toolgate key rotate --drop-old", file=sys.stderr)


def _clients_in_file(file: Path | None) -> Mapping[str, OAuthClient]:
    return clients_file.read_clients(file) if file is not None else {}


async def rotate_sealing_keys(keys: SealingKeys, *, drop_old: bool) -> None:
    """Replace the short-lived sealing keys. A running server uses the new ones from its next answer, or within seconds
    where they are in PostgreSQL. With `drop_old` nothing sealed before is accepted. Raises StateError and OSError.

    The key of the audit log is never rotated: another one could not verify the log.
    """
    from toolgate.server.auth.oauth_server import consent_requests  # start-up, as above
    from toolgate.server.state.keys import sealed_state

    for name, lifetime in ("request-state", sealed_state.LIFETIME), ("questions", consent_requests.LIFETIME):
        await keys.rotate(name, 0 if drop_old else float(lifetime))
