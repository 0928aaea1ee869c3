"""Answer one request: call the handler, wait for its answer, and send that."""

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from inspect import isawaitable
from typing import Any, Protocol

from toolgate.transports.http.wire.body import ClientDisconnectedError, IncomingBody
from toolgate.transports.http.wire.request import (
    Answer,
    Handler,
    HttpRequest,
    PendingResponse,
    StreamedResponse,
    WholeResponse,
    refuse,
)
from toolgate.transports.http.wire.writer import AnswerWriter

FAILED = "an internal error occurred; the server's log has the details"

log = logging.getLogger("toolgate.http")


class Carrier(Protocol):
    """The connection, as an exchange sees it."""

    def start(self, work: Coroutine[Any, Any, None], context: Context) -> None: ...

    def send_response(self, request: HttpRequest, response: WholeResponse) -> None: ...

    def begin_answer(self, request: HttpRequest, status: int, lines: bytes, *, closes: bool) -> bytes: ...

    def send(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    def end_answer(self) -> None: ...

    def abort(self) -> None: ...


class Exchange:
    """One request and its answer. Once the client has gone, nothing is sent."""

    __slots__ = ("_connection", "_context", "_request")

    def __init__(self, connection: Carrier, request: HttpRequest, context: Context) -> None:
        self._connection = connection
        self._request = request
        self._context = context  # the context variables of the request

    def begin(self, handler: Handler) -> None:
        """Call the handler, and send its answer now or later."""
        try:
            answer = self._context.run(handler, self._request)
        except Exception as error:  # noqa: BLE001  # it is answered, and the server goes on
            answer = self._fail(error)
        self._take(answer)

    def _take(self, answer: Answer) -> None:
        if type(answer) is WholeResponse:
            self._respond(answer)
        elif type(answer) is PendingResponse:
            answer.then(self._take)
        elif type(answer) is StreamedResponse:
            self._connection.start(self._stream(answer), self._context)
        else:
            self._connection.start(self._wait(answer), self._context)

    async def _wait(self, answer: Any) -> None:
        try:
            while isawaitable(answer):
                answer = await answer
        except asyncio.CancelledError:
            self._release()
            self.abort()
            raise
        except ClientDisconnectedError:
            self._release()
            self.abort()
            return
        except Exception as error:  # noqa: BLE001  # as above
            answer = self._fail(error)
        self._take(answer)

    def _respond(self, response: WholeResponse) -> None:
        """Send a whole answer when the request's body has ended, or at once if it is the last one."""
        self._release()
        body = self._request.incoming
        if self._request.is_lost:
            return
        if body is None or body.is_complete or response.closes:
            self._connection.send_response(self._request, response)
        else:
            self._connection.start(self._respond_after(body, response), self._context)

    async def _respond_after(self, body: IncomingBody, response: WholeResponse) -> None:
        """Drop the rest of the body, then answer. If it does not end, the connection closes."""
        if not await body.drop():
            response = WholeResponse(response.status, response.lines, response.body, closes=True)
        if not self._request.is_lost:
            self._connection.send_response(self._request, response)

    async def _stream(self, answer: StreamedResponse) -> None:
        """Write an answer in parts."""
        head = self._request.head
        writer = AnswerWriter(self, is_head=head.method == "HEAD", is_old=head.version == "1.0")
        response = refuse(500, FAILED, closes=True)  # if nothing is written
        try:
            await answer.write(writer)
        except asyncio.CancelledError:
            self.abort()
            raise
        except ClientDisconnectedError:
            self.abort()
        except Exception as error:  # noqa: BLE001  # as above
            response = self._fail(error)
        finally:
            self._release()
        if self._request.is_lost or writer.has_ended:
            return
        if writer.has_begun:
            self.abort()
        else:
            self._connection.send_response(self._request, response)

    def _fail(self, error: Exception) -> WholeResponse:
        """Log an error, and return the answer to its request."""
        head = self._request.head
        log.error("%s %s failed", head.method, head.raw_path.decode("ascii"), exc_info=error)
        return refuse(500, FAILED, closes=True)

    def _release(self) -> None:
        """Release what the request holds until its answer is whole."""
        on_end, self._request.on_end = self._request.on_end, None
        if on_end is not None:
            on_end()

    # -- what an answer is written to

    def begin_answer(self, status: int, lines: bytes, *, closes: bool) -> bytes:
        return self._connection.begin_answer(self._request, status, lines, closes=closes)

    def send(self, data: bytes) -> None:
        if not self._request.is_lost:
            self._connection.send(data)

    async def drain(self) -> None:
        if not self._request.is_lost:
            await self._connection.drain()

    def end_answer(self) -> None:
        if not self._request.is_lost:
            self._connection.end_answer()

    def abort(self) -> None:
        """End the connection: the answer can't be completed."""
        if not self._request.is_lost:
            self._connection.abort()
