"""Mount the servers in the file of another MCP client (`toolgate mount import`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import escape_unprintable
from toolgate.server.cli.terminal.output import format_count
from toolgate.server.config.files.config_file import ConfigFileError
from toolgate.server.config.files.toml_table import format_table
from toolgate.server.config.load import Config
from toolgate.server.features.mounts.commands.edit import edit_file
from toolgate.server.features.mounts.commands.listing import describe_server, hide_query
from toolgate.server.features.mounts.config.editing import TABLE, MountsFile
from toolgate.server.features.mounts.config.imports.notation import read_client_file
from toolgate.server.features.mounts.config.imports.plan import ImportedMount, ImportPlan, plan_import
from toolgate.server.features.mounts.config.imports.shapes import SHAPES
from toolgate.server.features.mounts.install.package_command import read_package_command

HIDDEN = "…"  # instead of a value that may be a key


def import_mounts(config: Config, *, file: str, dry_run: bool = False, replace: bool = False) -> int:
    """Add the servers in a client's file to the config file."""
    try:
        plan = plan_import(read_client_file(Path(file)), config.environment)
    except ConfigFileError as error:
        raise UsageError(f"mount import: {error}") from None
    if plan == ImportPlan():
        raise UsageError(f"mount import: {file} has no MCP servers: they stand in {', '.join(SHAPES)}")

    def add(mounts: MountsFile) -> str:
        known = mounts.mounts
        new = [mount for mount in plan.mounts if known.get(mount.name) != mount.rows]
        taken = [mount.name for mount in new if mount.name in known]
        if taken and not replace:
            names = ", ".join(taken)
            raise UsageError(f"mount import: {mounts.file} already has other mounts {names}: --replace replaces them")
        for mount in new:
            mounts.set_mount(mount.name, mount.rows)
        for line in _describe_plan(plan, dry_run=dry_run):
            print(escape_unprintable(line))
        if dry_run:
            return f"Dry run: nothing is written to {mounts.file}"
        already = f"{mounts.file} has {format_count(len(plan.mounts), 'mount')} of these already"
        return f"Added {format_count(len(new), 'mount')} to {mounts.file}" if new or not plan.mounts else already

    code = edit_file(config, "mount import", add, is_dry=dry_run)
    return code if plan.mounts else 1


def _describe_plan(plan: ImportPlan, *, dry_run: bool) -> list[str]:
    """Return lines about each server, without values that may be keys."""
    lines: list[str] = []
    for mount in plan.mounts:
        lines += _format_mount(mount) if dry_run else [f"{mount.name}: {describe_server(mount.rows)}"]
        lines += [f"  from {mount.origin!r}"] if mount.origin != mount.name else []
        lines += [f"  {note}" for note in mount.notes]
        if read_package_command(mount.rows.get("command", ""), mount.rows.get("args", [])) is not None:
            lines.append(f"  toolgate mount test {mount.name} installs its package; until then each start loads it")
    return [*lines, *(f"left out: {line}" for line in plan.left_out)]


def _format_mount(mount: ImportedMount) -> list[str]:
    return format_table((TABLE, mount.name), {key: _hide(key, value) for key, value in mount.rows.items()}).splitlines()


def _hide(key: str, value: Any) -> Any:
    """Return the value with what may be a key hidden; variables are none."""
    if key == "url":
        return hide_query(value)
    if isinstance(value, Mapping):
        return {name: text if "${" in text else HIDDEN for name, text in value.items()}
    return value
