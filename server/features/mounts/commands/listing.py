"""List the mounts of the config file, and their faults (`toolgate mount list`)."""

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from toolgate.server.base.text import escape_unprintable
from toolgate.server.cli.terminal.output import print_json_line, print_table
from toolgate.server.config.load import Config
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.config.table import MountList, read_own_mounts

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
    rows = [_format_row(mount, config.mounts[mount.name]) for mount in found.mounts]
    faulty = {fault.name: fault.code for fault in reversed(found.faults)}  # the first of each mount
    rows += [(escape_unprintable(name), code, "-", "-", "-") for name, code in reversed(faulty.items())]
    print_table([("NAME", "STATE", "SERVER", "PER", "SCOPE"), *rows])
    for fault in found.faults:
        print(f"{fault.code}: {escape_unprintable(fault.text)}")


def _format_row(mount: MountConfig, rows: Mapping[str, Any]) -> tuple[str, ...]:
    return mount.name, "ok", describe_server(rows), mount.per or "-", mount.scope


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


def _to_json(config: Config, found: MountList) -> Mapping[str, Any]:
    return {
        "file": str(config.config_path),
        "mounts": [_mount_to_json(mount, config.mounts[mount.name]) for mount in found.mounts],
        "faults": msgspec.to_builtins(found.faults),
    }


def _mount_to_json(mount: MountConfig, rows: Mapping[str, Any]) -> Mapping[str, Any]:
    written = {key: rows.get(key, default) for key, default in (("command", ""), ("args", []), ("cwd", None))}
    names = {"env": sorted(mount.env), "headers": sorted(mount.headers)}
    return {**msgspec.structs.asdict(mount), **written, **names, "url": hide_query(rows.get("url", ""))}
