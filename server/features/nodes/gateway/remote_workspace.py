"""Reach a principal's workspace at a node."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from toolgate.server.base.rpc.methods import add_requests
from toolgate.server.features.nodes.gateway import remote_methods
from toolgate.server.features.nodes.gateway.link import NodeLink
from toolgate.server.features.nodes.gateway.node_program import NodeProgram
from toolgate.server.features.nodes.gateway.placement import Placement
from toolgate.server.features.nodes.messages import METHODS, PROGRAMS_SINCE, NodeMethods, Welcome
from toolgate.server.features.nodes.pages.methods import PageMethods
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.files import access as files
from toolgate.tools.workspace.files.open_file import PIECE
from toolgate.tools.workspace.output.run_record import Run
from toolgate.tools.workspace.workspace import ProgramAccess, Workspace, WorkspaceMovedError


class RemoteFile:
    """A file at a node, read piece by piece."""

    def __init__(self, path: str, size: int, read: Callable[..., Awaitable[bytes]]) -> None:
        self.path = path
        self.size = size
        self._read = read

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the file's `size` bytes. Raises ToolError for a piece that is empty or larger than was asked for."""
        offset = 0
        while offset < self.size:
            asked = min(PIECE, self.size - offset)
            piece = await self._read(offset=offset, limit=asked)
            _check_piece(piece, 1, asked)
            offset += len(piece)
            yield piece

    async def read_all(self, limit: int) -> bytes:
        """Read to the end, at most `limit` bytes, also a file of /proc, whose size is 0. Raises ToolError."""
        if self.size:
            return b"".join([piece async for piece in self.pieces()])
        data = b""
        while piece := await self._read(offset=len(data), limit=(asked := min(PIECE, limit + 1 - len(data)))):
            _check_piece(piece, 0, asked)
            data += piece
            if len(data) > limit:
                raise files.create_size_error(self.path, len(data), limit)
        return data


@add_requests(METHODS)
class NodeWorkspace(Workspace, PageMethods, NodeMethods):
    """A workspace at the principal's node. What is not defined here is requested: see METHODS. Its attributes raise
    ToolError until `placement` has located the principal, which each method does first.

    Without `is_call` nothing is opened at the node: where nothing is open, methods raise KeyError.
    """

    def __init__(self, placement: Placement, principal: str, *, is_call: bool = True) -> None:
        self._placement = placement
        self._principal = principal
        self._is_call = is_call
        self._arrivals = 0  # background tasks that were listed or announced
        self._watches = itertools.count(1)
        self._ending: set[asyncio.Task[None]] = set()  # watches

    @classmethod
    def create(cls, placement: Placement, principal: str, *, is_call: bool = True) -> Self:
        """Return a workspace: see add_requests."""
        return cls(placement, principal, is_call=is_call)

    @property
    def _welcome(self) -> Welcome:
        return _welcome_of(self._placement.get_link(self._principal))

    @property
    def root(self) -> Path:
        return self._find_root(self._placement.get_link(self._principal))

    def _find_root(self, link: NodeLink) -> Path:
        welcome = _welcome_of(link)
        own = Path(welcome.state, "workspaces", self._principal)
        return own if welcome.root is None else Path(welcome.root)

    @property
    def sandbox(self) -> str:
        return self._welcome.level

    @property
    def output_folder(self) -> Path:
        return Path(self._welcome.state, "spool", self._principal)

    @property
    def private_folder(self) -> Path | None:
        own = Path(self._welcome.state)
        return None if self.root.is_relative_to(own) else own

    @property
    def isolates_environment(self) -> bool:
        return self._welcome.isolates_environment

    async def open_program(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        shows: Sequence[Path] = (),
        access: ProgramAccess | None = None,
    ) -> NodeProgram:
        link = await self._placement.locate(self._principal, chooses=self._is_call)
        if _welcome_of(link).version < PROGRAMS_SINCE:
            raise ToolError(f"the node {link.name} is of an older release, which holds no programs: upgrade it")
        more = () if access is None else (access,)
        link, name = await self._perform("node.start_program", [*argv], {**env}, cwd, [*shows], *more)
        return NodeProgram(link, self._principal, name)

    def check_file(self, path: str, *, suffix: str) -> None:
        files.split_path(path, self.root, suffix)

    async def _call(self, name: str, /, *words: Any, **keywords: Any) -> Any:
        return (await self._perform(name, *words, **keywords))[1]

    async def _perform(self, name: str, /, *words: Any, **keywords: Any) -> tuple[NodeLink, Any]:
        """Return the result of a method, and the link to the node that performed it."""
        link = await self._placement.locate(self._principal, chooses=self._is_call)
        root = self._find_root(link)
        try:
            return link, await remote_methods.perform(
                link, self._principal, name, words, keywords, is_call=self._is_call
            )
        except WorkspaceMovedError:
            link = await self._placement.relocate(self._principal)
        now = self._find_root(link)
        if root != now and any(_is_inside(value, root) for value in (*words, *keywords.values())):
            text = f"your workspace was moved to the node {link.name}, where it is {now}: nothing was done; call again"
            raise ToolError(text)
        return link, await remote_methods.perform(link, self._principal, name, words, keywords, is_call=self._is_call)

    async def list(self) -> "list[Run]":
        self._arrivals, runs = await self.list_tasks()
        return runs

    async def arrival(self) -> None:
        """Wait for a background task since the last list."""
        await self.wait_arrival(self._arrivals)

    async def read(self, run_id: int, offset: int, limit: int) -> bytes:
        data = b""
        while len(data) < limit:
            asked = min(PIECE, limit - len(data))
            piece: bytes = await self._call("workspace.read", run_id, offset + len(data), asked)
            _check_piece(piece, 0, asked)
            data += piece
            if len(piece) < asked:
                break
        return data

    async def read_file(self, path: str, limit: int, *, anywhere: bool) -> bytes:
        with await self.open_file(path, limit, anywhere=anywhere) as file:
            return await file.read_all(limit)

    async def open_file(self, path: str, limit: int, *, anywhere: bool) -> RemoteFile:
        size, identity = await self.measure_file(path, limit, anywhere=anywhere)
        if not 0 <= size <= limit:
            raise ToolError(f"the node says that {path} has {size:,} bytes, where 0 to {limit:,} were asked for")
        read = partial(self.read_piece, path=path, largest=limit, identity=identity, anywhere=anywhere)
        return RemoteFile(path, size, read)

    async def watch_path(self, path: Path) -> AsyncIterator[object]:
        """Yield each time the path changes."""
        watch, is_first = next(self._watches), True
        try:
            while await self.next_change(watch, path, is_first=is_first):
                is_first = False
                yield None
        finally:
            task = asyncio.get_running_loop().create_task(self._end_watch(watch))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end_watch(self, watch: int) -> None:
        with contextlib.suppress(ToolError):  # a node that can't be reached ends it by itself
            await self.end_watch(watch)


def _check_piece(piece: bytes, least: int, most: int) -> None:
    if not least <= len(piece) <= most:
        raise ToolError(f"the node sent {len(piece):,} bytes where {least} to {most:,} were asked for")


def _is_inside(value: object, root: Path) -> bool:
    return isinstance(value, (str, Path)) and f"{value}/".startswith(f"{root}/")


def _welcome_of(link: NodeLink) -> Welcome:
    assert link.welcome is not None  # the node was found by its name
    return link.welcome
