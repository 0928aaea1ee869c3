"""Give workspaces to other nodes and take in theirs, in steps that can end anywhere and be repeated.

moves/NAME.left           NAME's workspace is at the node that the file names, or about to be: the one here is not used
moves/NAME.arrived        a copy came from another node: it is not used until the database says that NAME is here
moves/NAME-TOKEN.tar.gz   what is being carried

The database alone says which copy is valid. A node that gives a workspace away refuses requests for it before the
database changes, so a person's files never change at two nodes.
"""

import asyncio
import hashlib
import os
import secrets
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from toolgate.server.base.text import describe_os_error
from toolgate.server.features.nodes.messages import PackedWorkspace
from toolgate.server.workspaces.archive import MAX_BYTES, pack_folder
from toolgate.server.workspaces.folders import PrincipalFolders
from toolgate.server.workspaces.last_used import PRINCIPAL_NAME
from toolgate.server.workspaces.local_workspaces import LocalWorkspaces
from toolgate.tools.api.concurrency.threads import Threads, ThreadsBusyError
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.regular_file import read_regular
from toolgate.tools.workspace.workspace import WorkspaceMovedError

LEFT, ARRIVED, ARCHIVE = ".left", ".arrived", ".tar.gz"
MAX_THREADS = 4
MAX_NOTE = 4_096  # bytes
MOVED = "the workspace is not used at this node: it moves, or has moved, to another"
NOTICE = (
    "your workspace was moved to another machine by the operator; its files are as they were{omission}; the output of "
    "earlier commands and background tasks is gone"
)

T = TypeVar("T")


class _WorkspaceMove:
    """A move under way. `owner` stands for the gateway that moves."""

    def __init__(self, owner: object, archive: Path) -> None:
        self.owner = owner
        self.archive = archive


class WorkspaceMoves:
    """The moves from and to the node with the state folder `state`. `is_shared`: its people have one workspace.

    `is_calling(principal)` returns whether a call is under way; `leave_message(principal, text)` leaves one for its
    next call. Methods raise ToolError.
    """

    def __init__(self, state: Path, workspaces: LocalWorkspaces, *, is_shared: bool) -> None:
        self.is_calling: Callable[[str], bool] = lambda _: False
        self.leave_message: Callable[[str, str], None] = lambda principal, text: None
        self._folder = state / "moves"
        self._folders = PrincipalFolders(state)
        self._workspaces = workspaces
        self._is_shared = is_shared
        self._moves: dict[str, _WorkspaceMove] = {}  # by principal
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for rest in self._folder.glob(f"*{ARCHIVE}*"):
            rest.unlink()
        self._left, self._arrived = self._read_markers(LEFT), self._read_markers(ARRIVED)
        self._removal: asyncio.Future[None] | None = None  # the next removal of a copy
        self._threads = Threads(MAX_THREADS)  # packing takes minutes, and must not delay the end of the node

    def check(self, principal: str) -> None:
        """Raise WorkspaceMovedError where the principal's workspace is not used here."""
        if principal in self._moves or self.has_copy(principal):
            raise WorkspaceMovedError(MOVED)

    def has_copy(self, principal: str) -> bool:
        """Return whether what is here of the principal is not used."""
        return principal in self._left or principal in self._arrived

    async def while_here(self, principal: str, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work that may wait without an end. Raises WorkspaceMovedError once the workspace is gone
        from here."""
        task = asyncio.get_running_loop().create_task(work)
        try:
            while not task.done():
                if self._removal is None:
                    self._removal = asyncio.get_running_loop().create_future()
                waits: list[asyncio.Future[Any]] = [task, self._removal]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if principal in self._left:
                    raise WorkspaceMovedError(MOVED)
            return task.result()
        finally:
            task.cancel()

    # -- giving away

    async def begin(self, principal: str, owner: object) -> PackedWorkspace:
        """Refuse requests for the principal from now on, and pack its workspace."""
        self._refuse_immovable(principal, owner)
        workspace = self._workspaces.find(principal)
        if workspace is not None and (running := len(workspace.running())):
            raise ToolError(f"{running} of its commands run there: end them, or wait")
        if self.is_calling(principal):
            raise ToolError("a call is under way there: try again")
        if principal in self._left and not (self._folders.workspaces / principal).exists():
            return PackedWorkspace(0, "", "", _read_note(self._folder / (principal + LEFT)))
        move = self._add(principal, owner)
        try:
            if workspace is not None:
                await workspace.end_programs("the workspace moves to another node")
            return await self._run(lambda: self._pack(principal, move))
        except BaseException:
            self._end(principal)
            raise

    async def read(self, principal: str, owner: object, offset: int, limit: int) -> bytes:
        """Return a piece of what was packed."""
        move = self._find(principal, owner)
        return await self._run(lambda: _read_piece(move.archive, offset, limit))

    async def commit(self, principal: str, owner: object, target: str) -> None:
        """Refuse requests for the principal for good: the database changes next."""
        self._find(principal, owner)
        self._left.add(principal)
        await self._run(lambda: self._write_marker(principal, LEFT, target))

    async def remove(self, principal: str, target: str) -> bool:
        """Remove what is here and not used, as the workspace is at `target`. Return whether there was anything."""
        if not self.has_copy(principal):
            return False
        self._end(principal)
        await self._workspaces.forget(principal)
        await self._run(lambda: self._write_marker(principal, LEFT, target))
        self._left.add(principal)
        await self._run(lambda: self._remove_folders(principal))
        await self._run(lambda: self._remove_marker(principal, ARRIVED))
        self._arrived.discard(principal)
        if self._removal is not None:
            self._removal.set_result(None)
            self._removal = None
        return True

    async def cancel(self, principal: str, owner: object) -> None:
        """Undo what the owner's move did here. The database must not have changed, and not change any more."""
        self._find(principal, owner)
        await self._run(lambda: self._remove_marker(principal, LEFT))
        self._left.discard(principal)
        self._end(principal)

    def release(self, owner: object) -> None:
        """The owner is gone. What it marked stays: only the database knows how far it came."""
        for principal in [name for name, move in self._moves.items() if move.owner is owner]:
            self._end(principal)

    # -- taking in

    async def open(self, principal: str, owner: object) -> None:
        """Begin to take in a workspace. What came by an earlier move that did not end is removed."""
        self._refuse_immovable(principal, owner)
        if not self.has_copy(principal) and self._workspaces.has_files(principal):
            raise ToolError("that node has files of theirs that came by no move: archive them there first")
        move = self._add(principal, owner)
        try:
            await self._workspaces.forget(principal)
            self._arrived.add(principal)
            await self._run(lambda: self._begin_arrival(principal, move))
        except BaseException:
            self._end(principal)
            raise

    async def add(self, principal: str, owner: object, offset: int, data: bytes) -> None:
        """Add a piece to what arrives."""
        move = self._find(principal, owner)
        await self._run(lambda: _write_piece(move.archive, offset, data))

    async def unpack(self, principal: str, owner: object, digest: str) -> None:
        """Unpack what arrived, if it is whole. It is used from `settle` on."""
        move = self._find(principal, owner)
        await self._run(lambda: self._unpack(principal, move, digest))

    async def settle(self, principal: str, *, is_final: bool, omission: str) -> bool:
        """The database says that the principal is here: use what arrived. `is_final`: also what was about to leave, as
        no move goes on. Return whether it is used now."""
        arrived = principal in self._arrived
        if arrived or is_final:
            self._end(principal)
            for marker in (LEFT, ARRIVED):
                await self._run(lambda marker=marker: self._remove_marker(principal, marker))  # type: ignore[misc]
            self._arrived.discard(principal)
            self._left.discard(principal)
        if arrived:
            self.leave_message(principal, NOTICE.format(omission=omission and f", {omission}"))
        return principal not in self._moves and not self.has_copy(principal)

    # -- moves under way

    def _refuse_immovable(self, principal: str, owner: object) -> None:
        if not PRINCIPAL_NAME.fullmatch(principal):
            raise ToolError("a workspace without sign-in belongs to its node")
        if self._is_shared:
            raise ToolError("its people share one workspace (--workspace), which belongs to its node")
        if principal in self._moves:
            raise ToolError("another move of that workspace is under way")

    def _add(self, principal: str, owner: object) -> _WorkspaceMove:
        move = _WorkspaceMove(owner, self._folder / f"{principal}-{secrets.token_hex(4)}{ARCHIVE}")
        self._moves[principal] = move
        return move

    def _find(self, principal: str, owner: object) -> _WorkspaceMove:
        move = self._moves.get(principal)
        if move is None or move.owner is not owner:
            raise ToolError("the move is not under way any more: repeat it")
        return move

    def _end(self, principal: str) -> None:
        move = self._moves.pop(principal, None)
        if move is not None:
            move.archive.unlink(missing_ok=True)

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await self._threads.run(work)
        except ThreadsBusyError:
            raise ToolError("the node is busy with other moves: try again") from None
        except OSError as error:
            raise ToolError(describe_os_error(error)) from None

    # -- on the disk: what blocks

    def _pack(self, principal: str, move: _WorkspaceMove) -> PackedWorkspace:
        folder = self._folders.workspaces / principal
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            with self._folders.hold_lock():
                packed = pack_folder(folder, move.archive, lambda: self._moves.get(principal) is move)
            with move.archive.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                return PackedWorkspace(file.tell(), digest, packed.omission)
        finally:
            if self._moves.get(principal) is not move:  # cancelled meanwhile
                move.archive.unlink(missing_ok=True)

    def _begin_arrival(self, principal: str, move: _WorkspaceMove) -> None:
        self._write_marker(principal, ARRIVED, "")
        self._remove_folders(principal)
        os.close(os.open(move.archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def _unpack(self, principal: str, move: _WorkspaceMove, digest: str) -> None:
        with move.archive.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise ToolError("what arrived is not what was packed: repeat the move")
        with self._folders.hold_lock():
            self._folders.restore(move.archive)
        os.sync()  # the other copy is removed next
        move.archive.unlink()

    def _remove_folders(self, principal: str) -> None:
        with self._folders.hold_lock():
            aside = self._folders.set_aside(principal)
            self._folders.mark_for_removal(aside)
            self._folders.remove(aside)

    def _read_markers(self, ending: str) -> set[str]:
        names = {path.name.removesuffix(ending) for path in self._folder.glob(f"*{ending}")}
        return {name for name in names if PRINCIPAL_NAME.fullmatch(name)}

    def _write_marker(self, principal: str, ending: str, text: str) -> None:
        draft = self._folder / f"{principal}{ending}.draft"
        with draft.open("w") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._folder / (principal + ending))
        self._sync()

    def _remove_marker(self, principal: str, ending: str) -> None:
        with suppress(FileNotFoundError):
            (self._folder / (principal + ending)).unlink()
            self._sync()

    def _sync(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _read_piece(path: Path, offset: int, limit: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(limit)


def _read_note(path: Path) -> str:
    return read_regular(path, MAX_NOTE).decode(errors="replace").strip()


def _write_piece(path: Path, offset: int, data: bytes) -> None:
    if not 0 <= offset <= MAX_BYTES:
        raise ToolError("it is too large")
    with path.open("r+b") as file:
        if offset != file.seek(0, os.SEEK_END):
            raise ToolError("a piece of it is missing: repeat the move")
        file.write(data)
