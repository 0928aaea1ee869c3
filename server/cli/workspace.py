"""`toolgate workspace …`: what people have in their workspaces, put away and brought back by the operator, whether a
server runs beside or not."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.server.cli.user import Failed, day, none, one, run, shown, table
from toolgate.server.config.load import Config
from toolgate.server.state.store import Store
from toolgate.server.workspaces import folders
from toolgate.server.workspaces.folders import Folders, InUse
from toolgate.server.workspaces.last_used import NAME, Uses

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection

WHO = "a person's name, or what `workspace list` calls them"


def workspace(config: Config, words: Sequence[str]) -> int:
    """`toolgate workspace list | archive WHO | restore WHO | remove WHO`."""
    actions = {"list": _list, "archive": _archive, "restore": _restore, "remove": _remove}
    return run("workspace", actions, config, words)


async def _list(store: Store, words: Sequence[str]) -> None:
    none(words)
    held, uses, owners = Folders(store.folder), Uses(store.folder / "uses"), await _owners(store)
    here, archives = held.names(), held.archives()
    kept = ((name, folders.size(held.workspaces / name), _last_call(uses.known(name))) for name in here)
    away = ((path.name, path.stat().st_size, "archived") for path in archives)
    rows = [(shown(owners.get(name[:42], "?")), name, _sized(bytes), last) for name, bytes, last in (*kept, *away)]
    table([("NAME", "WORKSPACE", "SIZE", "LAST CALL"), *rows])


async def _archive(store: Store, words: Sequence[str]) -> None:
    held, name = Folders(store.folder), await _whose(store, words, "archive")
    with _free(held, name):
        aside = held.set_aside(name)
        archive = held.pack(aside)
        held.remove(aside)
    if archive is None:
        print(f"{name} had nothing in its workspace: nothing is archived")
        return
    text = f"your workspace was archived by the operator, and a new one begun: {archive}"
    Uses(store.folder / "uses").leave_word(name, text)
    print(f"archived: {archive.path}{archive.omission and f', {archive.omission}'}")


async def _restore(store: Store, words: Sequence[str]) -> None:
    """The archive of that name, or a person's last."""
    held = Folders(store.folder)
    found = _archive_called(held, words) or await _last_of(store, held, words)
    with held.alone():
        place = held.restore(found)
    print(f"restored: {place}; {found.name} is kept, until workspace remove {found.name}")


async def _remove(store: Store, words: Sequence[str]) -> None:
    """A workspace, or the archive of that name."""
    held = Folders(store.folder)
    archive = _archive_called(held, words)
    if archive is not None:
        archive.unlink()
        print(f"removed: {archive.name}")
        return
    name = await _whose(store, words, "remove")
    with _free(held, name):
        aside = held.set_aside(name)
        held.give_up(aside)
        held.remove(aside)
    Uses(store.folder / "uses").leave_word(name, "your workspace, with all in it, was removed by the operator")
    print(f"removed: the workspace of {name}")


@contextmanager
def _free(held: Folders, name: str) -> Generator[None]:
    """While nothing else happens to it. Raises InUse."""
    if held.is_served(name):
        raise InUse(
            f"a server that runs has the workspace of {name} in use: stop that first, or leave it to its policy"
        )
    with held.alone():
        yield


async def _owners(store: Store) -> dict[str, str]:
    """Name of a principal → the person's, where it is known who that is."""
    if store.is_empty():
        return {}
    from toolgate.server.auth.tokens.access_tokens import OURS
    from toolgate.server.principal import Principal
    from toolgate.server.state import grants

    def look(connection: "Connection") -> dict[str, str]:
        return {Principal(OURS, row.subject, "").name: row.name for row in grants.everybody(connection)}

    return await store.transact(look)


async def _whose(store: Store, words: Sequence[str], action: str) -> str:
    """The principal that is meant, who has a workspace."""
    held, found = Folders(store.folder), await _principal(store, one(words, f"workspace {action}: {WHO}"))
    if found not in held.names():
        raise Failed(f"{found} has no workspace")
    return found


async def _principal(store: Store, word: str) -> str:
    if NAME.fullmatch(word):
        return word
    found = sorted(principal for principal, name in (await _owners(store)).items() if name == word)
    if not found:
        raise Failed(f"nobody here is called {word!r}: workspace list says who has one")
    if len(found) > 1:
        raise Failed(f"{word!r} may be {', '.join(found)}: say which")
    return found[0]


async def _last_of(store: Store, held: Folders, words: Sequence[str]) -> Path:
    name = await _principal(store, one(words, f"workspace restore: {WHO}, or an archive's"))
    found = [path for path in held.archives() if path.name.startswith(name)]
    if not found:
        raise Failed(f"there is no archive of {name}")
    return found[-1]


def _archive_called(held: Folders, words: Sequence[str]) -> Path | None:
    return next((path for path in held.archives() if [path.name] == list(words)), None)


def _last_call(moment: float | None) -> str:
    return "unknown" if moment is None else day(moment)


def _sized(bytes: int) -> str:
    """As people read it."""
    for unit in ("B", "KiB", "MiB"):
        if bytes < 1024:
            return f"{bytes} {unit}"
        bytes //= 1024
    return f"{bytes} GiB"
