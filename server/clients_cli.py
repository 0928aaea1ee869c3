"""`toolgate client …`, `token …`, `key …`: OAuth clients, what they were granted, and the keys that sign, in the state
database, whether a server runs beside or not. A server that runs sees it within seconds.
"""

import secrets
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgate.server.config import Config
from toolgate.server.errors import UsageError
from toolgate.server.people_cli import Action, Failed, counted, day, none, one, run, table
from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from toolgate.server.auth.clients import Client
    from toolgate.server.state.store import Connection


def client(config: Config, words: Sequence[str], *, confidential: bool) -> int:
    """`toolgate client list | add NAME WHERE… [--confidential] | remove ID`."""
    actions: Mapping[str, Action] = {
        "list": partial(_list_clients, config.clients),
        "add": partial(_add_client, confidential),
        "remove": partial(_remove_client, config.clients),
    }
    if confidential and words[:1] != ["add"]:
        raise UsageError("--confidential belongs to client add")
    return run("client", actions, config, words)


def token(config: Config, words: Sequence[str]) -> int:
    """`toolgate token list | revoke user NAME | revoke client ID | revoke grant ID`."""
    return run("token", {"list": partial(_list_grants, config.clients), "revoke": _revoke}, config, words)


def key(config: Config, words: Sequence[str]) -> int:
    """`toolgate key rotate`."""
    return run("key", {"rotate": partial(_rotate, config.state)}, config, words)


async def _list_clients(file: Path | None, store: Store, words: Sequence[str]) -> None:
    from toolgate.server.auth.grants import Grants

    none(words)
    found = [(each, "in the file", "") for each in _configured(file).values()]
    if not store.is_empty():
        found += [(each, day(made), day(approved)) for each, made, approved in await Grants(store, {}).clients()]
    if not found:
        print("there is no client yet", file=sys.stderr)
        return
    head = ("ID", "NAME", "KIND", "SINCE", "APPROVED")
    table([head, *((each.id, each.name, each.kind, made, approved) for each, made, approved in found)])


async def _add_client(confidential: bool, store: Store, words: Sequence[str]) -> None:
    """`WHERE`: redirect URIs, or the names of platforms whose URIs are known."""
    from toolgate.server.auth import configured, redirects
    from toolgate.server.auth.grants import Grants

    if len(words) < 2 or not words[0].strip():
        known = ", ".join(redirects.PRESETS)
        raise UsageError(f"client add: a NAME, and where its codes go: redirect URIs, or a platform of {known}")
    name, *places = words
    secret = secrets.token_urlsafe(32)
    row: dict[str, Any] = {
        "id": secrets.token_hex(16),
        "name": name,
        "redirect_uris": [place for place in places if ":" in place],
        "presets": [place for place in places if ":" not in place],
        **({"secret": secret} if confidential else {}),
    }
    try:
        made = configured.client(row, Path())
    except ValueError as error:
        raise UsageError(f"client add: {error}") from None
    await Grants(store, {}).add_client(made)
    print(f"client id:     {made.id}")
    if confidential:
        print(f"client secret: {secret}")
        print("the secret is shown this once: only its digest is kept", file=sys.stderr)


async def _remove_client(file: Path | None, store: Store, words: Sequence[str]) -> None:
    from toolgate.server.auth.grants import Grants

    id = one(words, "client remove: the ID of the client")
    if id in _configured(file):
        raise Failed(f"the client {id!r} is in {file}: take it out there, and start the server anew")
    if store.is_empty() or not await Grants(store, {}).remove_client(id):
        raise Failed(f"there is no client {id!r}")
    print(f"{id} is gone, and all it was granted has ended")


async def _list_grants(file: Path | None, store: Store, words: Sequence[str]) -> None:
    from toolgate.server.auth.clients import shown_name
    from toolgate.server.auth.grants import Grants

    none(words)
    found = [] if store.is_empty() else await Grants(store, _configured(file)).of()
    if not found:
        print("nothing is granted", file=sys.stderr)
        return
    head = ("GRANT", "USER", "CLIENT", "USED", "UNTIL", "SCOPES")
    rows = [
        (
            each.id,
            shown_name(each.person) if each.person else "?",
            each.client.name,
            day(each.used_at),
            day(each.expires_at),
            " ".join(each.scopes),
        )
        for each in found
    ]
    table([head, *rows])


async def _revoke(store: Store, words: Sequence[str]) -> None:
    """Access tokens die with their grant: at once here, within seconds in a server that runs."""
    if len(words) != 2 or words[0] not in REVOKED:
        raise UsageError("token revoke: say whose: user NAME, client ID or grant ID")
    if store.is_empty():
        raise Failed("nothing is granted")
    await REVOKED[words[0]](store, words[1])


async def _revoke_user(store: Store, name: str) -> None:
    """All that a person granted, and where they are signed in."""
    from toolgate.server.auth.grants import Grants
    from toolgate.server.state import people

    subject, issuer, known_as = await _person(store, name)
    await store.transact(lambda connection: people.end_logins(connection, issuer, known_as))
    ended = await Grants(store, {}).end_all(subject=subject)
    print(f"{counted(ended, 'grant')} of {name} ended; signed out everywhere")


async def _revoke_client(store: Store, id: str) -> None:
    from toolgate.server.auth.grants import Grants

    print(f"{counted(await Grants(store, {}).end_all(client=id), 'grant')} of {id} ended")


async def _revoke_grant(store: Store, id: str) -> None:
    from toolgate.server.auth.grants import Grants

    if not await Grants(store, {}).withdraw(None, id):
        raise Failed(f"there is no grant {id!r} that holds")
    print(f"{id} has ended")


async def _person(store: Store, name: str) -> tuple[str, str, str]:
    """Subject of ours, issuer, subject there. An account comes before somebody else's user of that name."""
    from toolgate.server.auth.accounts import Refused, normalised
    from toolgate.server.auth.principals import subject_of
    from toolgate.server.state import grants, people

    try:
        spelled = normalised(name)
    except Refused:
        spelled = ""

    def look(connection: "Connection") -> tuple[Any, list[Any]]:
        return people.account(connection, spelled), grants.people(connection, name)

    account, known = await store.transact(look)
    if account is not None:
        return subject_of(people.BUILT_IN, account.subject), people.BUILT_IN, account.subject
    if len(known) > 1:
        told = ", ".join(f"{row.subject} ({row.known_as} at {row.issuer})" for row in known)
        raise Failed(f"{name!r} is several people: name one by the first word of {told}")
    if not known:
        raise Failed(f"there is no user {name!r}")
    return known[0].subject, known[0].issuer, known[0].known_as


async def _rotate(state: Path, store: Store, words: Sequence[str]) -> None:
    from toolgate.server.auth.keys import Keys
    from toolgate.server.seal import Seal

    none(words)
    kid = await Keys(store, Seal(state / "keys" / "signing", None)).rotate()
    print(f"{kid} signs from now on; tokens of the key before are good until they expire")


def _configured(file: Path | None) -> "Mapping[str, Client]":
    from toolgate.server.auth import configured

    return configured.clients(file) if file is not None else {}


REVOKED = {"user": _revoke_user, "client": _revoke_client, "grant": _revoke_grant}
