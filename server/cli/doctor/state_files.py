"""Check each file of the state folder: that it is one, that it can be read, and that it holds what it should.

The database and the audit log have checks of their own. People's files are not looked at.
"""

import asyncio
import re
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from toolgate.server.app.features import list_state_parts
from toolgate.server.app.state_damage import StateDamage, check_file, list_folder, probe_file
from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckNote, CheckSkippedError
from toolgate.server.config.load import Config
from toolgate.server.state.keys import check as key_check
from toolgate.tools.api.regular_file import read_regular
from toolgate.tools.api.text.json_text import decode_json
from toolgate.tools.workspace.output.run_record import Run
from toolgate.tools.workspace.output.spool import LAST_ID, MAX_TASK, SHARED

LISTED_LOST = "the server lists its run as lost, and its output can still be read"
SHOWN = 3  # findings in a line
MOST = 1_000  # findings that are counted
MOST_PEOPLE = 2_000  # whose commands are looked at: each may have 50, and doctor is to answer within seconds
MAX_COUNT = 64  # bytes of a file with a number
COUNT = re.compile(rb"\s*[0-9]{0,20}\s*")


async def check(config: Config) -> CheckFinding:
    return await asyncio.to_thread(_check, config.state)


def _check(state: Path) -> CheckFinding:
    if not state.is_dir():
        raise CheckSkippedError("none yet")
    found = list(islice(find_damage(state), MOST))
    if not found:
        people = len(list_folder(state / "spool"))
        limited = f"; of {people:,} people, the commands of {MOST_PEOPLE:,} were looked at"
        return "each can be read" + (limited if people > MOST_PEOPLE else "")
    found.sort(key=lambda damage: damage.heals)  # first what needs a hand
    shown = "; ".join(f"{damage.path.relative_to(state)}: {damage.problem}" for damage in found[:SHOWN])
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    finding, remedy = f"damaged: {shown}{more}", found[0].remedy
    if found[0].heals:
        return CheckNote(finding, remedy)
    raise CheckError(finding, remedy)


def find_damage(state: Path) -> Iterator[StateDamage]:
    """Yield the damaged files of a state folder. It opens no file that is not one, and waits for nothing."""
    yield from _find_keys(state / "keys")
    for folder in ("flags", "uses", "processes"):
        for path in list_folder(state / folder):
            yield from probe_file(path)
    for path in state.glob("state.db.before-*"):
        yield from probe_file(path, "remove it: it is the copy from before an upgrade", heals=False)
    yield from _find_single(state)
    for part in list_state_parts():
        yield from part.find_damage(state)
    for spool in list_folder(state / "spool")[:MOST_PEOPLE]:
        if spool.is_dir() and not spool.is_symlink():
            yield from _find_runs(spool)


def _find_keys(folder: Path) -> Iterator[StateDamage]:
    names = (*key_check.REMADE, *key_check.NEEDED, *key_check.OTHERS)
    for name in names:
        for file, problem in key_check.find_damage(folder, name):
            problem = problem.removeprefix(f"{file}").removeprefix(":").removeprefix(" is").strip()
            yield StateDamage(file, problem, key_check.describe_remedy(name), name in key_check.REMADE)
    for file in list_folder(folder):
        if file.name.partition(".before-")[0] not in names:
            yield from probe_file(file, "restore keys/ from a backup, or remove it", heals=False)


def _find_single(state: Path) -> Iterator[StateDamage]:
    """Yield damage of the files of which a state has one."""
    from toolgate.tools.builtin.skills.frontmatter import SkillHead

    cache = state / "cache" / "skills.json"
    yield from check_file(cache, lambda: decode_json(read_regular(cache), dict[str, SkillHead]))
    yield from _read_count(state / "workspaces" / ".users")
    yield from probe_file(state / "leaving" / ".lock")


def _find_runs(spool: Path) -> Iterator[StateDamage]:
    yield from _read_count(spool / LAST_ID)
    for kind in SHARED:
        for shared in spool.glob(f"*{kind}"):
            yield from probe_file(shared)
    for run in list_folder(spool):
        if run.name.isdecimal() and run.is_dir() and not run.is_symlink():
            record = run / "task.json"
            yield from check_file(record, partial(_decode_run, record), LISTED_LOST)
            yield from probe_file(run / "output", "its output can't be read: remove it", heals=False)


def _decode_run(record: Path) -> Run:
    return decode_json(read_regular(record, MAX_TASK), Run)


def _read_count(path: Path) -> Iterator[StateDamage]:
    def read() -> None:
        if not COUNT.fullmatch(read_regular(path, MAX_COUNT)):
            raise ValueError("it holds no number")

    yield from check_file(path, read)
