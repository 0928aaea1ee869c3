"""Hold a gateway's connection to a node: connect again when it breaks, and match answers to requests.

A request that was sent is sent again only to the same life of the node (epoch), which does nothing twice for a number.
"""

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.server.base.rpc import frames
from toolgate.server.base.text import escape_unprintable
from toolgate.server.base.version import VERSION as RELEASE
from toolgate.server.features.nodes import messages
from toolgate.server.features.nodes.address import NodeAddress
from toolgate.server.features.nodes.connect import (
    CountingReader,
    describe_failure,
    open_connection,
    open_socket,
    receive,
)
from toolgate.server.features.nodes.gateway.control_messages import ControlMessages
from toolgate.server.features.nodes.gateway.message_bounds import FloodError, MessagePace, ReadingTurns
from toolgate.server.features.nodes.gateway.node_texts import clean_end
from toolgate.server.features.nodes.gateway.receipts import Receipts
from toolgate.server.features.nodes.gateway.waiting_requests import NoRoomError, WaitingRequest, WaitingRequests
from toolgate.server.features.nodes.messages import Cancel, NodeAnswer, TaskEnded, Welcome
from toolgate.server.features.nodes.node.name import NODE_NAME
from toolgate.server.features.nodes.tls.errors import CertificateError
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.workspace import WorkspaceUnreachableError

if TYPE_CHECKING:
    from toolgate.server.features.nodes.tls.certificate_file import CertificateFile

PATIENCE = 1.5  # seconds that a request waits for a node that is silent or gone
GREETING = 1.0  # seconds for a connection and its welcome
BEAT = 0.25  # seconds between two looks at a silent node, while it owes answers
QUIET = 0.5  # seconds of silence before it is asked for a sign
PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds before the next try to connect
CLOSE_WITHIN = 0.5  # seconds for the last bytes to be sent
CANCEL_WITHIN = 6.0  # seconds that a cancelled request waits for the end of its command: SIGKILL comes after 2
MAX_WELCOME = 2**16  # bytes
MAX_TEXT = 500  # characters of a node's word about itself
MAX_PEOPLE = 999_999  # at a node: more is no number of people

log = logging.getLogger("toolgate.node")


class NodeUnreachableError(Exception):
    """No node speaks at the address; the text says why."""


class NodeLink:
    """The link to the node at `address`. `welcome` is its last word about itself, None before the first. `database` is
    the id of the gateway's.

    `on_end` is called with each end of a task and what confirms it: True once it is reported, False if it can't be.
    `on_life` is called for each life of the node. `check` is called with each welcome, and raises NodeUnreachableError
    to refuse the node. `claimed_name` is what the node last called itself, also if it was refused, and `claimed_limit`
    how many people it then said it takes, 0 for any number.
    """

    def __init__(
        self,
        address: NodeAddress,
        welcome: Welcome | None,
        certificate: "CertificateFile | None" = None,
        database: str = "",
    ) -> None:
        self.address = address
        self.certificate = certificate
        self.welcome = welcome
        self.is_connected = False
        self.on_end: Callable[[TaskEnded, Callable[[bool], None]], None] = lambda _, confirm: confirm(False)
        self.on_life: Callable[[], None] = lambda: None
        self.check: Callable[[NodeLink, Welcome], Awaitable[None]] = _accept
        self.claimed_name = self.name
        self.claimed_limit = 0 if welcome is None else _read_limit(welcome)
        self._name = secrets.token_hex(16)
        self._database = database
        self._waiting = WaitingRequests()
        self._control = ControlMessages(self._write)
        self._pace = MessagePace()
        self._receipts = Receipts(self._control.send, self._reconnect)
        self._writer: asyncio.StreamWriter | None = None
        self._heard = 0.0  # loop time of the last sign of the node, or of the first request it owes
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._reported_life = ""  # the epoch that `on_life` was called for
        self._was_accepted = False  # by `check`, once at least
        self._lost_at = None if welcome is not None else -math.inf  # loop time since which the node does not answer
        self.failures = 0  # requests that ended without an answer

    @property
    def is_away(self) -> bool:
        """Whether the node has not answered for as long as a request waits for it."""
        return self._lost_at is not None and asyncio.get_running_loop().time() - self._lost_at >= PATIENCE

    @property
    def waiting_count(self) -> int:
        """How many requests have no answer yet."""
        return len(self._waiting)

    @property
    def name(self) -> str:
        """Return the node's name, or "" before its first welcome."""
        return "" if self.welcome is None else self.welcome.name

    async def request(
        self, principal: str, name: str, arguments: dict[str, Any], *, is_call: bool = True
    ) -> NodeAnswer:
        """Return the answer to a request. Raises ToolError if the node can't be reached."""
        if self._is_closed:
            raise WorkspaceUnreachableError("the server is shutting down: nothing more is started")
        if self.is_away and not is_call:  # a page does not wait
            self.failures += 1
            raise WorkspaceUnreachableError(f"the node at {self.address} can't be reached: nothing was done")
        loop = asyncio.get_running_loop()
        try:
            waiting = self._waiting.create(principal, name, arguments, is_call=is_call)
        except NoRoomError:
            raise ToolError(f"too much is under way to the node at {self.address}: try again") from None
        except UnicodeEncodeError:  # replaced, it would be another command or another file's name
            raise ToolError("a text holds half of a surrogate pair, which is not a character") from None
        self._start()
        if not self._waiting:
            self._heard = loop.time()
        self._waiting.add(waiting)
        if self.is_connected:
            self._send(waiting)
        else:
            loop.call_later(PATIENCE, self._give_up, waiting)
        try:
            answer = await waiting.answer
        except asyncio.CancelledError:
            if not waiting.has_failed:  # also if the answer has just come: nobody has it
                await self._cancel(waiting)
            raise
        finally:
            self._waiting.remove(waiting)
            del waiting  # its future holds the error, whose traceback holds this frame
        self._receipts.add_answer(answer)
        return answer

    async def run(self) -> None:
        """Stay connected until cancelled."""
        self._start()
        assert self._task is not None
        await asyncio.wait([self._task])

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._connect_for_ever())

    def leave(self) -> bool:
        """Refuse further requests, and fail those under way: what they started goes on as background tasks. Return
        whether there were any."""
        if self._is_closed:
            return False
        self._is_closed = True
        self._receipts.send()
        waited = list(self._waiting)
        for waiting in waited:
            known = "nothing was done" if waiting.epoch is None else "what it runs goes on as a background task"
            self._fail(waiting, f"the server is shutting down before the node at {self.address} answered: {known}")
        self._write(messages.Leave())
        return bool(waited)

    async def close(self) -> None:
        """Leave, and close the connection. What runs at the node goes on."""
        self.leave()
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):  # TimeoutError is one
                async with asyncio.timeout(CLOSE_WITHIN):
                    await self._writer.wait_closed()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # -- the connection

    async def _connect_for_ever(self) -> None:
        failures = 0
        while True:
            try:
                if await self._serve_connection():
                    failures = 0
            except frames.MalformedFrameError as fault:
                log.error("the node at %s broke the rules: it sent %s", self.address, escape_unprintable(str(fault)))
                failures = len(PAUSES)
            except FloodError as fault:
                log.warning("the connection to the node at %s is ended: it sent %s", self.address, fault)
                failures = len(PAUSES)
            except NodeUnreachableError as error:
                if failures == len(PAUSES):
                    log.warning("%s", error)
                failures += 1
            self._mark_lost(asyncio.get_running_loop().time())
            await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])

    async def _serve_connection(self) -> bool:
        """Connect, and take the node's messages until the connection ends. Return whether it was good."""
        reader, writer = await self._connect()
        watch = asyncio.get_running_loop().create_task(self._watch_silence(reader, writer))
        turns = ReadingTurns()
        try:
            while True:
                await turns.take()
                self._take(await frames.read_frame(reader, messages.FROM_NODE, find_largest=self._waiting.find_largest))
        except (EOFError, OSError):
            return True
        finally:
            watch.cancel()
            self._disconnect(writer)

    def _hello(self) -> messages.Hello:
        return messages.Hello(messages.VERSION, RELEASE, self._name, self._database)

    async def _connect(self) -> tuple[CountingReader, asyncio.StreamWriter]:
        writer = None
        try:
            async with asyncio.timeout(GREETING):
                reader, writer = await open_connection(self.address, self.certificate, GREETING)
                writer.write(frames.encode_frame(self._hello()))
                welcome = read_welcome(self.address, await frames.read_frame(reader, messages.FROM_NODE, MAX_WELCOME))
            self.claimed_name, self.claimed_limit = welcome.name, _read_limit(welcome)
            await self.check(self, welcome)
        except BaseException as error:
            if writer is not None:
                writer.transport.abort()
            if isinstance(error, NodeUnreachableError) and not self._was_accepted:
                self.welcome = None  # that of the start, which nothing has checked
            if isinstance(error, (OSError, EOFError, CertificateError)):
                why = describe_failure(error, self.address)
                raise NodeUnreachableError(f"no node answers at {self.address}: {why}") from None
            raise
        self._heard = asyncio.get_running_loop().time()
        self._lost_at = None
        if self.welcome is not None and welcome.epoch != self.welcome.epoch:
            log.warning("the node at %s has restarted", self.address)
            self._receipts.clear()
            self._control.clear()
            self._fail_sent("restarted before it answered: all that ran there has ended, and")
            if welcome.name != self.welcome.name:  # what was not sent is for the people of the node before
                for waiting in list(self._waiting):
                    self._fail_unreachable(waiting)
                self._control.clear()
        elif not welcome.knows_gateway:  # a request that is sent again would be performed again
            self._fail_sent("was out of reach too long: nothing was run elsewhere, and")
        self.welcome, self._was_accepted = welcome, True
        self._writer, self.is_connected = writer, True
        self._control.send_again()
        for waiting in self._waiting:
            self._send(waiting)
        if self._reported_life != welcome.epoch:
            self._reported_life = welcome.epoch
            self.on_life()
        return reader, writer

    def _fail_sent(self, what: str) -> None:
        """Fail the requests that the node no longer has."""
        for waiting in [each for each in self._waiting if each.epoch is not None]:
            self._fail(waiting, f"the node at {self.address} {what} it is not known how far this came")

    def _disconnect(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        self._writer, self.is_connected = None, False
        for waiting in self._waiting:
            asyncio.get_running_loop().call_later(PATIENCE, self._give_up, waiting)

    def _mark_lost(self, moment: float) -> None:
        if self._lost_at is None:
            self._lost_at = moment

    async def _watch_silence(self, reader: CountingReader, writer: asyncio.StreamWriter) -> None:
        """End the connection to a node that owes answers and gives no sign: parts of large messages are signs too."""
        loop = asyncio.get_running_loop()
        silence, received, unsent = 0.0, 0, 0
        while True:
            due = loop.time() + min(BEAT, max(0.0, PATIENCE - silence) or BEAT)
            await asyncio.sleep(due - loop.time())
            left, now = writer.transport.get_write_buffer_size(), loop.time()
            if reader.received > received or left < unsent:
                self._heard = now
            elif now - due > BEAT:  # this process was suspended: that is no silence of the node
                self._heard = min(now, self._heard + now - due)
            received, unsent, silence = reader.received, left, now - self._heard
            if not self._waiting or silence < QUIET:
                self._control.ping_if_unconfirmed()
                continue
            if silence < PATIENCE:
                self._control.ping()
                continue
            log.warning("the node at %s has been silent for %.1f s", self.address, silence)
            self._mark_lost(self._heard)
            for waiting in list(self._waiting):
                self._fail_unreachable(waiting)
            writer.transport.abort()
            return

    def _take(self, message: Any) -> None:
        self._heard = asyncio.get_running_loop().time()
        match message:
            case NodeAnswer(number):
                waiting = self._waiting.find(number)
                if waiting is None or waiting.answer.done():
                    self._pace.charge(is_end=False)
                if waiting is None or waiting.is_cancelled:
                    self._receipts.add_answer(message)
                if waiting is not None and not waiting.answer.done():
                    waiting.answer.set_result(message)
            case TaskEnded():
                self._pace.charge(is_end=True)
                if not self._is_closed:
                    self._receipts.take_end(clean_end(message), self.on_end)
            case messages.Pong():
                if not self._control.take_pong():
                    self._pace.charge(is_end=False)
            case messages.Refusal(text):
                raise frames.MalformedFrameError(f"a refusal: {text[:200]}")
            case _:
                raise frames.MalformedFrameError("a second welcome")

    def _reconnect(self) -> None:
        """Have the node send again what was not taken."""
        if self._writer is not None:
            self._writer.transport.abort()

    def _write(self, message: msgspec.Struct) -> bool:
        """Send a message, and return whether there is a connection."""
        if self._writer is None:
            return False
        frames.write(self._writer, frames.encode_frame(message))
        return True

    # -- requests

    def _send(self, waiting: WaitingRequest) -> None:
        assert self._writer is not None
        self._receipts.send()  # first: the node then knows what this request may rely on
        assert self.welcome is not None
        waiting.epoch = self.welcome.epoch
        frames.write(self._writer, waiting.frame)

    def _give_up(self, waiting: WaitingRequest) -> None:
        if not self.is_connected:
            self._fail_unreachable(waiting)

    def _fail_unreachable(self, waiting: WaitingRequest) -> None:
        known = "nothing was done"
        if waiting.epoch is not None:
            known = "it is not known how far this came; nothing was run elsewhere"
        self._fail(waiting, f"the node at {self.address} can't be reached: {known}")

    def _fail(self, waiting: WaitingRequest, text: str) -> None:
        if waiting.is_cancelled:
            waiting.answer.cancel()
            self._withdraw(waiting, goes_on=False)
        elif not waiting.answer.done():
            self.failures += 1
            waiting.answer.set_exception(WorkspaceUnreachableError(text))
            self._withdraw(waiting, goes_on=True)

    async def _cancel(self, waiting: WaitingRequest) -> None:
        """Cancel a request at the node, and wait a while until it has ended what it started."""
        waiting.answer, waiting.is_cancelled = asyncio.get_running_loop().create_future(), True
        self._withdraw(waiting, goes_on=False)
        if self.is_connected and waiting.epoch is not None:
            waiting.frame = frames.encode_frame(Cancel(waiting.number))  # sent again if the connection breaks
            self._waiting.add(waiting)
            await asyncio.wait([waiting.answer], timeout=CANCEL_WITHIN)

    def _withdraw(self, waiting: WaitingRequest, *, goes_on: bool) -> None:
        """Tell the node that nobody waits any more, as soon as it can be told."""
        self._waiting.remove(waiting)
        if self.welcome is None or waiting.epoch not in (None, self.welcome.epoch):
            return
        if waiting.epoch is None and (waiting.run_id is None or not goes_on):
            return  # the node has never heard of it
        about = (waiting.principal, waiting.run_id)
        self._control.send(Cancel(waiting.number, goes_on, *about) if goes_on else Cancel(waiting.number))


async def _accept(_link: NodeLink, _welcome: Welcome) -> None:
    """Accept any node."""


def read_welcome(address: NodeAddress, message: Any) -> Welcome:
    """Return the node's answer to Hello. Raises NodeUnreachableError."""
    if isinstance(message, messages.Refusal):
        text = escape_unprintable(message.text[:300])
        raise NodeUnreachableError(f"the node at {address} refuses this server: {text}")
    if not isinstance(message, Welcome):
        raise NodeUnreachableError(f"what answers at {address} is not a node")
    if message.version not in messages.SPOKEN:
        release = escape_unprintable(message.release[:40])
        text = f"is Toolgate {release}, this server is {RELEASE}: upgrade the older of the two"
        raise NodeUnreachableError(f"the node at {address} {text}")
    if not NODE_NAME.fullmatch(message.name):
        raise NodeUnreachableError(f"the node at {address} says no name: upgrade it to Toolgate {RELEASE}")
    if not all(path is None or (path.startswith("/") and path.isprintable()) for path in (message.state, message.root)):
        raise NodeUnreachableError(f"the node at {address} says a folder that is no path to show")
    texts = {
        name: escape_unprintable(getattr(message, name)[:MAX_TEXT]) for name in ("release", "level", "description")
    }
    return msgspec.structs.replace(message, **texts)


def _read_limit(welcome: Welcome) -> int:
    return max(0, min(welcome.max_people, MAX_PEOPLE))


def greet(address: NodeAddress, timeout: float, certificate: "CertificateFile | None" = None) -> Welcome:
    """Return the welcome of the node at `address`. Blocking. Raises NodeUnreachableError."""
    try:
        with contextlib.closing(open_socket(address, certificate, timeout)) as line:
            line.sendall(frames.encode_frame(messages.Hello(messages.VERSION, RELEASE, "")))
            until = time.monotonic() + timeout
            (size,) = frames.LENGTH.unpack(receive(line, frames.LENGTH.size, until))
            data = receive(line, min(size, MAX_WELCOME), until)
            return read_welcome(address, messages.FROM_NODE.decode(data))
    except (OSError, EOFError, CertificateError) as error:
        raise NodeUnreachableError(describe_failure(error, address)) from None
    except (ValueError, msgspec.MsgspecError):
        raise NodeUnreachableError("what answers there is not a node") from None


def greet_all(
    addresses: Sequence[NodeAddress], timeout: float, certificate: "CertificateFile | None" = None
) -> list[tuple[NodeAddress, Welcome | NodeUnreachableError]]:
    """Return the welcome of each node, or why there is none. Blocking, for `timeout` seconds at most."""

    def try_one(address: NodeAddress) -> tuple[NodeAddress, Welcome | NodeUnreachableError]:
        try:
            return address, greet(address, timeout, certificate)
        except NodeUnreachableError as error:
            return address, error

    with ThreadPoolExecutor(len(addresses)) as threads:
        return list(threads.map(try_one, addresses))
