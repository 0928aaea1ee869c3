"""Find people's files that earlier restores moved to `replaced-TIME`, and say how to move them back."""

import asyncio
import os
import shlex
from pathlib import Path

from toolgate.server.cli.doctor.report import CheckFinding, CheckNote, CheckSkippedError
from toolgate.server.config.load import Config
from toolgate.server.state.lock import REPLACED
from toolgate.server.workspaces.folders import SUFFIX

ROOM = 420  # characters of commands: a line has 600. The rest follows when these are done
SHOWN = 3  # names of folders


async def people(config: Config) -> CheckFinding:
    return await asyncio.to_thread(_check, config.state)


def _check(state: Path) -> CheckFinding:
    from toolgate.server.state.backup.restore import list_people  # start-up

    folders = sorted(state.glob(f"{REPLACED}*"))
    if not folders:
        raise CheckSkippedError("no restore replaced any")
    found = [f"{folder.name}/{name}" for folder in folders for name in list_people(folder)]
    if not found:
        return f"{len(folders)} earlier {'restore' if len(folders) == 1 else 'restores'} replaced no file of a person"
    commands = [f"cd {shlex.quote(str(state))}"]
    for source in found:
        command = _move_back(state, source)
        if len(commands) > 1 and sum(map(len, commands)) + len(command) > ROOM:
            break
        commands.append(command)
    rest = len(found) + 1 - len(commands)
    names = ", ".join(found[:SHOWN]) + (", …" if len(found) > SHOWN else "")
    return CheckNote(
        f"an earlier restore replaced files of people: {names}",
        f"to move them back, stop the server and run: {' && '.join(commands)}"
        + (f"; then run toolgate doctor again for {rest} more" if rest else ""),
    )


def _move_back(state: Path, source: str) -> str:
    """Return the command that moves files back, to be run in the state folder.

    What is in their place stays: a workspace gets the files as a folder in it, other places get them beside it.
    """
    aside, _, name = source.partition("/")
    place = state / name
    steps: list[str] = []
    if not place.parent.exists():
        steps.append(f"mkdir -m 700 {shlex.quote(str(place.parent.relative_to(state)))}")
    if place.is_dir() and not place.is_symlink() and not os.listdir(place):
        steps.append(f"rmdir {shlex.quote(name)}")
        target = name
    elif not os.path.lexists(place):
        target = name
    elif name.startswith("workspaces/"):
        target = f"{name}/{aside}"
    else:
        target = f"{name.removesuffix(SUFFIX)}.{aside}{SUFFIX if name.endswith(SUFFIX) else ''}"
    return " && ".join([*steps, f"mv {shlex.quote(source)} {shlex.quote(target)}"])
