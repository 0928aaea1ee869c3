"""Perform the requests of one gateway for one principal, on its workspace in this process."""

import asyncio
from pathlib import Path

from toolgate.server.features.nodes.messages import NodeMethods, NodeRequest, PackedWorkspace
from toolgate.server.features.nodes.node.held_programs import HeldProgram, HeldPrograms
from toolgate.server.features.nodes.node.node import Node
from toolgate.server.features.nodes.node.path_watch import PathWatch
from toolgate.server.features.nodes.node.people import MAX_GONE, GatewayPeople
from toolgate.server.features.nodes.report import NodeLoad
from toolgate.server.workspaces.last_used import PRINCIPAL_NAME
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.local_workspace import LocalWorkspace
from toolgate.tools.workspace.output.run_record import OutputReader, Run
from toolgate.tools.workspace.workspace import Conclusion, ProgramAccess, ProgramEnd

MAX_WATCHES = 256  # paths that one gateway watches for one principal


class GatewayRequest:
    """One request. `run_id` is the command that it started or concludes."""

    def __init__(self, message: NodeRequest) -> None:
        self.number = message.number
        self.principal = message.principal
        self.name = message.name
        self.is_call = message.is_call
        self.size = len(bytes(message.arguments))
        self.reserved = 0  # bytes of answers
        self.task: asyncio.Task[None] | None = None
        self.frame: bytes | None = None  # the answer
        self.run_id: int | None = None
        self.starting: int | None = None  # the command that may still wait for its sandbox
        self.about: int | None = None  # the run that the arguments name
        self.concludes = False
        self.needs_output = True  # the conclusion does not hold all
        self.is_adopted = False  # nobody waits: its command becomes a background task
        self.program: str | None = None  # the one that it started
        self.ends_at_start = False  # nobody waits: it ends as soon as its command has an id


class PrincipalMethods(NodeMethods):
    """NodeMethods, and FOR_REQUEST of Workspace, for `request`. `attended` has the commands that the gateway attends
    to, `watches` its watches by principal and number; `owner` stands for the gateway, `people` are those whom it
    serves, `programs` those that it holds, and `reader` stands for it where it reads output."""

    def __init__(
        self,
        node: Node,
        request: GatewayRequest,
        attended: set[tuple[str, int]],
        watches: dict[tuple[str, int], PathWatch],
        owner: object,
        people: GatewayPeople,
        reader: OutputReader,
        programs: HeldPrograms,
    ) -> None:
        self._node = node
        self._request = request
        self._attended = attended
        self._watches = watches
        self._owner = owner
        self._people = people
        self._reader = reader
        self._programs = programs

    @property
    def _workspace(self) -> LocalWorkspace:
        return self._node.find_workspace(self._request.principal, opens=self._request.is_call)

    async def start(
        self,
        command: str,
        *,
        cwd: Path | None = None,
        timeout: float | None = None,
        key: str | None = None,
        background: bool = False,
        read_only: bool = False,
        previous: Path | None = None,
    ) -> int:
        self._node.refuse_start_at_end()
        if self._request.ends_at_start and not self._request.is_adopted:
            raise asyncio.CancelledError  # before it began
        workspace = self._workspace

        def note_claim(run_id: int) -> None:
            self._request.starting = run_id
            if self._request.ends_at_start and not self._request.is_adopted:
                workspace.withdraw(run_id)

        run_id = await workspace.start(
            command,
            cwd=cwd,
            timeout=timeout,
            key=key,
            background=background,
            read_only=read_only,
            previous=previous,
            on_claim=note_claim,
        )
        self._request.run_id = run_id
        if not background:
            self._attended.add((self._request.principal, run_id))
        if self._request.ends_at_start:
            raise asyncio.CancelledError  # nobody waits for more
        return run_id

    async def execute(
        self,
        command: str,
        *,
        wait: float,
        limit: int,
        cwd: Path | None = None,
        timeout: float | None = None,
        read_only: bool = False,
        previous: Path | None = None,
    ) -> tuple[int, Conclusion | None]:
        clock = asyncio.get_running_loop().time
        until = clock() + wait
        run_id = await self.start(command, cwd=cwd, timeout=timeout, read_only=read_only, previous=previous)
        ended = await self._workspace.wait_shell(run_id, max(0.0, until - clock()))
        return run_id, await self.conclude(run_id, limit=limit) if ended else None

    async def conclude(self, run_id: int, *, limit: int) -> Conclusion:
        conclusion = await self._workspace.conclude(run_id, limit=limit, keeps_output=True, reader=self._reader)
        self._request.run_id = run_id
        self._request.concludes = True
        self._request.needs_output = not conclusion.gone or conclusion.excerpt.dropped_characters > 0
        return conclusion

    async def list_tasks(self) -> tuple[int, list[Run]]:
        return self._workspace.arrivals, await self._workspace.list()

    async def wait_arrival(self, seen: int) -> None:
        while self._workspace.arrivals == seen:
            await self._workspace.arrival()

    async def measure_file(self, path: str, largest: int, *, anywhere: bool) -> tuple[int, str]:
        with await self._workspace.open_file(path, largest, anywhere=anywhere) as file:
            return file.size, file.identity

    async def read_piece(
        self, path: str, largest: int, offset: int, limit: int, identity: str, *, anywhere: bool
    ) -> bytes:
        with await self._workspace.open_file(path, largest, anywhere=anywhere) as file:
            if file.identity != identity:
                raise ToolError(f"{path} was replaced while it was read: call again")
            return await file.read_at(offset, limit)

    async def next_change(self, watch: int, path: Path, *, is_first: bool) -> bool:
        path_watch = self._watches.get((self._request.principal, watch))
        if path_watch is None:
            if sum(owner == self._request.principal for owner, _ in self._watches) >= MAX_WATCHES:
                return False
            path_watch = PathWatch(self._node.workspaces.watch_path(self._request.principal, path))
            self._watches[self._request.principal, watch] = path_watch
            if not is_first:  # the connection was gone for a while
                return True
        try:
            return await path_watch.wait()
        except ValueError:  # another request waits for it
            raise
        except BaseException:  # above all a cancellation, which ends the iterator
            self._watches.pop((self._request.principal, watch), None)
            raise

    async def end_watch(self, watch: int) -> None:
        path_watch = self._watches.pop((self._request.principal, watch), None)
        if path_watch is not None:
            await path_watch.close()

    async def start_program(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: Path | None,
        shows: list[Path],
        access: ProgramAccess | None = None,
    ) -> str:
        self._node.refuse_start_at_end()
        stream = await self._workspace.open_program(argv, env=env, cwd=cwd, shows=shows, access=access)
        self._request.program = self._programs.add(self._request.principal, stream)
        return self._request.program

    async def read_program(self, program: str, offset: int) -> bytes:
        return await self._find_program(program).read(offset)

    async def write_program(self, program: str, data: bytes) -> None:
        await self._find_program(program).stream.write(data)

    async def end_input(self, program: str) -> None:
        await self._find_program(program).stream.close_input()

    async def read_stderr(self, program: str) -> str:
        return await self._find_program(program).stream.stderr_tail()

    async def wait_program(self, program: str) -> ProgramEnd:
        return await self._find_program(program).stream.wait()

    async def close_program(self, program: str, grace: float) -> tuple[ProgramEnd, str]:
        return await self._programs.close(self._request.principal, program, grace)

    def _find_program(self, program: str) -> HeldProgram:
        return self._programs.find(self._request.principal, program)

    async def has_files(self) -> bool:
        principal = self._request.principal
        return not self._node.moves.has_copy(principal) and self._node.workspaces.has_files(principal)

    async def begin_move(self) -> PackedWorkspace:
        return await self._node.moves.begin(self._request.principal, self._owner)

    async def open_arrival(self) -> None:
        self._node.refuse_beyond_limit(self._request.principal)
        await self._node.moves.open(self._request.principal, self._owner)

    async def read_packed(self, offset: int, limit: int) -> bytes:
        return await self._node.moves.read(self._request.principal, self._owner, offset, limit)

    async def add_piece(self, offset: int, data: bytes) -> None:
        await self._node.moves.add(self._request.principal, self._owner, offset, data)

    async def unpack_arrival(self, digest: str) -> None:
        await self._node.moves.unpack(self._request.principal, self._owner, digest)

    async def commit_move(self, target: str) -> None:
        await self._node.moves.commit(self._request.principal, self._owner, target)

    async def settle(self, *, is_final: bool = False, omission: str = "") -> bool:
        return await self._node.moves.settle(self._request.principal, is_final=is_final, omission=omission)

    async def remove_copy(self, target: str) -> bool:
        return await self._node.moves.remove(self._request.principal, target)

    async def cancel_move(self) -> None:
        await self._node.moves.cancel(self._request.principal, self._owner)

    async def kill_all(self) -> None:
        await self._node.workspaces.kill(self._request.principal)

    async def forget_principal(self) -> bool:
        return await self._node.workspaces.forget(self._request.principal)

    async def note_use(self) -> str | None:
        cleaner = self._node.cleaner
        return None if cleaner is None else cleaner.note_call(self._request.principal)

    async def measure_load(self) -> NodeLoad:
        return await self._node.load_meter.measure()

    async def report_gone(self, principals: list[str]) -> None:
        if len(principals) > MAX_GONE or not all(map(PRINCIPAL_NAME.fullmatch, principals)):
            raise ToolError("a report of who is gone is too long, or has a name that is no principal")
        self._people.gone = set(principals)
