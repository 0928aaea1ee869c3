"""Serve one gateway, over one connection after another: perform each request once, and keep its answer until taken."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.server.base.rpc import frames
from toolgate.server.base.rpc.errors import ErrorData
from toolgate.server.features.nodes.fair_room import FairRoom
from toolgate.server.features.nodes.messages import (
    ERRORS,
    MAX_DATA,
    METHODS,
    MOVE_METHODS,
    STANDING,
    Acknowledgement,
    Cancel,
    NodeAnswer,
    NodeRequest,
)
from toolgate.server.features.nodes.node.held_programs import HeldPrograms
from toolgate.server.features.nodes.node.node import Node
from toolgate.server.features.nodes.node.path_watch import PathWatch
from toolgate.server.features.nodes.node.people import GatewayPeople
from toolgate.server.features.nodes.node.principal_methods import GatewayRequest, PrincipalMethods
from toolgate.server.features.nodes.pages.principal_pages import PrincipalPages
from toolgate.server.workspaces.last_used import PRINCIPAL_NAME
from toolgate.tools.api.context.services import ProgramResult
from toolgate.tools.api.errors import drop_tracebacks
from toolgate.tools.workspace.files.open_file import PIECE
from toolgate.tools.workspace.output.run_record import OutputReader

MAX_REQUESTS = 10_000  # of one gateway at once: more than a link has under way
MAX_ARGUMENTS = 96 * 2**20  # bytes of arguments in these
MAX_ANSWERS = 48 * 2**20  # bytes of answers that the gateway has not taken: the largest of run_program, and others
MAX_PIECES = 8 * 2**20  # bytes of pieces that it has not taken: four that are read at once, and many short ones
MAX_PROGRAMS = 64 * 2**20  # bytes that programs under way may print: two with the largest limit, and those of others
MAX_UNTAKEN = 2 * MAX_ANSWERS  # bytes of these with answers whose size is known only when they are there
NO_ROOM = ErrorData("ToolError", "too many answers wait to be taken: call again")
SMALL = 2**18  # bytes of an answer for which no room is reserved: most commands print less
REATTACH = 3.0  # seconds in which a gateway may come back before its commands are background tasks
STARTS = frozenset(("node.start", "node.execute"))  # a cancellation ends the command, as soon as it has an id
PIECES = frozenset(("workspace.read", "workspace.take", "node.read_piece"))  # the gateway asks for the rest

log = logging.getLogger("toolgate.node")


class GatewaySession:
    """What a node knows of one gateway, which has that `database`, and a `name` for its life. `on_expire` is called
    when it is gone for good."""

    def __init__(self, node: Node, on_expire: Callable[[], object], database: str = "", name: str = "") -> None:
        self._node = node
        self._reader = OutputReader(name, node.is_away)
        self._on_expire = on_expire
        self.requests: dict[int, GatewayRequest] = {}
        self.attended: set[tuple[str, int]] = set()  # the foreground commands whose calls the gateway holds
        self.watches: dict[tuple[str, int], PathWatch] = {}
        self._held = HeldPrograms()
        self.people = GatewayPeople(database)
        node.gone.add(self.people)
        self._writer: asyncio.StreamWriter | None = None
        self._arguments = 0  # bytes
        self._room = FairRoom(MAX_ANSWERS)
        self._pieces = FairRoom(MAX_PIECES)
        self._programs = FairRoom(MAX_PROGRAMS)
        self._unattended = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self._adopting: set[asyncio.Task[None]] = set()

    # -- connections

    def attach(self, writer: asyncio.StreamWriter) -> None:
        """Use a new connection, in place of the one before."""
        if self._writer is not None:
            self._writer.transport.abort()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._writer = writer
        self._node.ends.note_attached(self)

    def detach(self, writer: asyncio.StreamWriter) -> None:
        """The connection is gone. What it asked for goes on; the gateway may come back."""
        if self._writer is writer:
            self._writer = None
            self._node.moves.release(self)
            self._expiry = asyncio.get_running_loop().call_later(REATTACH, self._expire)

    def leave(self) -> None:
        """The gateway ends: it does not come back."""
        self._writer = None
        self._node.moves.release(self)
        self._spawn(self._node.confirm_reads(self._reader.name, list(self.people.served)))
        self._expire()

    @property
    def is_attached(self) -> bool:
        return self._writer is not None

    def send(self, message: msgspec.Struct) -> None:
        self._write(frames.encode_frame(message))

    def _write(self, frame: bytes) -> None:
        if self._writer is not None:
            frames.write(self._writer, frame)

    def _expire(self) -> None:
        """The gateway is gone: its commands become background tasks, and the programs that it holds end."""
        self._held.end_all()
        waiting = [request.task for request in self.requests.values() if request.name == "node.next_change"]
        for request in list(self.requests.values()):
            self._drop(request, goes_on=True)
        for principal, run_id in list(self.attended):
            self._adopt(principal, run_id)
        self._spawn(self._end_watches([task for task in waiting if task is not None]))
        self._node.gone.remove(self.people)
        self._on_expire()

    async def _end_watches(self, waiting: "list[asyncio.Task[None]]") -> None:
        """End the watches, of which some are `waiting` for a change and cancelled."""
        if waiting:
            await asyncio.wait(waiting)
        while self.watches:
            await self.watches.popitem()[1].close()

    def is_calling(self, principal: str) -> bool:
        """Return whether a call of the principal is under way."""
        requests = [request for request in self.requests.values() if request.principal == principal and request.is_call]
        concluded = {request.run_id for request in requests if request.frame is not None and request.concludes}
        attended = {run_id for name, run_id in self.attended if name == principal}
        asks = any(request.frame is None and request.name not in STANDING for request in requests)
        return asks or not attended <= concluded

    # -- messages

    def take(self, message: Any) -> None:
        """Handle a message after Hello. Raises MalformedFrameError."""
        match message:
            case NodeRequest():
                self._begin(message)
            case Cancel(number, goes_on, principal, run_id):
                request = self.requests.get(number)
                if request is not None:
                    self._drop(request, goes_on=goes_on)
                elif goes_on and run_id is not None and (principal, run_id) in self.attended:
                    self._adopt(principal, run_id)  # its request never arrived
            case Acknowledgement(numbers, ends):
                for number in numbers:
                    request = self.requests.get(number)
                    if request is not None and request.frame is not None:
                        self._finish(request)
                self._node.ends.confirm(ends, self)
            case _:
                raise frames.MalformedFrameError("a second hello")

    def _begin(self, message: NodeRequest) -> None:
        known = self.requests.get(message.number)
        if known is not None:  # over a new connection
            if known.frame is not None:
                self._write(known.frame)
            return
        if not (PRINCIPAL_NAME.fullmatch(message.principal) or message.principal == LOCAL_NAME):
            raise frames.MalformedFrameError("a request for a name that is no principal")
        request = GatewayRequest(message)
        if len(self.requests) >= MAX_REQUESTS or self._arguments + request.size > MAX_ARGUMENTS:
            raise frames.MalformedFrameError("too many requests at once")
        self.requests[request.number] = request
        self._arguments += request.size
        if message.is_call:
            self.people.note_call(message.principal)
            self._node.ends.note_call(message.principal, self)
        request.task = asyncio.get_running_loop().create_task(self._work(request, message.arguments))

    # -- requests

    async def _work(self, request: GatewayRequest, arguments: msgspec.Raw) -> None:
        try:
            result = frames.encode_raw(await self._perform(request, arguments))
            frame = frames.encode_frame(NodeAnswer(request.number, result))
        except asyncio.CancelledError:
            if request.is_adopted:
                self._finish_adopted(request)
            raise
        except Exception as error:  # noqa: BLE001  # the gateway is told; our own faults are logged
            data = ERRORS.to_data(error) or _log_fault(request.name)
            drop_tracebacks(error)
            frame = frames.encode_frame(NodeAnswer(request.number, error=data))
        room = self._find_room(request)
        if room.used - request.reserved + len(frame) > MAX_UNTAKEN:
            frame = frames.encode_frame(NodeAnswer(request.number, error=NO_ROOM))
        if request.number not in self.requests:  # cancelled as it ended
            return
        self._arguments -= request.size
        request.size = 0
        request.frame = frame
        room.take(request.principal, len(frame) - request.reserved)
        request.reserved = len(frame)
        self._write(frame)

    async def _perform(self, request: GatewayRequest, arguments: msgspec.Raw) -> Any:
        method = METHODS.find(request.name)
        if method is None:
            raise LookupError(f"{request.name} is not available at a node"[:200])
        given = method.decode_arguments(arguments, PIECE if request.name in PIECES else MAX_DATA)
        owner, _, name = request.name.partition(".")
        if name == "run_program":
            return await self._run_program(request, given)
        if method.returns_data:
            await self._reserve(request, given["limit"] * 2)  # base64, or a text's escapes
        request.about = given.get("run_id")
        if request.name not in MOVE_METHODS:
            self._node.moves.check(request.principal)
            if request.is_call:
                await self._node.before_call(request.principal)
        target: Any = PrincipalMethods(
            self._node, request, self.attended, self.watches, self, self.people, self._reader, self._held
        )
        if owner == "pages":
            target = PrincipalPages(self._node, request.principal, partial(self._reserve, request))
        if owner == "workspace":
            target = self._node.find_workspace(request.principal, opens=request.is_call)
        if name == "take":
            given["reader"] = self._reader
        work = getattr(target, name)(**given)
        result = await (self._node.moves.while_here(request.principal, work) if request.name in STANDING else work)
        if name in ("keep", "forget", "discard"):
            self._leave(request.principal, given["run_id"])
        return result

    async def _run_program(self, request: GatewayRequest, given: dict[str, Any]) -> ProgramResult:
        """Run a program, which may take long: room for its answer is reserved at its end."""
        await self._programs.acquire(request.principal, given["limit"])
        try:
            self._node.moves.check(request.principal)
            self._node.refuse_start_at_end()
            workspace = self._node.find_workspace(request.principal, opens=request.is_call)
            result = await workspace.run_program(**given)
            await self._reserve(request, len(result.output) * 4 // 3)  # base64
            return result
        finally:
            self._programs.release(request.principal, given["limit"])

    async def _reserve(self, request: GatewayRequest, size: int) -> None:
        """Wait until so many bytes of answers may be held."""
        size = size if size > SMALL or request.name in PIECES else 0
        await self._find_room(request).acquire(request.principal, size)
        request.reserved = size

    def _find_room(self, request: GatewayRequest) -> FairRoom:
        """Return the room for the answer: a reader asks for the next piece when it has taken one."""
        return self._pieces if request.name in PIECES else self._room

    async def wait_unattended(self) -> None:
        """Wait until the gateway's calls wait for no command."""
        while self.attended:
            self._unattended.clear()
            await self._unattended.wait()

    def list_page_tasks(self) -> "list[asyncio.Task[None]]":
        """Return the tasks of the requests that read pages and pictures."""
        return [
            each.task for each in self.requests.values() if each.name.startswith("pages.") and each.task is not None
        ]

    def _leave(self, principal: str, run_id: int) -> None:
        """The gateway attends to the command no longer."""
        self.attended.discard((principal, run_id))
        if not self.attended:
            self._unattended.set()

    def _forget(self, request: GatewayRequest) -> None:
        if self.requests.pop(request.number, None) is None:
            return
        self._arguments -= request.size
        self._find_room(request).release(request.principal, request.reserved)
        request.size = request.reserved = 0

    def _finish(self, request: GatewayRequest) -> None:
        """The gateway has the answer."""
        self._forget(request)
        if request.concludes and request.run_id is not None:
            self._leave(request.principal, request.run_id)
            workspace = self._node.workspaces.find(request.principal)
            if workspace is not None and not request.needs_output:
                self._spawn(workspace.forget(request.run_id))

    def _drop(self, request: GatewayRequest, *, goes_on: bool) -> None:
        """Nobody waits for the request."""
        if request.program is not None:
            self._held.end(request.principal, request.program)
        if not goes_on:
            self._forget(request)
            if request.run_id is not None and request.name in STARTS:
                self._leave(request.principal, request.run_id)
            self._spawn(self._cancel(request))
        elif request.frame is None and request.run_id is None and request.name in STARTS:
            request.is_adopted = request.ends_at_start = True
        else:
            if request.task is not None:
                request.task.cancel()
            self._finish_adopted(request)

    async def _cancel(self, request: GatewayRequest) -> None:
        """End the request and what it started, and say so."""
        if request.task is not None:
            if request.name in STARTS and request.run_id is None:
                request.ends_at_start = True
                self._withdraw(request)
            else:
                request.task.cancel()
            await asyncio.wait([request.task])
        if request.program is not None:  # it has opened just before it was cancelled
            self._held.end(request.principal, request.program)
        if request.run_id is not None and request.name in STARTS:
            await self._discard(request.principal, request.run_id)
        self.send(NodeAnswer(request.number, error=ErrorData("ToolError", "cancelled")))

    def _withdraw(self, request: GatewayRequest) -> None:
        """End the command that starts if it still waits for its sandbox."""
        workspace = self._node.workspaces.find(request.principal)
        if workspace is not None and request.starting is not None:
            workspace.withdraw(request.starting)

    def _finish_adopted(self, request: GatewayRequest) -> None:
        self._forget(request)
        run_id = request.about if request.run_id is None else request.run_id
        if run_id is not None and (request.principal, run_id) in self.attended:
            self._adopt(request.principal, run_id)

    async def _discard(self, principal: str, run_id: int) -> None:
        self._leave(principal, run_id)
        try:
            await self._node.workspaces.get_or_open(principal).discard(run_id)
        except KeyError:
            log.debug("run %d was forgotten before", run_id)

    def _adopt(self, principal: str, run_id: int) -> None:
        self._leave(principal, run_id)
        self._spawn(self._node.adopt(principal, run_id))

    async def release_commands(self, principal: str) -> None:
        """Make the principal's commands background tasks: it calls through another gateway, and this one is away."""
        for owner, run_id in list(self.attended):
            if owner == principal:
                self._leave(owner, run_id)
                await self._node.adopt(owner, run_id)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)


def _log_fault(name: str) -> ErrorData:
    reference = secrets.token_hex(6)
    log.exception("reference %s: %s failed", reference, name)
    return ErrorData("ToolError", f"the node failed at {name}, reference {reference}")
