"""List the mounts of the config file, and their faults (`toolgate mount list`)."""

import asyncio
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from toolgate.server.base.text import escape_unprintable
from toolgate.server.cli.terminal.output import print_json_line, print_table
from toolgate.server.config.load import Config
from toolgate.server.features.mounts.commands.stored_pins import count_held, describe_pins, fetch_pins
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.config.secret_references import find_names
from toolgate.server.features.mounts.config.table import MountList, read_own_mounts
from toolgate.server.features.mounts.control import MountControl
from toolgate.server.features.mounts.mount.mount_standing import MountState

MAX_SERVER = 60  # characters of a command in the table


def list_mounts(config: Config, *, json: bool = False) -> int:
    """Print the mounts: with `json` as one object, without values of variables and headers."""
    found = read_own_mounts(config)
    if json:
        print_json_line(_to_json(config, found))
    elif found == MountList():
        print(f"{config.config_path} mounts no server: toolgate mount add adds one")
    else:
        _print_mounts(config, found)
    return 0


def _print_mounts(config: Config, found: MountList) -> None:
    states, pins = read_states(config), asyncio.run(fetch_pins(config, found.mounts))
    rows = [_format_row(mount, config.mounts[mount.name], states.get(mount.name)) for mount in found.mounts]
    faulty = {fault.name: fault.code for fault in reversed(found.faults)}  # the first of each mount
    rows += [(escape_unprintable(name), code, "-", "-", "-") for name, code in reversed(faulty.items())]
    print_table([("NAME", "STATE", "SERVER", "PER", "SCOPE"), *rows])
    for mount in found.mounts:
        state = states.get(mount.name)
        if state is not None and state.code:
            since = datetime.fromtimestamp(state.since).astimezone().isoformat(timespec="seconds")
            print(f"{mount.name} since {since}: {escape_unprintable(state.error)}")
    for line in _describe_renamed(config, found):
        print(escape_unprintable(line))
    prefixes = {mount.name: mount.prefix for mount in found.mounts}
    for mount in found.mounts:
        for line in describe_pins(mount, pins, prefixes):
            print(line)
    for fault in found.faults:
        print(f"{fault.code}: {escape_unprintable(fault.text)}")


def _describe_renamed(config: Config, found: MountList) -> Iterator[str]:
    """Yield the tools whose names here are others than the prefix and their own: cut, or with a hash."""
    names = read_tool_names(config)
    for mount in found.mounts:
        for shown, original in names.get(mount.name, {}).items():
            if shown != mount.prefix + original:
                yield f"{mount.name}: {shown} is its tool {original!r}"


def read_tool_names(config: Config) -> Mapping[str, Mapping[str, str]]:
    """Return what the tools of each mount are called in the server of the state that runs → their own names."""
    statuses = MountControl(config.state).read_statuses()
    return {name: tools for status in statuses for name, tools in status.names.items()}


def read_states(config: Config) -> Mapping[str, MountState]:
    """Return how the mounts are in the server of the state that runs, the failed ones if several do."""
    statuses = MountControl(config.state).read_statuses()
    states = [(name, state) for status in statuses for name, state in status.states.items()]
    return dict(sorted(states, key=lambda row: bool(row[1].code)))


def _format_row(mount: MountConfig, rows: Mapping[str, Any], state: MountState | None) -> tuple[str, ...]:
    return (
        mount.name,
        "ok" if state is None else state.code or state.status,
        describe_server(rows),
        mount.per or "-",
        mount.scope,
    )


def describe_server(rows: Mapping[str, Any]) -> str:
    """Return a mount's command or URL as the file has it: without the values of variables."""
    url = rows.get("url")
    text = hide_query(url) if url else shlex.join((rows["command"], *rows.get("args", ())))
    text = escape_unprintable(text)
    return text if len(text) <= MAX_SERVER else text[: MAX_SERVER - 1] + "…"


def hide_query(url: str) -> str:
    """Return the URL without its query, which may be a key."""
    start, mark, _ = url.partition("?")
    return f"{start}?…" if mark else start


def hide_value(text: str) -> str:
    """Return the names of the secrets in a value, without what else it may be."""
    return " ".join(f"${{secret:{name}}}" for name in sorted(find_names([text]))) or ("…" if text else "")


def _to_json(config: Config, found: MountList) -> Mapping[str, Any]:
    return {
        "file": str(config.config_path),
        "mounts": [_mount_to_json(mount, config.mounts[mount.name]) for mount in found.mounts],
        "states": msgspec.to_builtins(read_states(config)),
        "tools": read_tool_names(config),
        "held": count_held(asyncio.run(fetch_pins(config, found.mounts))),
        "faults": msgspec.to_builtins(found.faults),
    }


def _mount_to_json(mount: MountConfig, rows: Mapping[str, Any]) -> Mapping[str, Any]:
    written = {key: rows.get(key, default) for key, default in (("command", ""), ("args", []), ("cwd", None))}
    names: dict[str, Any] = {"env": sorted(mount.env), "headers": sorted(mount.headers)}
    names["limits"] = msgspec.structs.asdict(mount.limits)
    names["client_secret"] = hide_value(rows.get("client_secret", ""))
    hidden = {key: hide_query(rows.get(key, "")) for key in ("url", "token_url")}
    return {**msgspec.structs.asdict(mount), **written, **names, **hidden}
