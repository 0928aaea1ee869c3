"""Print what has happened to a mount in the running servers of the state (`toolgate mount logs`)."""

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from toolgate.server.base.text import escape_unprintable
from toolgate.server.cli.commands.store_command import read_names
from toolgate.server.cli.terminal.output import print_json_line
from toolgate.server.config.load import Config
from toolgate.server.features.mounts.commands.file_hints import list_file_hints
from toolgate.server.features.mounts.commands.wishes import make_wish
from toolgate.server.features.mounts.config.table import read_own_mounts
from toolgate.server.features.mounts.control import MountControl
from toolgate.server.features.mounts.mount.mount_standing import MountRecord
from toolgate.tools.api.text.json_text import JsonError


def print_logs(config: Config, *, name: str, json: bool = False) -> int:
    """Print the last turns of a mount, and the last lines that its running programs wrote to standard error. With
    `json` one line for each server. Returns 1 if no server answers."""
    control = MountControl(config.state)
    pids = make_wish(control, "logs", name)
    try:
        records = [control.read_answer(pid, name) for pid in pids]
    except (OSError, JsonError) as error:  # the mount, or the server, has just ended
        print(f"toolgate: mount logs: the answer can't be read: {error}", file=sys.stderr)
        return 1
    if json:
        for record in records:
            print_json_line(msgspec.to_builtins(record))
    elif records:
        people = read_names(config)[0]
        for record in records:
            _print_record(record, people)
        _print_hints(config, name, records)
    return 0 if records else 1


def _print_record(record: MountRecord, people: Mapping[str, str]) -> None:
    for turn in record.turns:
        when = datetime.fromtimestamp(turn.time).astimezone().isoformat(timespec="seconds")
        print(f"{when} {_name(turn.principal, people)}: {escape_unprintable(turn.text)}")
    for each in record.running:
        rubbish = f", {each.rubbish} messages that could not be read" if each.rubbish else ""
        print(f"running for {_name(each.principal, people)}{rubbish}")
        for line in each.said.splitlines():
            print(f"  {escape_unprintable(line)}")


def _print_hints(config: Config, name: str, records: Sequence[MountRecord]) -> None:
    mount = next((each for each in read_own_mounts(config).mounts if each.name == name), None)
    said = [
        text for each in records for text in (*(turn.text for turn in each.turns), *(run.said for run in each.running))
    ]
    for line in list_file_hints(config, mount, "\n".join(said)) if mount is not None else ():
        print(f"hint: {line}, if it is to use that")


def _name(principal: str, people: Mapping[str, str]) -> str:
    return people.get(principal, principal[:14]) or "all"
