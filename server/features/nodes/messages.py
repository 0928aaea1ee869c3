"""Define the messages between a gateway and a node, and the methods that a gateway may request.

A gateway numbers its requests. It may send one again over a new connection: the node does nothing twice for a number,
and keeps each answer until the gateway has taken it.

A release speaks its own version and that of the release before, so either side may be upgraded first. Hello names the
gateway's highest version, Welcome the highest that both speak. A message may grow without a new version: a field is
added at the end, with a default, and an argument of a method with a default is left out where it has that value. A new
message, method or meaning is a new version, and is used only where Welcome names it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from toolgate.server.base.rpc.errors import ErrorData, ErrorTable
from toolgate.server.base.rpc.frames import NOTHING
from toolgate.server.base.rpc.methods import MethodTable, list_methods, pick_methods
from toolgate.server.features.nodes.pages.methods import PageMethods
from toolgate.server.features.nodes.report import NodeLoad
from toolgate.tools.workspace.output.run_record import Run
from toolgate.tools.workspace.workspace import WORKSPACE_ERRORS, ProgramAccess, ProgramEnd, Workspace

VERSION = 2  # of these messages
SPOKEN = (1, VERSION)  # with the release before's, the newest last
NEWER_ARGUMENTS = {"previous": 2}  # argument → the version that knows it: an older node starts the command without it
PROGRAMS_SINCE = 2  # the version of a node that can hold programs
ERRORS = ErrorTable(*WORKSPACE_ERRORS)
MAX_DATA = 16 * 2**20  # bytes that one answer may hold: four of them fit a frame

# -- from the gateway


class Hello(msgspec.Struct, frozen=True, tag="hello", array_like=True):
    """The first message. `version` is the highest that the gateway speaks. `gateway` is a random name of the gateway's
    life; "" only asks for the welcome. `database` is the id of its database, "" where it has none."""

    version: int
    release: str
    gateway: str
    database: str = ""


class NodeRequest(msgspec.Struct, frozen=True, tag="request", array_like=True):
    """A method to perform. `is_call`: it belongs to a call of the principal, whose workspace it may open, and which is
    sent the ends of its tasks."""

    number: int
    principal: str
    name: str
    arguments: msgspec.Raw
    is_call: bool = True


class Cancel(msgspec.Struct, frozen=True, tag="cancel", array_like=True):
    """Nobody waits for the answer any more. A command that the request started is ended, unless it `goes_on`: then it
    becomes a background task. So does the principal's run `run_id`, which a request was about that never arrived."""

    number: int
    goes_on: bool = False
    principal: str = ""
    run_id: int | None = None


class Acknowledgement(msgspec.Struct, frozen=True, tag="taken", array_like=True):
    """These answers and ends of tasks have arrived."""

    numbers: list[int] = []
    ends: list[int] = []


class Ping(msgspec.Struct, frozen=True, tag="ping", array_like=True):
    pass


class Leave(msgspec.Struct, frozen=True, tag="leave", array_like=True):
    """The gateway ends. Commands whose calls it held become background tasks."""


# -- from the node


class Welcome(msgspec.Struct, frozen=True, tag="welcome", array_like=True):
    """The answer to Hello. `version` is the highest that both sides speak. `epoch` is a random name of the node's life,
    `name` the one that it keeps. `root` is the one shared workspace, or None if each principal has a folder in
    `workspaces`. `max_people` is how many the node takes, 0 for any number. `knows_gateway`: the node still has
    the requests of this life of the gateway. `clock` is the node's, in seconds since the epoch, 0 where it does not
    say. `isolates_environment` is that of its workspaces. `NodeServer._welcome` makes it, `read_welcome` of the gateway
    judges it: it may refuse what an older node does not say, with a sentence that names the release to upgrade to."""

    version: int
    release: str
    epoch: str
    level: str
    description: str
    state: str
    root: str | None
    name: str = ""
    max_people: int = 0
    knows_gateway: bool = False
    clock: float = 0.0
    isolates_environment: bool = False


class Refusal(msgspec.Struct, frozen=True, tag="refused", array_like=True):
    """The connection ends, for the reason `text`."""

    text: str


class NodeAnswer(msgspec.Struct, frozen=True, tag="answer", array_like=True):
    number: int
    result: msgspec.Raw = NOTHING
    error: ErrorData | None = None


class TaskEnded(msgspec.Struct, frozen=True, tag="ended", array_like=True):
    """A background task has ended by itself or, if it still runs, has lost the call that started it."""

    sequence: int
    principal: str
    run: Run


class Pong(msgspec.Struct, frozen=True, tag="pong", array_like=True):
    pass


def choose_version(offered: int, spoken: Sequence[int] = SPOKEN) -> int | None:
    """Return the highest version that both sides speak, or None. `offered` is the highest of the other side."""
    version = min(offered, spoken[-1])
    return version if version in spoken else None


def drop_newer(arguments: dict[str, Any], version: int) -> dict[str, Any]:
    """Return the arguments that a node of this version knows."""
    return {name: value for name, value in arguments.items() if NEWER_ARGUMENTS.get(name, 0) <= version}


FROM_GATEWAY = msgspec.json.Decoder(Hello | NodeRequest | Cancel | Acknowledgement | Ping | Leave)
FROM_NODE = msgspec.json.Decoder(Welcome | Refusal | NodeAnswer | TaskEnded | Pong)

# -- methods


class PackedWorkspace(msgspec.Struct, frozen=True):
    """A workspace packed for a move: its size in bytes, its SHA-256, and what was omitted, in words. `went_to`: nothing
    is here, it left for that node by an earlier move."""

    size: int
    digest: str
    omission: str
    went_to: str = ""


class NodeMethods(Protocol):
    """What a node offers beside the methods of Workspace, for one principal of one gateway."""

    async def list_tasks(self) -> tuple[int, list[Run]]:
        """Return how many background tasks there have been, and those that are known."""
        ...

    async def wait_arrival(self, seen: int) -> None:
        """Wait until there have been other than `seen` background tasks: fewer after a restart or a move."""
        ...

    async def measure_file(self, path: str, largest: int, *, anywhere: bool) -> tuple[int, str]:
        """Return the size of a file that `read_piece` reads, and its identity."""
        ...

    async def read_piece(
        self, path: str, largest: int, offset: int, limit: int, identity: str, *, anywhere: bool
    ) -> bytes: ...

    async def next_change(self, watch: int, path: Path, *, is_first: bool) -> bool:
        """Wait for the next change of a path. Return False if it can't be watched."""
        ...

    async def end_watch(self, watch: int) -> None: ...

    async def has_files(self) -> bool:
        """Return whether the principal has files here that it uses. Opens no workspace."""
        ...

    # The programs of `open_program`, by the name that `start_program` returns: see node/held_programs.py

    async def start_program(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: Path | None,
        shows: list[Path],
        access: ProgramAccess | None = None,
    ) -> str: ...

    async def read_program(self, program: str, offset: int) -> bytes:
        """Wait for the piece of output from `offset`: that of the last answer, or the next."""
        ...

    async def write_program(self, program: str, data: bytes) -> None: ...

    async def end_input(self, program: str) -> None: ...

    async def read_stderr(self, program: str) -> str: ...

    async def wait_program(self, program: str) -> ProgramEnd: ...

    async def close_program(self, program: str, grace: float) -> tuple[ProgramEnd, str]:
        """End the program. Return how it ended, and the end of its standard error."""
        ...

    # The steps of a move, in their order: see server/features/nodes/gateway/carry.py

    async def begin_move(self) -> PackedWorkspace: ...

    async def open_arrival(self) -> None: ...

    async def read_packed(self, offset: int, limit: int) -> bytes: ...

    async def add_piece(self, offset: int, data: bytes) -> None: ...

    async def unpack_arrival(self, digest: str) -> None: ...

    async def commit_move(self, target: str) -> None: ...

    async def settle(self, *, is_final: bool = False, omission: str = "") -> bool: ...

    async def remove_copy(self, target: str) -> bool: ...

    async def cancel_move(self) -> None: ...

    async def kill_all(self) -> None: ...

    async def forget_principal(self) -> bool: ...

    async def note_use(self) -> str | None:
        """Note a call of the principal now. Return a message for it, once."""
        ...

    async def measure_load(self) -> NodeLoad:
        """Return how full the node is."""
        ...

    async def report_gone(self, principals: list[str]) -> None:
        """Take the principals that can't sign in any more."""
        ...


MOVES = (
    *("has_files", "begin_move", "open_arrival", "read_packed", "add_piece", "unpack_arrival", "commit_move", "settle"),
    *("remove_copy", "cancel_move"),
)
MOVE_METHODS = frozenset(f"node.{name}" for name in MOVES)  # also for a workspace that is not used here
STANDING = frozenset(("node.wait_arrival", "node.next_change"))  # they may wait without an end, and no call does

# Of Workspace, what is not simply a method of the principal's workspace at the node
FOR_REQUEST = ("start", "execute", "conclude")  # the node performs them for the request that they belong to
IN_PARTS = (
    "list",
    "arrival",
    "read_file",
    "open_file",
    "open_program",
)  # the gateway puts them together from NodeMethods
METHODS = MethodTable(
    {
        "workspace": list_methods(Workspace, but=(*FOR_REQUEST, *IN_PARTS)),
        "pages": list_methods(PageMethods),
        "node": {**list_methods(NodeMethods), **pick_methods(Workspace, *FOR_REQUEST)},
    }
)
