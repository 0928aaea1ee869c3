"""Check the files of keys at a start: a damaged one is made again where that loses nothing of worth, else refused."""

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from toolgate.server.base.errors import StateError
from toolgate.server.base.text import describe_os_error
from toolgate.server.state.keys import file as key_file
from toolgate.tools.api.regular_file import remove_entry

# what a new key costs, by the name of the file
REMADE = {
    "questions": "people who are signing in start again",
    "request-state": "people are asked again",
    "event-cursor": "clients of events begin again, with the events from now on",
}
NEEDED = {
    "signing": "everybody signs in again",
    "event-secrets": "clients subscribe to events again",
    "mount-secrets": "secrets of mounts are set again",
}
OTHERS = {
    "audit": "move audit/ and keys/audit away together, and a new log begins",
    "audit-chains": "restore keys/ from a backup",
    "database": "restore keys/ from a backup; with a new key the nodes take this server for another one",
}

OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT)  # it is full: the key is whole, or is not made yet

log = logging.getLogger(__name__)


def settle_keys(folder: Path, *, signs_in: bool) -> None:
    """Make damaged keys again where that is harmless. Raises StateError for one that a server can't do without.

    signs_in: whether the server needs the keys of people's sign-ins
    """
    for name, loss in REMADE.items():
        for file, problem in find_damage(folder, name):
            log.warning("%s, and is made again: %s", problem, loss)
            _remove(file, problem)
    for name in NEEDED if signs_in else ():
        for _, problem in find_damage(folder, name):
            raise StateError(f"{problem}: {describe_remedy(name)}")


def find_damage(folder: Path, name: str) -> Iterator[tuple[Path, str]]:
    """Yield the files of a key that are damaged, each with what is wrong, such as `…/keys/signing is damaged`."""
    for file in (folder / name, *sorted(folder.glob(f"{name}.before-*"))):
        if not os.path.lexists(file):
            continue
        try:
            key_file.read_key(file)
        except FileNotFoundError:
            yield file, f"{file} is a link to nothing"
        except OSError as error:
            yield file, f"{file} is damaged" if error.strerror is None else f"{file}: {error.strerror.lower()}"


def describe_remedy(name: str) -> str:
    """Return what to do about a damaged key."""
    if name in REMADE:
        return f"the next start makes a new key: {REMADE[name]}"
    if name in NEEDED:
        restore = "restore keys/ from the backup that state.db is from; or remove it, and a new key is made"
        return f"{restore}: {NEEDED[name]}"
    return OTHERS[name]


def describe_fault(error: OSError, name: str) -> str:
    """Return why a key, or what it is for, can't be opened, and what to do."""
    remedy = "free some space" if error.errno in OF_THE_DISK else describe_remedy(name)
    return f"{describe_os_error(error)}: {remedy}"


def _remove(file: Path, problem: str) -> None:
    try:
        remove_entry(file)
    except OSError as error:
        raise StateError(f"{problem}, and can't be removed: {error.strerror}") from None
