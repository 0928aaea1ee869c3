"""Archive, restore and remove people's workspaces (`toolgate workspace …`), on the state of a server.

WHO is a person's name, or the name of a workspace from `toolgate workspace list`. A feature may know of workspaces that
are elsewhere, or that this state has no names of people.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from toolgate.server.app.features import list_state_parts
from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.server.base.text import escape_unprintable
from toolgate.server.cli.commands.store_command import CommandError, find_elsewhere, read_people, with_store
from toolgate.server.cli.terminal.output import format_time, print_table
from toolgate.server.config.load import Config
from toolgate.server.state.store import Store
from toolgate.server.workspaces import folders
from toolgate.server.workspaces.folders import PrincipalFolders, WorkspaceInUseError
from toolgate.server.workspaces.last_used import PRINCIPAL_NAME, LastUsed


@with_store(upgrades=False)
async def list_workspaces(store: Store, _config: Config) -> None:
    """Print workspaces and archives, with their owners and sizes."""
    held, uses, owners = PrincipalFolders(store.folder), LastUsed(store.folder / "uses"), await read_people(store)
    found: list[tuple[str, int, str]] = []
    for name in held.list_names():
        last = uses.find_last_call(name)
        shown = "unknown" if last is None else format_time(last)
        found.append((name, folders.disk_usage(held.workspaces / name), shown))
    found += [(path.name, path.stat().st_size, "archived") for path in held.list_archives()]
    rows = [(escape_unprintable(owners.get(name[:42], "?")), name, format_size(size), at) for name, size, at in found]
    here, there = {name for name, _, _ in found}, await find_elsewhere(store)
    elsewhere = [(name, place) for name, place in sorted(there.items()) if name not in here]
    rows += [(escape_unprintable(owners.get(name, "?")), name, "", where.place) for name, where in elsewhere]
    print_table([("NAME", "WORKSPACE", "SIZE", "LAST CALL"), *rows])
    for hint in dict.fromkeys(where.hint for _, where in elsewhere):
        print(hint, file=sys.stderr)


@with_store()
async def archive(store: Store, _config: Config, *, who: str) -> None:
    """Archive a workspace and begin a new one."""
    held, name = PrincipalFolders(store.folder), await _find_workspace(store, who)
    with _exclusive(held, name):
        aside = held.set_aside(name)
        archive = held.archive_workspace(aside)
        held.remove(aside)
    if archive is None:
        print(f"{name} had nothing in its workspace: nothing is archived")
        return
    text = f"your workspace was archived by the operator, and you have a new one: {archive}"
    LastUsed(store.folder / "uses").leave_message(name, text)
    print(f"archived: {archive.path}{archive.omission and f', {archive.omission}'}")


@with_store()
async def restore(store: Store, _config: Config, *, who: str) -> None:
    """Restore the named archive, or a person's newest."""
    held = PrincipalFolders(store.folder)
    found = _find_archive(held, who)
    if found is None:
        name = await find_principal(store, who)
        archives = [path for path in held.list_archives() if path.name.startswith(name)]
        if not archives:
            raise CommandError(await _describe_place(store, name) or f"there is no archive of {name}")
        found = archives[-1]
    with held.hold_lock():
        place = held.restore(found)
    print(f"restored: {place}; {found.name} is kept, until workspace remove {found.name}")


@with_store()
async def remove(store: Store, _config: Config, *, who: str) -> None:
    """Remove a workspace, or the named archive."""
    held = PrincipalFolders(store.folder)
    archive = _find_archive(held, who)
    if archive is not None:
        archive.unlink()
        print(f"removed: {archive.name}")
        return
    name = await _find_workspace(store, who)
    with _exclusive(held, name):
        aside = held.set_aside(name)
        held.mark_for_removal(aside)
        held.remove(aside)
    LastUsed(store.folder / "uses").leave_message(name, "your workspace and all its files were removed by the operator")
    print(f"removed: the workspace of {name}")


@contextmanager
def _exclusive(held: PrincipalFolders, name: str) -> Generator[None]:
    """Hold the lock on all workspaces. Raises WorkspaceInUseError if a server uses this one."""
    if held.is_served(name):
        remedy = "stop it first, or leave the workspace to its policy"
        raise WorkspaceInUseError(f"a running server or node uses the workspace of {name}: {remedy}")
    with held.hold_lock():
        yield


async def _find_workspace(store: Store, who: str) -> str:
    """Return the principal with the workspace that `who` names. Raises CommandError."""
    held, found = PrincipalFolders(store.folder), await find_principal(store, who)
    if found not in held.list_names():
        raise CommandError(await _describe_place(store, found) or f"{found} has no workspace")
    if found not in held.list_removable():
        folder = held.workspaces / found
        raise CommandError(
            f"{folder} belongs to the user without sign-in: stop the server or node, and move it by hand"
        )
    return found


async def _describe_place(store: Store, name: str) -> str:
    """Return where else the principal's workspace is and what to do, or ""."""
    found = (await find_elsewhere(store)).get(name)
    return found.remedy if found is not None else ""


async def find_principal(store: Store, word: str) -> str:
    """Return the principal that a person's name, or a principal, means. Raises CommandError."""
    if PRINCIPAL_NAME.fullmatch(word):
        return word
    found = sorted(principal for principal, name in (await read_people(store)).items() if name == word)
    found += [LOCAL_NAME] if word == LOCAL_NAME else []
    if not found:
        reasons = filter(None, (part.explain_no_people(store.folder) for part in list_state_parts()))
        if (why := "; ".join(reasons)) != "":
            raise CommandError(f"{word!r}: {why}")
        raise CommandError(f"there is no person {word!r}: see toolgate workspace list")
    if len(found) > 1:
        raise CommandError(f"{word!r} may be {', '.join(found)}: say which one")
    return found[0]


def _find_archive(held: PrincipalFolders, name: str) -> Path | None:
    return next((path for path in held.list_archives() if path.name == name), None)


def format_size(bytes: int) -> str:
    """Return bytes as people read them: 3 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if bytes < 1024:
            return f"{bytes} {unit}"
        bytes //= 1024
    return f"{bytes} GiB"
