"""The plugins in the plugin folders, as they are now: finds them, has them loaded when their content changes, and says
which of them are served. Knows nothing of how a file becomes parts, or of who is told.

Of each plugin the last good version is served. One that claims what is taken waits, whole, until it is free.
"""

import asyncio
import gc
import logging
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toolgate.server.plugins.discovery import ISOLATE, Content, content, files, roots, sources, wants_isolation
from toolgate.server.plugins.loader import Crowded, Hangs, Load, Loaded, LoadError
from toolgate.tools.api.errors import Collision
from toolgate.tools.api.registry import Part, Registry
from toolgate.tools.api.tool import Tool

log = logging.getLogger("toolgate.plugins")

PATIENCE = 0.3  # seconds a look waits for what is being loaded, so that what changed together is announced together
EMPTY = 0.5  # seconds a file that had content may be empty: editors empty it first, then write
RETRY = 5.0  # seconds after which a plugin is tried again that could not be loaded for others that hang
GARBAGE = 2.0  # seconds after which modules that are out of use are swept up

ENDLESS = f"an import that hangs ends only with a restart of the server; only `{ISOLATE}` in the file keeps it out"

Key = tuple[str, str]  # kind and key of a part


@dataclass(eq=False, slots=True)
class Plugin:
    """One plugin file. `serving` is the last good version, `waiting` a newer one that is not served yet."""

    file: Path
    content: Content = field(default_factory=lambda: Content(b""))
    serving: Loaded | None = None
    waiting: Loaded | None = None
    loading: "asyncio.Task[None] | None" = None
    emptied: float | None = None  # loop time
    told: str = ""  # in the log, of why `waiting` waits
    refused: str = ""  # in the log, of why it is to be loaded again

    def end(self) -> None:
        if self.loading is not None:
            self.loading.cancel()
        for loaded in (self.serving, self.waiting):
            if loaded is not None:
                loaded.retire()


class Plugins:
    """What is loaded now from `folders`. `changed` is called when `registry` gives another registry.

    `load` loads a plugin into this process, `isolated` into one of its own: where the file says `__isolate__ = True`,
    or all of them when `isolate`.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        load: Load,
        isolated: Load | None = None,
        *,
        isolate: bool = False,
        changed: Callable[[], None],
    ) -> None:
        self.folders = folders
        self._load_here = load
        self._load_isolated = isolated
        self._isolate = isolate
        self._changed = changed
        self._held: dict[Path, Plugin] = {}
        self._looking = asyncio.Lock()
        self._again: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._yielding: dict[Key, str] = {}  # what is left out for a plugin, with its line in the log
        self._complaints: list[str] = []

    async def look(self, patience: float = PATIENCE) -> None:
        """Load what has changed and drop what is gone. What takes longer than `patience` is served when it is done."""
        async with self._looking:
            found = await asyncio.to_thread(self._scan)
            gone = [self._held.pop(file) for file in list(self._held) if file not in found]
            self._held = {file: self._held.get(file) or Plugin(file) for file in found}
            for file, now in found.items():
                self._compare(self._held[file], now)
            loading = [plugin.loading for plugin in self._held.values() if plugin.loading is not None]
            late = (await asyncio.wait(loading, timeout=patience))[1] if loading else ()
            for task in late:
                task.add_done_callback(self._came_late)
            if gone or loading:
                self._changed()
            for plugin in gone:
                self._retire(plugin)

    def registry(self, built_in: Registry, yielding: Iterable[Part] = ()) -> Registry:
        """`built_in`, then those of `yielding` that no plugin claims, then the plugins, sorted by name. A plugin that
        claims what is taken is left out or stays what it was, and the log says so."""
        chosen = {plugin: plugin.waiting or plugin.serving for plugin in self._held.values()}
        owners: Mapping[Key, Part] = {(part.kind, part.key): part for part in built_in.parts}
        while (refused := _refused(chosen, owners)) is not None:
            plugin, part, holder = refused
            chosen[plugin] = plugin.serving if chosen[plugin] is not plugin.serving else None
            self._refuse(plugin, part, holder, chosen[plugin])
        for plugin, loaded in chosen.items():
            if loaded is plugin.waiting is not None:
                if plugin.serving is not None:
                    self._retire(plugin.serving)
                plugin.serving, plugin.waiting, plugin.told = plugin.waiting, None, ""
        parts = [part for loaded in chosen.values() if loaded is not None for part in loaded.parts]
        kept = self._kept(yielding, {_key(part): part for part in parts})
        return built_in.with_parts([*kept, *sorted(parts, key=lambda part: part.key)])

    def roots(self) -> list[Path]:
        """The folders to watch."""
        return roots(self.folders, lambda line: log.debug("%s", line))

    def close(self) -> None:
        """End what is being loaded, and all that is loaded."""
        for timer in [*self._timers, *filter(None, (self._sweep, self._retry))]:
            timer.cancel()
        for task in self._again:
            task.cancel()
        for plugin in self._held.values():
            plugin.end()
        self._held = {}

    # -- finding

    def _scan(self) -> dict[Path, Content]:
        complaints: list[str] = []
        found: dict[Path, Content] = {}
        for file in files(self.folders, complaints.append):
            try:
                found[file] = content(sources(file))
            except FileNotFoundError:  # gone since
                continue
            except OSError as error:  # loading it will say so
                found[file] = Content(repr(error).encode("utf-8", "backslashreplace"))
        for line in complaints:
            if line not in self._complaints:
                log.error("%s", line)
        self._complaints = complaints
        return found

    def _compare(self, plugin: Plugin, now: Content) -> None:
        if now.digest == plugin.content.digest:
            plugin.emptied = None
        elif self._is_settled(plugin, now):
            plugin.content = now
            if plugin.loading is not None:
                plugin.loading.cancel()
            plugin.loading = asyncio.create_task(self._load(plugin))

    def _is_settled(self, plugin: Plugin, now: Content) -> bool:
        """Whether no file has just been emptied, as editors do before they write."""
        loop = asyncio.get_running_loop()
        if not now.empty & plugin.content.full:
            plugin.emptied = None
        elif plugin.emptied is None:
            plugin.emptied = loop.time()
            self._look_in(EMPTY)
            return False
        elif loop.time() < plugin.emptied + EMPTY:
            return False
        return True

    def _look_in(self, seconds: float) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()

        def look() -> None:
            self._timers.discard(timer)
            task = loop.create_task(self.look())
            self._again.add(task)
            task.add_done_callback(self._again.discard)

        timer = loop.call_later(seconds + 0.01, look)  # the clock's steps may make it a little early
        self._timers.add(timer)
        return timer

    # -- loading

    async def _load(self, plugin: Plugin) -> None:
        """Have the newest version of a plugin loaded; it waits until `registry` is asked for."""
        try:
            loaded = await self._loaded(plugin.file)
        except Crowded as error:
            self._load_later(plugin, str(error))
        except Exception as error:
            cause = error.__cause__ if isinstance(error, LoadError) and error.__cause__ is not None else error
            still = "its last good version is served" if plugin.serving is not None else "it is left out"
            trace = None if isinstance(cause, (LoadError, Collision)) else cause
            why = cause if trace is None else "it failed to load"
            more = f"; {ENDLESS}" if isinstance(error, Hangs) else ""
            log.error("plugin %s: %s; %s%s", plugin.file, why, still, more, exc_info=trace)
        else:
            if plugin.waiting is not None:
                self._retire(plugin.waiting)
            plugin.waiting, plugin.told, plugin.refused = loaded, "", ""
            if not loaded.parts:
                log.warning("plugin %s declares no tool, prompt or resource", plugin.file)
        plugin.loading = None

    def _load_later(self, plugin: Plugin, why: str) -> None:
        plugin.content = Content(b"")  # so that it is another at the next look
        if why != plugin.refused:
            plugin.refused = why
            log.error("plugin %s: %s; it is tried again until it can be loaded; %s", plugin.file, why, ENDLESS)
        loop = asyncio.get_running_loop()
        if self._retry is None or self._retry.when() <= loop.time():
            self._retry = self._look_in(RETRY)

    async def _loaded(self, file: Path) -> Loaded:
        if not (self._isolate or await asyncio.to_thread(wants_isolation, file)):
            loaded = await self._load_here(file)
        elif self._load_isolated is not None:
            loaded = await self._load_isolated(file)
        else:
            raise LoadError("it wants to be isolated, which is not available in this version")
        try:
            Registry(loaded.parts)
        except Collision:
            self._retire(loaded)
            raise
        for part in loaded.parts:
            if isinstance(part, Tool):
                part.plugin = file.parent.name if file.name == "__init__.py" else file.stem
        return loaded

    def _came_late(self, loading: "asyncio.Task[None]") -> None:
        if not loading.cancelled():
            self._changed()

    # -- choosing

    def _refuse(self, plugin: Plugin, part: Part, holder: Part, instead: Loaded | None) -> None:
        what = part.kind.removesuffix("s")
        told = f"{what} {part.key!r} is declared twice: in {holder.source} and in {part.source}"
        if told != plugin.told:
            plugin.told = told
            still = "its last good version is served" if instead is not None else "it is left out"
            log.error("plugin %s: %s; %s", plugin.file, told, still)

    def _kept(self, yielding: Iterable[Part], owners: Mapping[Key, Part]) -> list[Part]:
        """Those that no plugin claims: what a skill adds may come from anybody who writes in the workspace, plugins
        are the operator's."""
        kept: list[Part] = []
        before, self._yielding = self._yielding, {}
        for part in yielding:
            holder = owners.get(_key(part))
            if holder is None:
                kept.append(part)
                continue
            what = part.kind.removesuffix("s")
            line = f"{what} {part.key!r} of {part.source} is left out: {holder.source} declares it, too"
            self._yielding[_key(part)] = line
            if before.get(_key(part)) != line:
                log.warning("%s", line)
        return kept

    def _retire(self, what: Loaded | Plugin) -> None:
        """What it was made of goes round in circles, and the collector seldom comes by here (App.serve_stdio)."""
        if isinstance(what, Plugin):
            what.end()
        else:
            what.retire()
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(GARBAGE, self._collect)

    def _collect(self) -> None:
        self._sweep = None
        for clear in getattr(typing, "_cleanups", ()):  # no word of its documentation; its caches hold classes for good
            clear()
        gc.collect()


def _refused(chosen: Mapping[Plugin, Loaded | None], built_in: Mapping[Key, Part]) -> tuple[Plugin, Part, Part] | None:
    """The first plugin that claims what is another's, what it claims, and who has it. What is served already has the
    better claim, then what comes first."""
    owners = dict(built_in)
    claims = [(plugin, part) for plugin, loaded in chosen.items() if loaded is not None for part in loaded.parts]
    senior = {plugin: _keys(plugin.serving) for plugin in chosen}
    for plugin, part in sorted(claims, key=lambda claim: _key(claim[1]) not in senior[claim[0]]):
        holder = owners.setdefault(_key(part), part)
        if holder is not part:
            return plugin, part, holder
    return None


def _key(part: Part) -> Key:
    return part.kind, part.key


def _keys(loaded: Loaded | None) -> set[Key]:
    return set() if loaded is None else {_key(part) for part in loaded.parts}
