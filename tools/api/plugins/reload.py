"""Keep plugins loaded as their files change, and choose which of them are served.

The last good version of each plugin is served. A plugin whose part names are taken waits as a whole until they are
free.
"""

import asyncio
import gc
import logging
import traceback
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from toolgate.tools.api.errors import CollisionError
from toolgate.tools.api.event import EventType
from toolgate.tools.api.plugins import discovery
from toolgate.tools.api.plugins.discovery import ISOLATE, PluginContent
from toolgate.tools.api.plugins.loader import (
    LoadedPlugin,
    PluginHangError,
    PluginLoad,
    PluginLoadError,
    TooManyLoadsError,
)
from toolgate.tools.api.registry import Part, Registry
from toolgate.tools.api.tool import Tool

log = logging.getLogger("toolgate.plugins")

PATIENCE = 0.3  # seconds a look waits for loads, so that simultaneous changes are announced together
EMPTY = 0.5  # seconds a file may be empty: editors empty it first, then write
RETRY = 5.0  # seconds before a retry of a plugin that could not be loaded because others hang
GARBAGE = 2.0  # seconds before unused modules are collected

ENDLESS = f"an import that hangs ends only with a restart of the server; only `{ISOLATE}` in the file keeps it out"

Key = tuple[str, str]  # kind and key of a part


class PluginFile(msgspec.Struct, eq=False):
    """One plugin file. `serving` is the last good version, `pending` a newer one not served yet."""

    file: Path
    content: PluginContent = msgspec.field(default_factory=lambda: PluginContent(b""))
    serving: LoadedPlugin | None = None
    pending: LoadedPlugin | None = None
    loading: "asyncio.Task[None] | None" = None
    emptied_at: float | None = None  # loop time
    logged_conflict: str = ""  # last logged reason why `waiting` waits
    logged_refusal: str = ""  # last logged reason why it must be loaded again

    def end(self) -> None:
        if self.loading is not None:
            self.loading.cancel()
        for loaded in (self.serving, self.pending):
            if loaded is not None:
                loaded.retire()


class PluginReloader:
    """The plugins loaded from `folders`. `on_change` is called when `registry` returns another registry.

    `load` loads a plugin into this process, `isolated` into its own: if the file says `__isolate__ = True`, or for all
    of them with `isolate`.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        load: PluginLoad,
        load_isolated: PluginLoad | None = None,
        *,
        isolate: bool = False,
        on_change: Callable[[], None],
    ) -> None:
        self.folders = folders
        self._load_here = load
        self._load_isolated = load_isolated
        self._isolate = isolate
        self._changed = on_change
        self._plugins: dict[Path, PluginFile] = {}
        self._lock = asyncio.Lock()
        self._reloads: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._left_out: dict[Key, str] = {}  # parts left out for a plugin, with their log lines
        self._complaints: list[str] = []

    async def reload(self, patience: float = PATIENCE) -> None:
        """Load changed plugins and drop removed ones. A load that takes longer than `patience` is served when done."""
        async with self._lock:
            found = await asyncio.to_thread(self._scan)
            gone = [self._plugins.pop(file) for file in list(self._plugins) if file not in found]
            self._plugins = {file: self._plugins.get(file) or PluginFile(file) for file in found}
            for file, now in found.items():
                self._compare(self._plugins[file], now)
            loading = [plugin.loading for plugin in self._plugins.values() if plugin.loading is not None]
            late = (await asyncio.wait(loading, timeout=patience))[1] if loading else ()
            for task in late:
                task.add_done_callback(self._announce_late)
            if gone or loading:
                self._changed()
            for plugin in gone:
                self._retire(plugin)

    def registry(self, built_in: Registry, yielding: Iterable[Part] = ()) -> Registry:
        """Return `built_in`, then those of `yielding` that no plugin replaces, then the plugins, sorted by name.

        A plugin with a taken name is left out, or stays at its last good version; the log says so.
        """
        chosen = {plugin: plugin.pending or plugin.serving for plugin in self._plugins.values()}
        owners: Mapping[Key, Part] = {(part.kind, part.key): part for part in built_in.parts}
        while (refused := _find_conflict(chosen, owners)) is not None:
            plugin, part, holder = refused
            chosen[plugin] = plugin.serving if chosen[plugin] is not plugin.serving else None
            self._leave_out(plugin, part, holder, chosen[plugin])
        for plugin, loaded in chosen.items():
            if loaded is plugin.pending is not None:
                if plugin.serving is not None:
                    self._retire(plugin.serving)
                plugin.serving, plugin.pending, plugin.logged_conflict = plugin.pending, None, ""
        parts = [part for loaded in chosen.values() if loaded is not None for part in loaded.parts]
        kept = self._filter_yielding(yielding, {_key(part): part for part in parts})
        return Registry([*built_in.parts, *kept, *sorted(parts, key=lambda part: part.key)])

    def roots(self) -> list[Path]:
        """Return the folders to watch."""
        return discovery.find_watched_folders(self.folders, lambda line: log.debug("%s", line))

    @property
    def names(self) -> list[str]:
        """Return the names of the plugin files, also of broken ones."""
        return [_plugin_name(file) for file in self._plugins]

    @property
    def is_complete(self) -> bool:
        """Return whether each plugin file is loaded and served."""
        return all(plugin.serving is not None for plugin in self._plugins.values())

    def close(self) -> None:
        """End all loads, and unload all plugins."""
        for timer in [*self._timers, *filter(None, (self._sweep, self._retry))]:
            timer.cancel()
        for task in self._reloads:
            task.cancel()
        for plugin in self._plugins.values():
            plugin.end()
        self._plugins = {}

    # -- finding files

    def _scan(self) -> dict[Path, PluginContent]:
        complaints: list[str] = []
        found: dict[Path, PluginContent] = {}
        for file in discovery.find_plugins(self.folders, complaints.append):
            try:
                found[file] = discovery.hash_sources(discovery.read_sources(file))
            except FileNotFoundError:  # removed meanwhile
                continue
            except OSError as error:  # loading it will report this
                found[file] = PluginContent(repr(error).encode("utf-8", "backslashreplace"))
        for line in complaints:
            if line not in self._complaints:
                log.error("%s", line)
        self._complaints = complaints
        return found

    def _compare(self, plugin: PluginFile, now: PluginContent) -> None:
        if now.digest == plugin.content.digest:
            plugin.emptied_at = None
        elif self._is_settled(plugin, now):
            plugin.content = now
            if plugin.loading is not None:
                plugin.loading.cancel()
            plugin.loading = asyncio.create_task(self._load(plugin))

    def _is_settled(self, plugin: PluginFile, now: PluginContent) -> bool:
        """Return whether no file was emptied just now, as editors do before they write."""
        loop = asyncio.get_running_loop()
        if not now.empty & plugin.content.full:
            plugin.emptied_at = None
        elif plugin.emptied_at is None:
            plugin.emptied_at = loop.time()
            self._reload_after(EMPTY)
            return False
        elif loop.time() < plugin.emptied_at + EMPTY:
            return False
        return True

    def _reload_after(self, seconds: float) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()

        def look() -> None:
            self._timers.discard(timer)
            task = loop.create_task(self.reload())
            self._reloads.add(task)
            task.add_done_callback(self._reloads.discard)

        timer = loop.call_later(seconds + 0.01, look)  # a bit more: the clock's steps may end it early
        self._timers.add(timer)
        return timer

    # -- loading

    async def _load(self, plugin: PluginFile) -> None:
        """Load the newest version of a plugin; `registry` serves it when asked next."""
        try:
            loaded = await self._load_file(plugin.file)
        except TooManyLoadsError as error:
            self._load_later(plugin, str(error))
        except Exception as error:
            cause = error.__cause__ if isinstance(error, PluginLoadError) and error.__cause__ is not None else error
            still = "its last good version is served" if plugin.serving is not None else "it is left out"
            trace = None if isinstance(cause, (PluginLoadError, CollisionError)) else cause
            why = cause if trace is None else f"it failed to load: {_last_line(trace)}"
            more = f"; {ENDLESS}" if isinstance(error, PluginHangError) else ""
            log.error("plugin %s: %s; %s%s", plugin.file, why, still, more, exc_info=trace)
        else:
            if plugin.pending is not None:
                self._retire(plugin.pending)
            plugin.pending, plugin.logged_conflict, plugin.logged_refusal = loaded, "", ""
            if not loaded.parts:
                log.warning("plugin %s declares no tool, prompt or resource", plugin.file)
        plugin.loading = None

    def _load_later(self, plugin: PluginFile, why: str) -> None:
        plugin.content = PluginContent(b"")  # so that the next look sees a change
        if why != plugin.logged_refusal:
            plugin.logged_refusal = why
            log.error("plugin %s: %s; it is tried again until it can be loaded; %s", plugin.file, why, ENDLESS)
        loop = asyncio.get_running_loop()
        if self._retry is None or self._retry.when() <= loop.time():
            self._retry = self._reload_after(RETRY)

    async def _load_file(self, file: Path) -> LoadedPlugin:
        if not (self._isolate or await asyncio.to_thread(discovery.wants_isolation, file)):
            loaded = await self._load_here(file)
        elif self._load_isolated is not None:
            loaded = await self._load_isolated(file)
        else:
            raise PluginLoadError("it wants to be isolated, which is not available in this version")
        try:
            Registry(loaded.parts)
        except CollisionError:
            self._retire(loaded)
            raise
        for part in loaded.parts:
            if isinstance(part, (Tool, EventType)):
                part.plugin = _plugin_name(file)
        return loaded

    def _announce_late(self, loading: "asyncio.Task[None]") -> None:
        if not loading.cancelled():
            self._changed()

    # -- choosing parts

    def _leave_out(self, plugin: PluginFile, part: Part, holder: Part, instead: LoadedPlugin | None) -> None:
        what = part.kind.removesuffix("s")
        told = f"{what} {part.key!r} is declared twice: in {holder.source} and in {part.source}"
        if told != plugin.logged_conflict:
            plugin.logged_conflict = told
            still = "its last good version is served" if instead is not None else "it is left out"
            log.error("plugin %s: %s; %s", plugin.file, told, still)

    def _filter_yielding(self, yielding: Iterable[Part], owners: Mapping[Key, Part]) -> list[Part]:
        """Return the parts that no plugin replaces: any writer can add a skill, only the operator a plugin."""
        kept: list[Part] = []
        before, self._left_out = self._left_out, {}
        for part in yielding:
            holder = owners.get(_key(part))
            if holder is None:
                kept.append(part)
                continue
            what = part.kind.removesuffix("s")
            line = f"{what} {part.key!r} of {part.source} is left out: {holder.source} declares it, too"
            self._left_out[_key(part)] = line
            if before.get(_key(part)) != line:
                log.warning("%s", line)
        return kept

    def _retire(self, what: LoadedPlugin | PluginFile) -> None:
        """Retire a plugin and collect it soon: modules form cycles, and collections are rare (App.serve_stdio)."""
        if isinstance(what, PluginFile):
            what.end()
        else:
            what.retire()
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(GARBAGE, self._collect)

    def _collect(self) -> None:
        self._sweep = None
        for clear in getattr(typing, "_cleanups", ()):  # undocumented; its caches hold classes for good
            clear()
        gc.collect()


def _find_conflict(
    chosen: Mapping[PluginFile, LoadedPlugin | None], built_in: Mapping[Key, Part]
) -> tuple[PluginFile, Part, Part] | None:
    """Return the first plugin with a taken name, the name, and the part that has it.

    Served parts come first, then the order of files.
    """
    owners = dict(built_in)
    claims = [(plugin, part) for plugin, loaded in chosen.items() if loaded is not None for part in loaded.parts]
    senior = {plugin: _keys(plugin.serving) for plugin in chosen}
    for plugin, part in sorted(claims, key=lambda claim: _key(claim[1]) not in senior[claim[0]]):
        holder = owners.setdefault(_key(part), part)
        if holder is not part:
            return plugin, part, holder
    return None


def _plugin_name(file: Path) -> str:
    return file.parent.name if file.name == "__init__.py" else file.stem


def _key(part: Part) -> Key:
    return part.kind, part.key


def _keys(loaded: LoadedPlugin | None) -> set[Key]:
    return set() if loaded is None else {_key(part) for part in loaded.parts}


def _last_line(error: BaseException) -> str:
    """Return what the log would say last of it: "ValueError: not a city"."""
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
