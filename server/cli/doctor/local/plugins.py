"""What a server of these options would offer: plugins, skills, and the rules that are about them. All of it is loaded,
as the server would."""

import asyncio
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from toolgate.server.cli.doctor.report import Broken, Finding, Note, Skipped
from toolgate.server.config.load import Config

if TYPE_CHECKING:
    from toolgate.tools.api.registry import Part, Registry

LOAD = 30.0  # seconds for all plugins
RULES = ("deny", "approve", "allow")


async def plugins(config: Config) -> Finding:
    if not config.plugins:
        raise Skipped("none are configured")
    for folder in config.plugins:
        if not folder.is_dir():
            raise Broken(f"there is no folder {folder}", "--plugins names it")
    with _complaints("toolgate.plugins") as told:
        parts = list((await _with_plugins(config, [])).parts)
    if told:
        raise Broken("; ".join(told), "mend that file; the server goes on without it")
    return f"{len(parts)} part{'' if len(parts) == 1 else 's'}"


async def skills(config: Config) -> Finding:
    """As their files are: the cache of what was read before is not asked."""
    from toolgate.server import build as parts  # start-up
    from toolgate.tools.builtin.skills.skills import Skills

    with _complaints("toolgate.tools.builtin.skills.skills") as told:
        found = await asyncio.to_thread(Skills(parts.skill_folders(config)).catalogue)
    counted = f"{len(found)} skill{'' if len(found) == 1 else 's'}"
    return Note(f"{counted}; {'; '.join(told)}", "mend that SKILL.md; the others are offered") if told else counted


async def rules(config: Config) -> Finding:
    """A rule that is about nothing there is keeps nobody from anything: most likely there is a slip in it."""
    given = [word for name in RULES for word in getattr(config, name)]
    if not given:
        raise Skipped("there are none")
    from toolgate.server import build as parts
    from toolgate.server import builtin_tools  # start-up
    from toolgate.tools.builtin.skills.skills import Skills

    with _complaints("toolgate.plugins"):
        registry = await _with_plugins(config, builtin_tools.parts(Skills([])))
    known, remedy = ", ".join(registry.tools), "name a tool as `toolgate tools` does, or a glob such as git_*"
    ruled = parts.ruled(config)
    idle = [str(rule) for rule in ruled.idle(registry.tools)]
    if idle:
        raise Broken(f"{', '.join(idle)}: about no tool there is, which are {known}", remedy)
    return f"each of {len(given)} is about a tool there is" if len(given) > 1 else "it is about a tool there is"


async def _with_plugins(config: Config, built_in: "Sequence[Part]") -> "Registry":
    from toolgate.server.plugins.loader import Modules  # start-up
    from toolgate.server.plugins.reload import Plugins
    from toolgate.tools.api.registry import Registry

    modules = Modules()
    loading = Plugins(config.plugins, modules.load, changed=lambda: None)
    try:
        if config.plugins:
            await loading.look(LOAD)
        return loading.registry(Registry(built_in))
    finally:
        loading.close()
        modules.close()


@contextmanager
def _complaints(name: str) -> Generator[list[str]]:
    """What is logged there, in place of the log."""
    keeping = _Keeping()
    logger = logging.getLogger(name)
    logger.addHandler(keeping)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield keeping.lines
    finally:
        logger.removeHandler(keeping)
        logger.propagate = propagate


class _Keeping(logging.Handler):
    """Keeps the first line of each complaint, and what was raised."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        raised = f" ({record.exc_info[1]})" if record.exc_info and record.exc_info[1] else ""
        self.lines.append(record.getMessage().splitlines()[0] + raised)
