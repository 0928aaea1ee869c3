"""Load plugin files as modules of this process, and collect their parts.

Each load makes a generation: modules under new names, compiled from the bytes read then and never from a file of
bytecode. Several generations of one file can be loaded; a retired one is freed when its last call has ended.
"""

import asyncio
import importlib
import inspect
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache, partial, wraps
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, Protocol

from toolgate.tools.api.concurrency.threads import Threads, ThreadsBusyError
from toolgate.tools.api.function import Function
from toolgate.tools.api.plugins.discovery import ISOLATE, MAX_INLINE_SOURCE, read_sources
from toolgate.tools.api.plugins.loop_watchdog import LoopWatchdog
from toolgate.tools.api.registry import Part

PREFIX = "toolgate_plugin_"  # of all plugin modules
PATIENCE = 10.0  # seconds a plugin may take to load: slow libraries take a few
TURN = 1.0  # seconds before the next one starts: concurrent imports upset some libraries
MAX_LOADS = 100  # concurrent, with those that were given up and still hang: each is a thread that can't be ended
MAX_OF_FILE = 2  # per file: one that hangs, and a later edit


class PluginLoadError(Exception):
    """A plugin can't be loaded. The cause, if any, is its exception."""


class PluginHangError(PluginLoadError):
    """Its import has not ended."""


class TooManyLoadsError(PluginHangError):
    """Other imports have not ended; when they have, this plugin may be loaded."""


class LoadedPlugin(Protocol):
    """A plugin with parts that can be called."""

    @property
    def parts(self) -> Sequence[Part]: ...

    def retire(self) -> None:
        """Retire the plugin, and free everything when its last call has ended."""
        ...


class PluginIsolation(Protocol):
    """Loads plugins in processes of their own. Made with the environment of these, and with how they log."""

    def __init__(self, environment: Mapping[str, str], *, verbose: bool, style: str) -> None: ...

    async def load(self, file: Path) -> LoadedPlugin:
        """Load a plugin. Raises PluginLoadError."""
        ...

    async def close(self) -> None:
        """End all processes, and start no more."""
        ...


PluginLoad = Callable[[Path], Awaitable[LoadedPlugin]]


class Generation:
    """The modules of one load. It counts running calls, in any thread."""

    def __init__(self, file: Path, finder: "PluginFinder") -> None:
        stem = file.parent.name if file.name == "__init__.py" else file.stem
        self.file = file
        self.name = f"{PREFIX}{''.join(c if c.isalnum() else '_' for c in stem)}_{os.urandom(6).hex()}"
        self.sources: Mapping[Path, bytes] = {}
        self.parts: Sequence[Part] = ()
        self._finder = finder
        self._running: list[None] = []  # an item a call: append and pop need no lock, so a finalizer may end one
        self._retired = False
        self._removed_modules: dict[str, ModuleType] = {}  # taken out of sys.modules
        self._lock = threading.RLock()  # a finalizer may end a call in any thread and line

    def begin_call(self) -> None:
        self._running.append(None)
        if self._retired:  # called by a caller that found it before it was retired
            self._settle()

    def end_call(self) -> None:
        self._running.pop()
        if self._retired:
            self._settle()

    def retire(self) -> None:
        self._retired = True
        self._settle()

    def _settle(self) -> None:
        """Keep a retired load's modules importable while its calls run, and no longer."""
        with self._lock:
            if self._running:
                self._add_modules()
            else:
                self._remove_modules()

    def load(self, blocking: LoopWatchdog, max_source: int) -> None:
        """Import it and check its parts. Raises PluginLoadError and the plugin's exceptions."""
        self.sources = read_sources(self.file)
        if sum(map(len, self.sources.values())) > max_source:
            raise PluginLoadError(f"more than {max_source} bytes of source: say `{ISOLATE}` at its top, or split it")
        self._add_modules()
        module = importlib.import_module(self.name)
        found = [value for value in vars(module).values() if isinstance(value, Part)]
        parts = [part for part in dict.fromkeys(found) if self._is_own(part)]
        for part in parts:
            part.verify()
        for function in dict.fromkeys(function for part in parts for function in part.functions):
            function.call = _count_calls(function, self, blocking)
        self.parts = parts

    def find_module(self, fullname: str) -> ModuleSpec | None:
        """Return the source of a module of this generation, as read at the load."""
        inner = fullname.split(".")[1:]
        if not inner:
            return self._spec(fullname, self.file)
        place = self.file.parent.joinpath(*inner)
        for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if path in self.sources:
                return self._spec(fullname, path)
        if any(place in path.parents for path in self.sources):  # a folder without an __init__.py
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        return None

    def _spec(self, fullname: str, path: Path) -> ModuleSpec | None:
        loader = SourceLoader(fullname, str(path), self.sources[path])
        inside = [str(path.parent)] if path.name == "__init__.py" else None
        return spec_from_file_location(fullname, path, loader=loader, submodule_search_locations=inside)

    def _is_own(self, part: Part) -> bool:
        """Return whether the plugin declares it itself, rather than importing it."""
        return self._owns(str(getattr(part.functions[0].call, "__module__", "")))

    def _owns(self, name: str) -> bool:
        return name == self.name or name.startswith(f"{self.name}.")

    def _add_modules(self) -> None:
        self._finder.generations[self.name] = self
        sys.modules.update(self._removed_modules)
        self._removed_modules = {}

    def _remove_modules(self) -> None:
        self._finder.generations.pop(self.name, None)
        self._removed_modules |= {name: sys.modules.pop(name) for name in self._find_own(sys.modules)}
        loggers = logging.Logger.manager.loggerDict  # they would never be freed; `getLogger(__name__)` is common
        for name in self._find_own(loggers):
            loggers.pop(name, None)

    def _find_own(self, names: Iterable[str]) -> list[str]:
        """Return those of thousands of names that its modules have."""
        return [name for name in list(names) if name.startswith(self.name) and self._owns(name)]


def _count_calls(function: Function, generation: Generation, blocking: LoopWatchdog) -> Callable[..., Any]:
    """Wrap the function so that its generation counts the call. Plain functions run in threads."""
    call = function.call

    def begin_call() -> None:
        blocking.begin_call()
        generation.begin_call()

    def end_call() -> None:
        blocking.end_call()
        generation.end_call()

    async def stream(*words: Any, **keywords: Any) -> AsyncIterator[Any]:
        begin_call()
        try:
            async with aclosing(call(*words, **keywords)) as items:
                async for item in items:
                    yield item
        finally:
            end_call()

    async def wait(*words: Any, **keywords: Any) -> Any:
        begin_call()
        try:
            return await call(*words, **keywords)
        finally:
            end_call()

    def plain(*words: Any, **keywords: Any) -> Any:
        generation.begin_call()
        try:
            return call(*words, **keywords)
        finally:
            generation.end_call()

    kinds = ((inspect.isasyncgenfunction, stream), (inspect.iscoroutinefunction, wait))
    return wraps(call)(next((counted for is_kind, counted in kinds if is_kind(call)), plain))


class SourceLoader(SourceFileLoader):
    """Compile a module from bytes read before. Reads and writes no bytecode."""

    def __init__(self, fullname: str, path: str, data: bytes) -> None:
        super().__init__(fullname, path)
        self._data = data

    def get_code(self, fullname: str) -> CodeType:
        return compile_source(self._data, self.path)


@lru_cache(maxsize=16)  # an edit of one file compiles no other one of its plugin again
def compile_source(data: bytes, path: str) -> CodeType:
    code: CodeType = compile(data, path, "exec", dont_inherit=True)
    return code


class PluginFinder:
    """Find the modules of the generations in use, for `sys.meta_path`."""  # importlib.abc takes 2 ms of each start

    def __init__(self) -> None:
        self.generations: dict[str, Generation] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(PREFIX):
            return None
        generation = self.generations.get(fullname.partition(".")[0])
        return None if generation is None else generation.find_module(fullname)


class PluginLoader:
    """The plugins that run in this process, of at most `max_source` bytes each."""

    def __init__(self, max_source: int = MAX_INLINE_SOURCE) -> None:
        self._max_source = max_source
        self._finder = PluginFinder()
        self._blocking = LoopWatchdog(PREFIX)
        self._threads = Threads(MAX_LOADS)
        self._loads: Counter[Path] = Counter()
        self._turn = asyncio.Lock()

    async def load(self, file: Path) -> LoadedPlugin:
        """Load a plugin in a thread: it may block, and raise anything. Raises PluginLoadError."""
        if self._finder not in sys.meta_path:
            sys.meta_path.insert(0, self._finder)  # first: the default finder would find submodules, and their bytecode
        loading: asyncio.Task[Generation | BaseException] | None = None
        try:
            async with self._turn:
                loading = self._start_load(file)
                await asyncio.wait([loading], timeout=TURN)
            await asyncio.wait([loading], timeout=PATIENCE - TURN)
        except BaseException:
            if loading is not None:
                loading.add_done_callback(_retire_late)
            raise
        if not loading.done():
            loading.add_done_callback(_retire_late)
            raise PluginHangError(f"not loaded within {PATIENCE:g} s")
        try:
            made = loading.result()
        except ThreadsBusyError:
            raise TooManyLoadsError(f"{MAX_LOADS} others are still being loaded") from None
        if isinstance(made, BaseException):
            raise PluginLoadError("it failed to load") from made
        return made

    def close(self) -> None:
        """Load no more."""
        self._blocking.close()
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)

    def _start_load(self, file: Path) -> "asyncio.Task[Generation | BaseException]":
        if self._loads[file] >= MAX_OF_FILE:
            raise TooManyLoadsError(f"{MAX_OF_FILE} earlier versions of it are still being loaded")
        loading = asyncio.create_task(self._threads.run(partial(self._attempt, file)))
        self._loads[file] += 1

        def forget_load(_: object) -> None:
            self._loads[file] -= 1
            if not self._loads[file]:
                del self._loads[file]

        loading.add_done_callback(forget_load)
        return loading

    def _attempt(self, file: Path) -> Generation | BaseException:
        generation = Generation(file, self._finder)
        try:
            generation.load(self._blocking, self._max_source)
        except BaseException as error:  # noqa: BLE001  # whatever a plugin raises, only the plugin fails
            generation.retire()
            return error.with_traceback(_own_frames(error, file))
        return generation


def _own_frames(error: BaseException, file: Path) -> TracebackType | None:
    """Return the traceback from the plugin's own first frame on: the frames before it are those of every import."""
    at = error.__traceback__
    while at is not None and not at.tb_frame.f_code.co_filename.startswith(str(file.parent)):
        at = at.tb_next
    return at or (None if isinstance(error, SyntaxError) else error.__traceback__)


def _retire_late(loading: "asyncio.Task[Generation | BaseException]") -> None:
    """Retire a generation that was loaded too late."""
    if not loading.cancelled() and loading.exception() is None:
        made = loading.result()
        if isinstance(made, Generation):
            made.retire()
