"""Tell the server of a call, and request of it what belongs to the caller.

An answer is kept raw until it is known what it is: it may hold a file.
"""

import asyncio
import threading
from functools import partial
from typing import Any

import msgspec

from toolgate.server.base.rpc import frames
from toolgate.server.base.rpc.errors import ErrorData
from toolgate.server.features.mounts.plugins import data
from toolgate.server.features.mounts.plugins.data import ContextAnswer
from toolgate.server.features.mounts.upstream.peer import PROGRESS, REQUEST
from toolgate.server.protocol.message_ids import Id
from toolgate.server.protocol.messages import Notification, Outbound, Request
from toolgate.server.protocol.session import Session
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.event import EventType

HEAD = 64  # bytes of a message in which a request has its method


class QuestionAskedError(BaseException):
    """End the call with the question of request `number`. Not an Exception, so that no plugin catches it by mistake."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class _Answer(msgspec.Struct):
    """What the server answers; a message with a method is none."""

    id: int
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    method: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_result = frames.create_decoder(ContextAnswer).decode


class ServerLink:
    """The way to the server, by the channel of `session`. Its methods but `request` may be called in any thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: dict[int, asyncio.Future[ContextAnswer]] = {}
        self._last_number = 0
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def note(self, id: Id, method: str, notice: msgspec.Struct) -> None:
        """Tell the server something of the call `id`. Raises TypeError for what JSON can't hold."""
        members = msgspec.json.decode(frames.encode_raw(notice), type=dict[str, msgspec.Raw])
        token = {"progressToken": id} if method == PROGRESS else {}
        self._send(Notification(method, {**token, **members, "_meta": {REQUEST: id}}))

    def emit(self, type: EventType, principal: str, payload: Any, key: str | None) -> None:
        """Tell the server of an event. Raises ValueError for a payload that does not fit, so that the plugin learns."""
        plain = msgspec.json.decode(frames.encode_raw(payload))
        finding = type.check_payload(plain)
        if finding is not None:
            raise ValueError(f"the payload of {type.name}: {finding}")
        params = {"name": type.name, "principal": principal, "payload": plain, "key": key}
        self._send(Notification(data.EVENT, params))

    async def request(self, id: Id, name: str, arguments: Any) -> msgspec.Raw:
        """Return the result of a request for the call `id`. Raises the server's exception, OverflowError and
        QuestionAskedError."""
        raw = frames.encode_raw(arguments)
        if len(bytes(raw)) > data.MAX_MESSAGE:
            raise OverflowError(f"{len(bytes(raw)):,} bytes, over {data.MAX_MESSAGE:,}")
        self._last_number += 1
        number = self._last_number
        answered: asyncio.Future[ContextAnswer] = self._loop.create_future()
        self._waiting[number] = answered
        try:
            self._send(Request(number, data.CONTEXT, {"name": name, "arguments": raw, "_meta": {REQUEST: id}}))
            answer = await answered
        except asyncio.CancelledError:
            self._send(Notification(data.CANCELLED, {"requestId": number, "_meta": {REQUEST: id}}))
            raise
        finally:
            del self._waiting[number]
        if answer.ends:
            raise QuestionAskedError(number)
        if answer.error is not None:
            raise data.ERRORS.to_error(answer.error)
        return answer.result

    def take_answer(self, message: bytes | bytearray | memoryview) -> bool:
        """Return whether a message is an answer, and take it."""
        if b'"method"' in bytes(message[:HEAD]):
            return False
        try:
            answer = _decode_answer(message)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False
        if answer.method is not msgspec.UNSET:
            return False
        waiting = self._waiting.get(answer.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(_read_answer(answer))
        return True

    def _send(self, message: Outbound) -> None:
        if threading.get_ident() == self._thread:
            self._send_now(message)
        else:  # of a plain function
            self._loop.call_soon_threadsafe(partial(self._send_now, message))

    def _send_now(self, message: Outbound) -> None:
        channel = self._session.channel
        assert channel is not None  # a call has come
        channel.send(message)


def _read_answer(answer: _Answer) -> ContextAnswer:
    if not isinstance(answer.result, msgspec.UnsetType):
        result: ContextAnswer = _decode_result(answer.result)
        return result
    return ContextAnswer(error=ErrorData(ToolError.__name__, "the call is over"))
