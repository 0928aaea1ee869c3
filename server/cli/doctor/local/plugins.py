"""Check plugins, skills and the rules about them, by loading them as a server would."""

import asyncio
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from toolgate.server.cli.doctor.report import CheckFailedError, CheckFinding, CheckNote, CheckSkippedError
from toolgate.server.config.load import Config

if TYPE_CHECKING:
    from toolgate.tools.api.registry import Part, Registry

LOAD_TIMEOUT = 30.0  # seconds for all plugins
RULE_OPTIONS = ("deny", "approve", "allow")


async def plugins(config: Config) -> CheckFinding:
    if not config.plugins:
        raise CheckSkippedError("none are configured")
    for folder in config.plugins:
        if not folder.is_dir():
            raise CheckFailedError(f"there is no folder {folder}", "correct --plugins")
    with _capture_warnings("toolgate.plugins") as told:
        parts = list((await _load_registry(config, [])).parts)
    if told:
        raise CheckFailedError("; ".join(told), "fix that file; the server starts without it")
    return f"{len(parts)} part{'' if len(parts) == 1 else 's'}"


async def skills(config: Config) -> CheckFinding:
    """Read the files of all skills, not the cache."""
    from toolgate.server import build as parts  # start-up
    from toolgate.tools.builtin.skills.skills import Skills

    with _capture_warnings("toolgate.tools.builtin.skills.skills") as told:
        found = await asyncio.to_thread(Skills(parts.skill_folders(config)).catalogue)
    counted = f"{len(found)} skill{'' if len(found) == 1 else 's'}"
    return (
        CheckNote(f"{counted}; {'; '.join(told)}", "fix that SKILL.md; the other skills are offered")
        if told
        else counted
    )


async def rules(config: Config) -> CheckFinding:
    """Find rules that match no tool: most likely a slip, and then they protect nothing."""
    given = [word for name in RULE_OPTIONS for word in getattr(config, name)]
    if not given:
        raise CheckSkippedError("none are configured")
    from toolgate.server import build as parts
    from toolgate.server import builtin_tools  # start-up
    from toolgate.tools.builtin.skills.skills import Skills

    with _capture_warnings("toolgate.plugins"):
        registry = await _load_registry(config, builtin_tools.builtin_parts(Skills([])))
    known, remedy = ", ".join(registry.tools), "name a tool as `toolgate tools` does, or a glob such as git_*"
    ruled = parts.build_rules(config)
    idle = [str(rule) for rule in ruled.find_unused(registry.tools)]
    if idle:
        raise CheckFailedError(f"{', '.join(idle)}: matches no tool; tools are {known}", remedy)
    return f"all {len(given)} match a tool" if len(given) > 1 else "it matches a tool"


async def _load_registry(config: Config, built_in: "Sequence[Part]") -> "Registry":
    from toolgate.server.plugins.loader import PluginLoader  # start-up
    from toolgate.server.plugins.reload import PluginReloader
    from toolgate.tools.api.registry import Registry

    modules = PluginLoader()
    loading = PluginReloader(config.plugins, modules.load, on_change=lambda: None)
    try:
        if config.plugins:
            await loading.reload(LOAD_TIMEOUT)
        return loading.registry(Registry(built_in))
    finally:
        loading.close()
        modules.close()


@contextmanager
def _capture_warnings(name: str) -> Generator[list[str]]:
    """Collect what this logger warns of, in place of the log."""
    keeping = _WarningHandler()
    logger = logging.getLogger(name)
    logger.addHandler(keeping)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield keeping.lines
    finally:
        logger.removeHandler(keeping)
        logger.propagate = propagate


class _WarningHandler(logging.Handler):
    """Keep the first line of each warning, and the exception with it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        raised = f" ({record.exc_info[1]})" if record.exc_info and record.exc_info[1] else ""
        self.lines.append(record.getMessage().splitlines()[0] + raised)
