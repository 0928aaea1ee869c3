"""Go on with a call that waits at another replica: its client has come back to this one.

    the replica the client came back to          the replica at which the call waits

    what was asked?                  ──mail──>   the question; the call goes on waiting
    the answer, or why there is none ──mail──>   gives it to the mounted server, and waits for what comes of it
                                     <─reply──   progress and lines of its log
    what has come since?             ──mail──>   waits for more of it
                                     <─reply──   the result, an error, or the next question

So the call stays where its conversation is. Of an answer that got no reply nobody knows whether it was used: the call
may have run.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from toolgate.server.base.bus.bus import Bus, BusUnreachableError, NoReplyError, UndeliveredError
from toolgate.server.base.bus.replica_ids import parse_id
from toolgate.server.features.mounts.mount.forwarded_request import (
    ForwardedRequest,
    Result,
    name_question,
    pass_on,
)
from toolgate.server.features.mounts.mount.parked_requests import ParkedRequests
from toolgate.server.features.mounts.upstream import messages
from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamFault, UpstreamRefusal
from toolgate.server.features.mounts.upstream.peer import MountNotice, Question
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import CannotAskError

KIND = "mounted call"
LOOK_WITHIN = 5.0  # seconds
MARGIN = 10.0  # seconds that a reply may take longer than the call
ASKED_WITHIN = 30.0  # seconds after a reply until the call is asked for again: else its client has gone
FAILED = -32603  # the code of an answer to a question that the client did not give
GIVEN_UP = UpstreamFault("MAY_HAVE_RUN", "the server that went on with the call has given it up; the call may have run")
EXPIRED = UpstreamFault("QUESTION_EXPIRED", "what asked this question is over: make the call again")


class ParkedMail(msgspec.Struct, frozen=True):
    """`answer` is the client's, `refusal` why it gave none; without both the question is to be told, or what has come
    since the answer, of a call that `goes_on`."""

    mount: str
    id: str
    principal: str
    answer: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    refusal: str = ""
    goes_on: bool = False


class ParkedReply(msgspec.Struct, frozen=True):
    """What came of it: one of these, or the question `number` of the call, after `notices`. A call that `goes_on` has
    told nothing else so far."""

    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    fault: UpstreamFault | None = None
    error: UpstreamRefusal | None = None
    method: str = ""
    params: dict[str, Any] = {}
    number: int = 0
    seconds: float = 60.0  # that the call may take without a sign of life, once it is answered
    notices: list[MountNotice] = []
    goes_on: bool = False


class ParkedOffice:
    """Answers the mail of other replicas about the calls that wait here. `find_parked(mount)` returns those of a mount,
    and its timeout."""

    def __init__(self, find_parked: Callable[[str], tuple[ParkedRequests, float] | None]) -> None:
        self._find_parked = find_parked

    async def handle(self, data: bytes) -> bytes:
        mail = msgspec.json.decode(data, type=ParkedMail)
        return msgspec.json.encode(await self._reply(mail))

    async def _reply(self, mail: ParkedMail) -> ParkedReply:
        found = self._find_parked(mail.mount)
        if found is None:
            return ParkedReply(fault=EXPIRED)
        parked, timeout = found
        if isinstance(mail.answer, msgspec.UnsetType) and not mail.refusal and not mail.goes_on:
            request = parked.look_at(mail.id, mail.principal)
            if request is None or request.question is None:
                return ParkedReply(fault=EXPIRED)
            return _describe_question(request, timeout)
        request = parked.take(mail.id, mail.principal)
        if request is None:
            return ParkedReply(fault=GIVEN_UP if mail.goes_on else EXPIRED)
        with request.turn:
            try:
                return await self._go_on(request, mail, request.timeout or timeout, parked)
            except MountError as error:
                request.cancel("no longer needed")
                return ParkedReply(fault=error.fault)

    async def _go_on(
        self, request: ForwardedRequest, mail: ParkedMail, seconds: float, parked: ParkedRequests
    ) -> ParkedReply:
        if request.question is not None:
            await _answer(request, request.question, mail)
        notices: list[MountNotice] = []
        try:
            async with asyncio.timeout(seconds):
                event = await request.flight.events.get()
        except TimeoutError:
            request.cancel("it took too long")
            return ParkedReply(fault=UpstreamFault("CALL_TIMEOUT", f"no answer within {seconds:g} s"))
        except BaseException:
            request.cancel("no longer needed")
            raise
        while isinstance(event, MountNotice):
            notices.append(event)
            if request.flight.events.empty():
                parked.park(mail.id, request, ASKED_WITHIN)
                return ParkedReply(notices=notices, goes_on=True, seconds=seconds)
            event = request.flight.events.get_nowait()
        if isinstance(event, UpstreamFault):
            return ParkedReply(fault=event, notices=notices)
        if isinstance(event, UpstreamRefusal):
            return ParkedReply(error=event, notices=notices)
        if isinstance(event, dict):
            return ParkedReply(result=msgspec.Raw(msgspec.json.encode(event)), notices=notices)
        assert isinstance(event, Question)  # the request takes no others
        request.question = event
        request.asked += 1
        parked.park(mail.id, request)
        return replace(_describe_question(request, seconds), notices=notices)


async def _answer(request: ForwardedRequest, question: Question, mail: ParkedMail) -> None:
    """Give the mounted server what the client said. Raises MountError."""
    request.question = None
    if isinstance(mail.answer, msgspec.UnsetType):
        await request.session.peer.refuse(question.id, FAILED, mail.refusal)
    else:
        await request.session.peer.answer(question, mail.answer)


def _describe_question(request: ForwardedRequest, timeout: float) -> ParkedReply:
    question = request.question
    assert question is not None
    seconds = request.timeout or timeout
    return ParkedReply(method=question.method, params=question.params, number=request.asked, seconds=seconds)


class ElsewhereParked:
    """Goes on with calls of one mount that wait at other replicas."""

    def __init__(self, bus: Bus, mount: str) -> None:
        self._bus = bus
        self._mount = mount

    async def carry_on(self, id: str, context: Context) -> Result | None:
        """Return the result of a call, or None if none waits there. Raises MountError, UpstreamRefusedError, and what
        asking the client raises."""
        place = parse_id(id)
        if place is None or place.replica == self._bus.replica.name:
            return None
        mail = ParkedMail(self._mount, id, context.principal)
        reply = await self._send(place.replica, mail, LOOK_WITHIN, UndeliveredError, NoReplyError)
        if reply.fault == EXPIRED:
            return None
        while reply.method or reply.goes_on:
            seconds = reply.seconds + MARGIN
            if reply.goes_on:
                mail = ParkedMail(self._mount, id, context.principal, goes_on=True)
                reply = await self._send(place.replica, mail, seconds)
            else:
                mail = await self._have_answered(id, reply, context)
                reply = await self._send(place.replica, mail, seconds, UndeliveredError)
            for notice in reply.notices:
                await pass_on(notice, context)
        if reply.error is not None:
            raise reply.error.create_error()
        if reply.fault is not None:
            raise reply.fault.create_error()
        result = messages.split_object(reply.result)
        if result is None:
            raise EXPIRED.create_error()
        return result

    async def _have_answered(self, id: str, reply: ParkedReply, context: Context) -> ParkedMail:
        key = name_question(reply.number)
        question: dict[str, Any] = {"method": reply.method, "params": reply.params}
        try:
            answers = await context.ask({key: question})
        except CannotAskError as error:
            return ParkedMail(self._mount, id, context.principal, refusal=error.text)
        answer = msgspec.Raw(msgspec.json.encode(answers[key]))
        return ParkedMail(self._mount, id, context.principal, answer=answer)

    async def _send(self, replica: str, mail: ParkedMail, seconds: float, *never_ran: type[Exception]) -> ParkedReply:
        """Return the reply; after one of the errors `never_ran` the call waits no more. Raises MountError."""
        try:
            data = await self._bus.mail.send(replica, KIND, msgspec.json.encode(mail), seconds)
        except (UndeliveredError, NoReplyError, BusUnreachableError) as error:
            if isinstance(error, never_ran):
                return ParkedReply(fault=EXPIRED)
            raise MountError("MAY_HAVE_RUN", f"the server that went on with the call is away; {error}") from None
        return msgspec.json.decode(data, type=ParkedReply)
