"""Carry one request of a client to a mounted server, and its questions back.

Two eras meet here. A server of the sessions era asks while it works, and waits. A client of the stateless era is asked
by the end of its request, and calls again: until then the request is parked. A server of the stateless era ends its
own request in the same way, and is asked again with the answers.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from toolgate.server.base.asyncio_tasks import DeadlineTimer
from toolgate.server.base.bus.bus import Bus
from toolgate.server.calls.client import InputRequired
from toolgate.server.features.mounts.lists.list_store import MountLists
from toolgate.server.features.mounts.mount.call_limits import MountCallLimits
from toolgate.server.features.mounts.mount.continued_calls import ContinuedCalls
from toolgate.server.features.mounts.mount.forwarded_request import (
    RELATED,
    TASK_TIMEOUT,
    ForwardedRequest,
    Result,
    name_question,
    pass_on,
    recall,
    start_request,
    start_task,
)
from toolgate.server.features.mounts.mount.mount import Mount
from toolgate.server.features.mounts.mount.parked_elsewhere import EXPIRED, FAILED, ElsewhereParked
from toolgate.server.features.mounts.mount.parked_requests import ParkedRequests
from toolgate.server.features.mounts.mount.pool import SessionKey
from toolgate.server.features.mounts.mount.profile import create_profile
from toolgate.server.features.mounts.mount.sign_in_waits import CONNECT_METHOD, KINDS, SIGN_IN_QUESTION, SignInWaits
from toolgate.server.features.mounts.upstream.envelope import strip_meta
from toolgate.server.features.mounts.upstream.errors import (
    MountError,
    UpstreamFault,
    UpstreamRefusal,
    UpstreamRefusedError,
)
from toolgate.server.features.mounts.upstream.peer import MountNotice, Question
from toolgate.server.features.mounts.upstream.session import ForwardedParams, UpstreamSession
from toolgate.server.protocol.errors import RpcError
from toolgate.server.protocol.request_meta import SERVER
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import CannotAskError

SIGN_IN = "SIGN_IN_REQUIRED"
CALL = "mounted-call"  # under which the name of a call that waits for its client is kept
MAX_ROUNDS = 32  # of questions in one call of the stateless era
NEVER_RAN = frozenset(("SESSION_EXPIRED", "CONNECT_FAILED"))
NOT_TAKEN = NEVER_RAN | {SIGN_IN}  # what became of one message, and of a call that is one message
BROKEN = frozenset(("CONNECTION_LOST", "STDIO_EXITED", "STDIO_CLOSED", "TOO_LARGE", "BAD_MESSAGE"))


T = TypeVar("T")


class RequestForwarder:
    """Carries requests to one mount. `per` says who shares a conversation. `bus`: that of several servers on the same
    state; a client may come back to any of them. `sign_in`: for a mount at which each person signs in. `continued`: for
    one whose calls are counted."""

    def __init__(
        self,
        mount: Mount,
        per: str,
        bus: Bus | None = None,
        sign_in: SignInWaits | None = None,
        continued: ContinuedCalls | None = None,
    ) -> None:
        self._mount = mount
        self.mount_name = mount.name
        self._per = per
        self._sign_in = sign_in
        self._limits = MountCallLimits(mount.config.limits)
        self._timers = {seconds: DeadlineTimer(seconds) for seconds in (mount.config.timeout, TASK_TIMEOUT)}
        self._continued = continued
        self.parked = ParkedRequests("" if bus is None else bus.replica.name)
        self._elsewhere = None if bus is None else ElsewhereParked(bus, mount.name)

    async def forward(
        self,
        method: str,
        params: Mapping[str, Any],
        context: Context,
        *,
        original: str,
        is_repeatable: bool,
        headers: Mapping[str, str] = {},
        as_task: bool = False,
    ) -> Result:
        """Return the mounted server's result, its members as they came. `original` names the part there; `headers`
        repeat arguments; `as_task`: a server with sessions runs the call as a task only. Raises MountError, RpcError,
        ToolError."""
        caller = context.caller
        meta = strip_meta(caller.meta)
        asked = {**params, "_meta": meta} if meta else params
        sent = ForwardedParams(method, asked, headers, caller.log_level, as_task)

        async def send(is_again: bool) -> Result:
            return await self._forward(sent, context, is_repeatable, is_again=is_again)

        return await self._have_sign_in(method, original, context, send)

    @property
    def signs_in(self) -> bool:
        """Whether each person signs in at the mounted server."""
        return self._sign_in is not None

    @property
    def has_sign_in_page(self) -> bool:
        """Whether there is a page where they do so."""
        return self._sign_in is not None and self._sign_in.has_page

    async def connect(self, context: Context, original: str) -> MountLists:
        """Return what the caller is shown, whose person signs in where that is needed. `original` names what was
        called. Raises as `forward`."""

        async def find_lists(is_again: bool) -> MountLists:
            async with self._limits.count(context.principal, is_new=not is_again):
                return await self._mount.fetch_lists(self._find_key(context))

        return await self._have_sign_in(CONNECT_METHOD, original, context, find_lists)

    async def _have_sign_in(
        self, method: str, original: str, context: Context, send: Callable[[bool], Awaitable[T]]
    ) -> T:
        """Return what `send(is_again)` does, which may have to wait for a sign-in. `is_again`: it goes on with a call
        that has waited."""
        began = time.monotonic()
        try:
            return await send(self._continued is not None and await self._continued.continues(context))
        except MountError as error:
            if self._sign_in is None or error.code != SIGN_IN or method not in KINDS:
                raise
            refusal = error.fault
        await self._sign_in.wait(refusal, method, original, context.after(time.monotonic() - began))
        return await send(True)

    def close(self) -> None:
        """End the calls that wait: the mount is served no longer."""
        self.parked.end(None)
        if self._sign_in is not None:
            self._sign_in.close()

    def watch(self, uri: str, context: Context) -> AsyncIterator[object]:
        """Yield at each change of a resource."""
        return self._mount.watches.watch(self._find_key(context), uri)

    async def _forward(self, sent: ForwardedParams, context: Context, is_repeatable: bool, *, is_again: bool) -> Result:
        """Return the result of a call that waits, or of one that begins."""
        id = await recall(context, CALL) if context.knows("stateless") else None
        try:
            async with self._limits.count(context.principal, is_new=not is_again):
                result = None if id is None else await self._take_up(id, context)
                if result is None:  # an empty one is a result, too
                    result = await self._carry(self._find_key(context), id is None, sent, context, is_repeatable)
                return _finish(result, context)
        except UpstreamRefusedError as error:
            raise _create_rpc_error(error.refusal) from None

    async def _take_up(self, id: str, context: Context) -> Result | None:
        """Return the result of a call that has waited for its client, here or at another server; None: none waits."""
        parked = self.parked.take(id, context.principal)
        try:
            if parked is None:
                return None if self._elsewhere is None else await self._elsewhere.carry_on(id, context)
            with parked.turn:
                return await self._follow_or_park(parked, context)
        except MountError as error:
            raise _create_doubt(error) if error.code in BROKEN | NOT_TAKEN else error from None

    async def _carry(
        self, key: SessionKey, is_new: bool, sent: ForwardedParams, context: Context, is_repeatable: bool
    ) -> Result:
        async def send(session: UpstreamSession) -> Result:
            if session.info.is_modern:
                return await self._ask_in_rounds(session, sent, context)
            if not is_new:
                raise EXPIRED.create_error()
            start = start_task if sent.is_task else start_request
            request = await start(session, sent, context)
            request.turn = turn
            return await self._follow_or_park(request, context)

        with await self._mount.take_turn(key) as turn:
            return await self._repeat(key, send, is_repeatable)

    def _find_key(self, context: Context) -> SessionKey:
        """Return the key of the conversation for a caller."""
        caller = context.caller
        if self._per == "all":
            self._mount.standing.note_sharer(context.principal)
        return create_key(self._per, context.principal, caller.capabilities, caller.session, caller.scopes)

    async def _repeat(
        self, key: SessionKey, send: Callable[[UpstreamSession], Awaitable[Result]], is_repeatable: bool
    ) -> Result:
        """Send, and once more over a new conversation if the first one was over, and that can do no harm."""
        is_first = True
        while True:
            session = await self._mount.get_session(key)
            try:
                return await send(session)
            except MountError as error:
                if is_first and (error.code in NEVER_RAN or (is_repeatable and error.code in BROKEN)):
                    is_first = False
                elif error.code in BROKEN and not is_repeatable:
                    raise _create_doubt(error) from None
                else:
                    raise

    async def _ask_in_rounds(self, session: UpstreamSession, sent: ForwardedParams, context: Context) -> Result:
        """Return the result of a mounted server of the stateless era, which is asked again with the answers. Its
        questions keep their names, but for one that an earlier round or a sign-in has used: the client's answers lie
        together."""
        given: dict[str, Any] = {}
        used = {SIGN_IN_QUESTION}
        for number in range(MAX_ROUNDS):

            async def send(given: Mapping[str, Any] = given) -> Result:
                try:
                    again = replace(sent, params={**sent.params, **given}) if given else sent
                    request = await start_request(session, again, context)
                    return await self._follow_or_cancel(request, context)
                except MountError as error:
                    if not given:
                        raise
                    raise _create_interruption(error) from None

            result = await (context.once(f"mounted-{number}", send) if context.knows("stateless") else send())
            if _read(result, "resultType") != "input_required":
                return result
            requests = _read(result, "inputRequests") or {}
            keys = {_choose_question_name(key, used): key for key in requests}
            answers = await context.ask({name: requests[key] for name, key in keys.items()}) if keys else {}
            given = {"inputResponses": {keys[name]: answer for name, answer in answers.items()}}
            if "requestState" in result:
                given["requestState"] = _read(result, "requestState")
        raise MountError("BAD_MESSAGE", f"it asked more than {MAX_ROUNDS} times in one call")

    async def _follow_or_park(self, request: ForwardedRequest, context: Context) -> Result:
        """Return the result. If the client has to be asked by the end of its request, keep ours until it is back."""
        try:
            return await self._follow_or_cancel(request, context)
        except InputRequired:
            self.parked.park(await context.once(CALL, self._name_call), request)
            raise

    async def _name_call(self) -> str:
        """Return a name that the client's later tries of a call have, too."""
        return self.parked.create_id()

    async def _follow_or_cancel(self, request: ForwardedRequest, context: Context) -> Result:
        seconds = request.timeout or self._mount.config.timeout
        try:
            return await _follow(request, context, self._timers[seconds])
        except InputRequired:
            raise
        except TimeoutError:
            request.cancel("it took too long")
            raise MountError("CALL_TIMEOUT", f"no answer within {seconds:g} s") from None
        except BaseException:
            request.cancel("no longer needed")
            raise


def create_key(
    per: str, principal: str, capabilities: Mapping[str, Any], session: str, scopes: frozenset[str] | None
) -> SessionKey:
    """Return the key of the conversation that this caller shares with those that `per` names."""
    profile = create_profile(capabilities)
    if per == "all":
        return SessionKey("", profile)
    return SessionKey(principal, profile, session if per == "session" else "", scopes)


def _choose_question_name(key: str, used: set[str]) -> str:
    """Return the name under which the client is asked, and add it to those that are used."""
    name, number = key, 1
    while name in used:
        number += 1
        name = f"{key}-{number}"
    used.add(name)
    return name


async def _follow(request: ForwardedRequest, context: Context, timer: DeadlineTimer) -> Result:
    """Wait for the result, pass notices on, and have questions answered. `timer` limits the time without a sign of
    life; that of a person does not count. Raises TimeoutError, InputRequired, and what the mounted server answers in
    place of a result."""
    while True:
        if request.question is not None:
            await _have_answered(request, request.question, context)
        event = await timer.limit(request.flight.events.get())
        while isinstance(event, MountNotice):
            await pass_on(event, context)
            event = await timer.limit(request.flight.events.get())
        if isinstance(event, UpstreamFault) and request.has_begun:
            raise _create_interruption(event.create_error())
        if isinstance(event, (UpstreamFault, UpstreamRefusal)):
            raise event.create_error()
        if isinstance(event, dict):
            return event
        assert isinstance(event, Question)  # the request takes no others
        request.question = event
        request.asked += 1


async def _have_answered(request: ForwardedRequest, question: Question, context: Context) -> None:
    """Ask the client, and tell the mounted server. Raises InputRequired: the client is to call again."""
    key = name_question(request.asked)
    peer = request.session.peer
    try:
        answers = await context.ask({key: {"method": question.method, "params": question.params}})
    except CannotAskError as error:
        request.question = None
        try:
            await peer.refuse(question.id, FAILED, error.text)
        except MountError as fault:
            raise _create_interruption(fault) from None
        return
    request.question = None
    try:
        await peer.answer(question, answers[key])
    except MountError as error:
        raise _create_interruption(error) from None


def _create_doubt(error: MountError) -> MountError:
    """Return the error for a call whose answer was lost."""
    return MountError("MAY_HAVE_RUN", f"{error.sentence}; the call may have run")


def _create_interruption(error: MountError) -> MountError:
    """Return the error for a call that has begun: whatever happened to this message, it may have run."""
    return MountError("CONNECTION_LOST", error.sentence) if error.code in NOT_TAKEN else error


def _read(result: Mapping[str, Any], name: str) -> Any:
    """Return a member of a result, which may be raw."""
    value = result.get(name)
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value


def _finish(result: Result, context: Context) -> Result:
    """Return the result as the client's revision has it: what names the mounted server is ours to say."""
    meta = _read(result, "_meta")
    if isinstance(meta, dict):
        meta.pop(SERVER, None)
        meta.pop(RELATED, None)
        result = {**result, "_meta": meta} if meta else {name: result[name] for name in result if name != "_meta"}
    if not context.knows("result_types"):
        return {name: value for name, value in result.items() if name != "resultType"}
    return result


def _create_rpc_error(refusal: UpstreamRefusal) -> RpcError:
    """Return the error as the mounted server said it."""
    error = RpcError(refusal.message, refusal.data)
    error.code = refusal.code
    return error
