"""Turn one inbound message into a method call and its answer, whatever transport it came by.

Above: a transport, which calls `handle` for each message in a task of its own. Below: the method table. Only this
module turns exceptions into messages.
"""

import asyncio
import inspect
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import CoroutineType
from typing import Any

import msgspec

from toolgate.server.base.limits.budget import Budget, Claim
from toolgate.server.base.limits.state_budget import enter_call
from toolgate.server.protocol import request_meta
from toolgate.server.protocol.errors import InternalError, InvalidParams, InvalidRequest, MethodNotFound, RpcError
from toolgate.server.protocol.interruption import interrupted_answer
from toolgate.server.protocol.message_ids import Id
from toolgate.server.protocol.messages import (
    Failure,
    Inbound,
    MalformedMessage,
    Notification,
    Outbound,
    Request,
    Response,
    Result,
    decode,
    encode,
)
from toolgate.server.protocol.session import Call, Channel, InFlightRequest, Session
from toolgate.tools.api.errors import drop_tracebacks

log = logging.getLogger("toolgate.dispatcher")

MAX_ANSWERS = 64 * 2**20  # bytes of one principal's answers not read by its clients: six of the largest files
MAX_ALL_ANSWERS = 192 * 2**20  # bytes of all principals' answers: a fifth of a container of 1 GiB
MAX_IN_FLIGHT = 4_096  # of one session; a client with more unanswered requests than this is broken or hostile
TOO_LARGE_BATCH = "the answers of this batch are too large together: ask for fewer at once"
NO_SCOPES: frozenset[str] = frozenset()

MethodAnswer = Any  # what a method returns: an object, or one already encoded
ScopesOf = Callable[[Mapping[str, Any], str], frozenset[str]]  # parameters of a request, principal → needed scopes


class Method(msgspec.Struct, frozen=True):
    """A row of the method table.

    `scopes` returns the scopes that a request needs from a signed-in caller; it has no default. The header Mcp-Name
    repeats the parameter `name_parameter`. `is_stream`: the answer is a stream of notifications, and ends when its
    reader leaves. The two eras have different methods.
    """

    function: Callable[[Call], MethodAnswer | Awaitable[MethodAnswer]]
    scopes: ScopesOf
    name_parameter: str | None = None
    is_stream: bool = False
    with_session: bool = True
    stateless: bool = True
    before_initialize: bool = False


class Dispatcher:
    """Answer messages by the method table. `finish(answer, call)` adds what the revision requires on every result.
    `answers` bounds unread answers in bytes: of batches here, of connections in the transports. While `is_ending`, a
    request whose task is cancelled is answered with an error: the server's end interrupts it."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        notifications: Mapping[str, Callable[[Session, dict[str, Any]], None]],
        finish: Callable[[Any, Call], Any],
    ) -> None:
        self._methods = methods
        self._notifications = notifications
        self._finish = finish
        self.answers = Budget(MAX_ALL_ANSWERS, MAX_ANSWERS)
        self.is_ending = False

    def scopes_of(self, message: Inbound | list[Inbound], principal: str = "") -> frozenset[str]:
        """Return the scopes that `message` of a principal needs; for a batch those of all its requests, so that none
        can hide in it.

        Notifications and answers need none: they start nothing. An unknown method is refused later.
        """
        if isinstance(message, Request):
            method = self._methods.get(message.method)
            return NO_SCOPES if method is None else method.scopes(message.params, principal)
        if isinstance(message, list):
            return NO_SCOPES.union(*(self.scopes_of(each, principal) for each in message))
        return NO_SCOPES

    def name_parameter(self, method: str) -> str | None:
        """Return the parameter of `method` that the header Mcp-Name repeats, or None."""
        row = self._methods.get(method)
        return None if row is None else row.name_parameter

    def is_stream(self, message: Inbound | list[Inbound]) -> bool:
        """Return whether a message is a request whose answer is a stream."""
        row = self._methods.get(message.method) if isinstance(message, Request) else None
        return row is not None and row.is_stream

    def handle(
        self, data: bytes | bytearray | memoryview, session: Session, channel: Channel
    ) -> Coroutine[Any, Any, None]:
        """Answer the message in `data` on `channel`. Returns when that is done; never raises for what a client sent.

        Cancelling a request cancels the task this runs in, so a transport gives each message its own task.
        """
        return self.handle_message(decode(data), session, channel)

    def handle_message(
        self, message: Inbound | list[Inbound], session: Session, channel: Channel
    ) -> Coroutine[Any, Any, None]:
        """Answer a decoded message, for a transport that had to read it first."""
        if isinstance(message, Request):  # as nearly all are
            return self._answer(message, session, channel)
        if isinstance(message, list):
            return self._batch(message, session, channel)
        return self._handle_one(message, session, channel)

    async def _handle_one(
        self, message: Notification | Response | MalformedMessage, session: Session, channel: Channel
    ) -> None:
        match message:
            case Notification():
                self._handle_notification(message, session)
            case Response():
                session.resolve_response(message)
            case MalformedMessage():
                channel.send(Failure(message.id, message.error))

    async def _answer(self, request: Request, session: Session, channel: Channel) -> None:
        task = asyncio.current_task()
        assert task is not None
        flight = InFlightRequest(task)
        budget = enter_call()
        try:
            method, call = self._prepare_call(request, session, channel)
            call.flight = flight
            session.in_flight[request.id] = flight
            try:
                answer = method.function(call)
                if type(answer) is CoroutineType or inspect.isawaitable(answer):
                    answer = await answer
            finally:
                del session.in_flight[request.id]
            if not flight.is_cancelled:
                channel.send(Result(request.id, self._finish(answer, call)))
            elif flight.on_unsent is not None:
                flight.on_unsent()
        except asyncio.CancelledError:
            if flight.is_cancelled:
                task.uncancel()
                if flight.on_unsent is not None:  # cancelled between the result and its answer
                    flight.on_unsent()
            elif task.cancelling():  # the client has left, or the server is stopping
                if self.is_ending:
                    channel.send(interrupted_answer(request.id))
                # the task keeps the error, which keeps this frame: with the task in it, only gc would free them
                del task, flight.task
                raise
            else:  # the method was cancelled by something of its own
                self._send_fault(request, flight, channel)
        except RpcError as error:
            self._send_error(request, error, flight, channel)
        except GeneratorExit:
            raise
        except BaseException:  # noqa: BLE001  # a bug, here or in a plugin, whatever it raised
            self._send_fault(request, flight, channel)
        finally:
            budget.leave()

    def _send_error(self, request: Request, error: RpcError, flight: InFlightRequest, channel: Channel) -> None:
        if flight.on_unsent is not None:
            flight.on_unsent()
        failure = create_failure(request.id, error)
        if not flight.is_cancelled:
            channel.send(failure)

    def _send_fault(self, request: Request, flight: InFlightRequest, channel: Channel) -> None:
        self._send_error(request, log_fault(request.method, sys.exception()), flight, channel)

    def _prepare_call(self, request: Request, session: Session, channel: Channel) -> tuple[Method, Call]:
        """Return the method and the call, or the RpcError that refuses the request."""
        meta, speaking = request.params.get("_meta"), session
        if meta is None:
            if session.stateless:
                speaking = request_meta.request_session({}, session)
        elif meta is not session.meta:  # else this very object was checked
            if not isinstance(meta, dict):
                raise InvalidParams("'_meta' must be an object")
            if session.stateless or request_meta.is_stateless(meta):
                speaking = request_meta.request_session(meta, session)
        method = self._methods.get(request.method)
        if speaking.revision is None:
            if method is None or not method.before_initialize:
                raise InvalidRequest(f"{request.method[:200]!r} came before 'initialize'")
        elif method is None or not (method.stateless if speaking.revision.stateless else method.with_session):
            raise MethodNotFound(f"unknown method {request.method[:200]!r}")
        if request.id in session.in_flight:
            raise InvalidRequest(f"request id {request.id!r} is already in flight")
        if len(session.in_flight) >= MAX_IN_FLIGHT:
            raise InvalidRequest(f"more than {MAX_IN_FLIGHT} requests in flight")
        return method, Call(request.id, request.method, request.params, speaking, channel)

    def _handle_notification(self, notification: Notification, session: Session) -> None:
        handler = self._notifications.get(notification.method)
        if handler is None:
            return  # unknown notifications are ignored (JSON-RPC 2.0 section 4.1)
        try:
            handler(session, notification.params)
        except Exception:  # malformed ones too: a notification has no answer
            log.debug("ignored %s", notification.method, exc_info=True)

    async def _batch(self, messages: list[Inbound], session: Session, channel: Channel) -> None:
        """Answer a JSON-RPC batch, which only 2025-03-26 has, with one array."""
        refusal = _refuse_batch(messages, session)
        if refusal is not None:
            channel.send(Failure(None, refusal))
            return
        claim = self.answers.claim(session.principal)
        try:
            answers = _BatchChannel(channel, claim)
            try:
                await self._answer_each(messages, session, answers)
            except asyncio.CancelledError:
                if self.is_ending and answers.messages:
                    channel.send(answers.messages)
                raise
        finally:
            claim.release()
        if answers.messages:  # which the channel counts by itself
            channel.send(answers.messages)

    async def _answer_each(self, messages: list[Inbound], session: Session, answers: "_BatchChannel") -> None:
        async with asyncio.TaskGroup() as group:
            for message in messages:
                if isinstance(message, Request) and message.method == "initialize":
                    answers.send(Failure(message.id, InvalidRequest("'initialize' must not be part of a batch")))
                elif isinstance(message, Request) and self.is_stream(message):
                    refusal = InvalidRequest(f"{message.method!r} must not be part of a batch")
                    answers.send(Failure(message.id, refusal))
                else:
                    group.create_task(self.handle_message(message, session, answers))


def create_failure(id: Id, error: RpcError) -> Failure:
    """Return the answer for an error that was raised. Its frames are freed: they hold the channel, which may hold the
    answer."""
    drop_tracebacks(error)
    return Failure(id, error)


def log_fault(what: str, error: BaseException | None) -> InternalError:
    """Log an unknown exception, which may hold secrets, and return an error that refers to the log line."""
    reference = os.urandom(6).hex()
    log.error("reference %s: %s failed", reference, what, exc_info=error)
    is_changed = _is_own_import_error(error)
    if error is not None:
        drop_tracebacks(error)
    hint = "; the server's program has changed or was removed since it started: restart it" if is_changed else ""
    return InternalError(f"internal error, reference {reference}{hint}")


def _is_own_import_error(error: BaseException | None) -> bool:
    """Return whether a module of the server failed to import another: some are loaded by the first call that needs
    them, perhaps after an upgrade. A plugin's import is its own fault."""
    if not isinstance(error, ImportError) or (error.name or "").partition(".")[0] != "toolgate":
        return False
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and str(frame.tb_frame.f_globals.get("__name__")).startswith("toolgate.")


class _BatchChannel:
    """Collect answers until the batch ends, and pass everything else on. An answer too large for `claim` becomes an
    error."""

    def __init__(self, channel: Channel, claim: Claim) -> None:
        self.messages: list[Outbound] = []
        self._channel = channel
        self._claim = claim

    @property
    def can_ask(self) -> bool:
        return self._channel.can_ask

    @property
    def is_full(self) -> bool:
        return self._channel.is_full

    def send(self, message: Outbound) -> None:
        if isinstance(message, (Result, Failure)):
            data = encode(message)  # now, so that an answer that can't be encoded fails alone
            if not self._claim.grow(len(data)):
                data = encode(Failure(message.id, InternalError(TOO_LARGE_BATCH)))
            self.messages.append(msgspec.Raw(data))
        else:
            self._channel.send(message)

    def pause(self) -> None:
        """Do nothing: the batch's other answers are still to come."""


def _refuse_batch(messages: list[Inbound], session: Session) -> RpcError | None:
    if session.revision is None or not session.revision.batches:
        return InvalidRequest("only revision 2025-03-26 allows batches; send one message at a time")
    if not messages:
        return InvalidRequest("the batch is empty")
    return None
