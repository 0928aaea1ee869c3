"""Keep the registry of what is served: the built-in parts, those of skills, and those of plugins."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from toolgate.server.app import build, builtin_tools
from toolgate.server.base import watch
from toolgate.server.base.asyncio_tasks import DelayedTasks
from toolgate.server.calls.policy.rule_check import Callers, RuleCheck
from toolgate.server.calls.policy.rules import Rules
from toolgate.server.config.feature_rows import FEATURES, ROOM
from toolgate.server.config.load import Config
from toolgate.tools.api.plugins.loader import LoadedPlugin, PluginIsolation, PluginLoader
from toolgate.tools.api.plugins.reload import PluginReloader
from toolgate.tools.api.registry import Part, Registry
from toolgate.tools.builtin.skills.skills import Skills

PLUGINS_AFTER = 0.1  # seconds after the start that plugins are watched: an edit is to be seen within a second
PLUGINS_DEBOUNCE = 240  # ms that changes of plugins are gathered for while they keep coming
PLUGINS_LOAD = 5.0  # seconds the first request may have to wait for plugins: clients give up on a slow start
SKILLS_AFTER = 1.0  # seconds after the start that skills are watched: the first answer does not need that

log = logging.getLogger("toolgate")


class ServedParts:
    """The parts of one server. `registry` is what is served now, and `on_change` is called with each later one.
    `parts` are built-in parts of features; each of `sources` returns the parts that it has beside a registry, and they
    are served after `refresh`. `bind(registry)` comes before a registry is served. Raises UsageError."""

    def __init__(
        self,
        config: Config,
        skills: Skills,
        parts: Sequence[Part],
        sources: Sequence[Callable[[Registry], Sequence[Part]]],
        bind: Callable[[Registry], None],
        on_change: Callable[[Registry], None],
    ) -> None:
        self._config = config
        self._skills = skills
        self._parts = parts
        self._sources = sources
        self._bind = bind
        self._on_change = on_change
        self._unserved = builtin_tools.find_unserved(config.tools)
        self._rule_check: RuleCheck | None = None  # from the start on
        self._modules = PluginLoader()
        self._isolation: PluginIsolation | None = None
        self.plugins = PluginReloader(
            build.plugin_folders(config),
            self._modules.load,
            self._load_isolated if _find_isolation() else None,
            isolate=config.isolate_plugins,
            on_change=self._announce,
        )
        self._take_skills()  # first: what comes later is a change, and seen as one
        self.registry = self._build_registry()

    async def load_plugins(self) -> None:
        """Load the plugins. What is built in is served whatever happens to them."""
        try:
            await self.plugins.reload(PLUGINS_LOAD)
        except Exception:  # a folder may be of no use
            log.exception("the plugin folders can't be looked at")

    def check_rules(self, rules: Rules, callers: Callers, mounts: Collection[str]) -> None:
        """Raise UsageError for rules that name nothing here. From now on a change that leads to some is logged."""
        find_names = partial(build.find_rule_names, self._config, callers, self.plugins, mounts)
        self._rule_check = RuleCheck(rules, find_names)
        self._rule_check.refuse(self.registry)

    def follow(self, jobs: DelayedTasks) -> None:
        """Follow the files of plugins and skills."""
        if self._config.plugins:
            roots, reload = self.plugins.roots, self.plugins.reload
            jobs.start(partial(watch.watch_folders, "plugin", roots, reload, PLUGINS_DEBOUNCE), PLUGINS_AFTER)
        jobs.start(partial(watch_skills, self._skills, self._skills_changed), SKILLS_AFTER)

    async def close(self) -> None:
        self.plugins.close()
        self._modules.close()
        if self._isolation is not None:
            await self._isolation.close()

    def _build_registry(self) -> Registry:
        registry = self.plugins.registry(self._built_in, self._skill_parts)
        registry = registry.without([*self._config.classic.hidden_tools, *self._unserved])
        for list_parts in self._sources:
            registry = Registry([*registry.parts, *list_parts(registry)])
        self._bind(registry)
        return registry

    def _take_skills(self) -> None:
        self._built_in = Registry([*builtin_tools.builtin_parts(self._skills), *self._parts])
        self._skill_parts = builtin_tools.skill_parts(self._skills)

    def _skills_changed(self) -> None:
        self._take_skills()
        self._announce()

    def refresh(self) -> None:
        """Serve what the sources have now."""
        self._announce()

    def _announce(self) -> None:
        self.registry = self._build_registry()
        self._on_change(self.registry)
        if self._rule_check is not None:
            self._rule_check.warn(self.registry)

    async def _load_isolated(self, file: Path) -> LoadedPlugin:
        """Load a plugin in a process of its own."""
        if self._isolation is None:
            config = self._config
            create_isolation: type[PluginIsolation] = resolve_name(f"{ROOM}.{_find_isolation()}")
            self._isolation = create_isolation(
                config.command_environment, verbose=config.verbose, style=config.log_format
            )
        return await self._isolation.load(file)


def _find_isolation() -> str:
    """Return the name of what loads plugins in processes of their own, or "" if no feature does."""
    return next((row.isolation for row in FEATURES if row.isolation), "")


async def watch_skills(skills: Skills, changed: Callable[[], None]) -> None:
    """Call `changed` after each change of a name or description in the catalogue, until cancelled.

    A change is any difference from the last `skills.describe`.
    """
    told = skills.last_described

    async def look() -> None:
        nonlocal told
        skills.is_watched = False
        catalogue = await asyncio.to_thread(skills.catalogue)
        now = {skill.name: skill.description for skill in catalogue.values()}
        skills.is_watched = True
        before, told = told, now
        if before is not None and now != before:
            changed()

    try:
        await watch.watch_folders("skill", skills.watch_roots, look)
    finally:
        skills.is_watched = False
