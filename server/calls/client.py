"""Send the client of one call progress, logs and questions, in the way its revision has them.

Up to 2025-11-25 a question is a request to the client. From 2026-07-28 it ends the call (`InputRequired`), and the
retry brings the answers. A form that the client can't show waits on the server's page, if there is one. Knows nothing
of tools: it is the `Peer` of their Context.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from toolgate.server.calls.client_questions import (
    CAPABILITY,
    ELICIT,
    LINKS,
    SHAPES,
    UNREACHABLE,
    can_open_links,
    can_show_forms,
    check_shape,
    is_link,
)
from toolgate.server.calls.pending_questions import PendingQuestions
from toolgate.server.calls.question import PendingQuestion
from toolgate.server.protocol.errors import InvalidParams
from toolgate.server.protocol.message_ids import is_id
from toolgate.server.protocol.messages import Notification, replace_surrogates
from toolgate.server.protocol.request_meta import TASKS, client_name
from toolgate.server.protocol.session import LEVELS, Call, ClientRefusedError, create_key
from toolgate.server.state.keys.sealed_state import Sealer, SealError
from toolgate.tools.api.content import Continuation
from toolgate.tools.api.context.context import Caller
from toolgate.tools.api.errors import CannotAskError, StillWaitingError, TasksUnsupportedError, UnansweredError

COMPLETE = "notifications/elicitation/complete"
MAX_CLIENT = 255  # characters of a client's id, which may be a URL, or of its own name
INSTANT = 0.25  # seconds: no person reads a form faster; a program without a person answers within tens of milliseconds
PAGE_FEATURES = frozenset(("multi_select", "option_descriptions"))  # of forms on the server's page


class InputRequired(BaseException):
    """End the call with questions. Not an Exception, so that a tool's `except Exception` can't swallow it."""

    def __init__(self, requests: dict[str, dict[str, Any]]) -> None:
        super().__init__()
        self.requests = requests


def refuse_task(required: bool) -> bool:
    """Return False for a call that can't become a task. Raises TasksUnsupportedError if it is `required` to."""
    if required:
        raise TasksUnsupportedError(
            f"this is done as a task only, and the client did not declare {TASKS}", {"extensions": {TASKS: {}}}
        )
    return False


class NoClient:
    """Stand in for the client of work without a request: drops messages and refuses questions."""

    caller = Caller()
    wants_progress = False
    is_held = True

    def can(self, capability: str) -> bool:
        return False

    def knows(self, feature: str) -> bool:
        return False

    def progress(self, progress: float, total: float | None, message: str | None) -> None: ...

    def log(self, level: str, data: Any, logger: str | None) -> None: ...

    def close_stream(self) -> None: ...

    async def as_task(self, required: bool) -> bool:
        return refuse_task(required)

    async def follow_as_task(self, continuation: Continuation) -> bool:
        return False

    def when_changed(self, tell: Callable[[], None]) -> None: ...

    def complete_link(self, key: str) -> None: ...

    def at_once(self, key: str) -> bool:
        return False

    async def ask(self, requests: Mapping[str, dict[str, Any]], timeout: float | None) -> dict[str, Any]:
        raise CannotAskError("there is no client to ask", {})

    async def once(self, key: str, function: Callable[[], Awaitable[Any]]) -> Any:
        return await function()


class CallClient:
    """Speak to the client for one call. `hold`: seconds to wait for an answer. `questions`: those on our page."""

    is_held = True
    _ending = "over"  # or "asking" the client, or "waiting" for the page
    _has_fetched = False  # questions of earlier tries
    _heartbeat: asyncio.TimerHandle | None = None
    _last_progress = -math.inf
    _used_questions: tuple[PendingQuestion, ...] = ()  # answered on the page, and used by this call
    _left_questions: tuple[PendingQuestion, ...] = ()  # still waiting on the page
    _instant_keys: frozenset[str] = frozenset()  # keys of questions answered faster than a person can
    _links: Mapping[str, str] = {}  # keys of questions that have a person open a link → their ids

    def __init__(self, call: Call, seal: Sealer, questions: PendingQuestions, hold: float, streaming: bool) -> None:
        self._call = call
        self._seal = seal
        self._questions = questions
        self._hold = hold
        self._began = time.monotonic()
        self._progressed = self._began  # when progress was last sent
        params = call.params
        meta = params.get("_meta")
        token = meta.get("progressToken") if meta and streaming else None
        self._token = token if token is None or is_id(token) else None
        self._answers: dict[str, Any] = {}
        self._once_results: dict[str, Any] = {}
        if ("requestState" in params or "inputResponses" in params) and call.revision.stateless:
            self._recall()

    @property
    def caller(self) -> Caller:
        session = self._call.session
        level = None if session.log_level is None else LEVELS[session.log_level]
        return Caller(session.capabilities, self._call.meta, session.place.key, session.scopes, level)

    @property
    def wants_progress(self) -> bool:
        return self._token is not None

    def can(self, capability: str) -> bool:
        if capability == "elicitation":
            return can_show_forms(self._call) or self._questions.url is not None
        if capability == LINKS:
            return can_open_links(self._call)
        return capability in self._call.session.capabilities and self._call.can_ask

    def knows(self, feature: str) -> bool:
        on_page = feature in PAGE_FEATURES and self._questions.url is not None and not can_show_forms(self._call)
        return on_page or self._call.revision.has(feature)

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self._token is None or not math.isfinite(progress):
            return
        if progress <= self._last_progress:  # progress must grow (basic/utilities/progress)
            progress = math.nextafter(self._last_progress, math.inf)
        self._last_progress = progress
        self._progressed = time.monotonic()
        params: dict[str, Any] = {"progressToken": self._token, "progress": progress}
        if total is not None and math.isfinite(total):
            params["total"] = total
        if message is not None and self._call.revision.progress_messages:
            params["message"] = message
        self._call.channel.send(Notification("notifications/progress", params))

    def start_heartbeat(self, first: float, seconds: float) -> None:
        """Send progress after `first` seconds of silence, then after every `seconds` of silence."""
        self._heartbeat = asyncio.get_running_loop().call_later(first, self._beat, first, seconds)

    def _beat(self, pause: float, seconds: float) -> None:
        if self._progressed > self._began:
            pause = seconds
        now = time.monotonic()
        left = self._progressed + pause - now
        if left <= 0:
            self.progress(max(self._last_progress, 0.0), None, f"running for {now - self._began:.0f} s")
            left = seconds
        self._heartbeat = asyncio.get_running_loop().call_later(left, self._beat, pause, seconds)

    def stop(self) -> None:
        """End progress: the call is answered (basic/patterns/progress)."""
        self._token = None
        if self._heartbeat is not None:
            self._heartbeat.cancel()

    def end(self) -> None:
        """End the call."""
        if self._token is not None:
            self.stop()
        if self._used_questions or self._left_questions:
            self._return_questions()

    def log(self, level: str, data: Any, logger: str | None) -> None:
        rank = LEVELS.index(level)
        least = self._call.session.log_level
        if least is None or rank < least:
            return
        params = {"level": level, "data": data}
        if logger is not None:
            params["logger"] = logger
        self._call.channel.send(Notification("notifications/message", params))

    def close_stream(self) -> None:
        self._call.channel.pause()

    async def as_task(self, required: bool) -> bool:
        return refuse_task(required)

    async def follow_as_task(self, continuation: Continuation) -> bool:
        return False

    def when_changed(self, tell: Callable[[], None]) -> None: ...

    async def ask(self, requests: Mapping[str, dict[str, Any]], timeout: float | None) -> dict[str, Any]:
        """Return the answers. A form that the client can't show goes to the page."""
        at_page = {key: request for key, request in requests.items() if self._is_for_page(request)}
        others = {key: request for key, request in requests.items() if key not in at_page}
        self._check(others)
        answers = await self._from_client(others, timeout) if others else {}
        return {**answers, **await self._from_page(at_page, timeout)} if at_page else answers

    async def _from_client(self, requests: Mapping[str, dict[str, Any]], timeout: float | None) -> dict[str, Any]:
        if self._call.revision.stateless:
            return self._replay_answers(requests)
        return {key: await self._request(key, request, timeout or self._hold) for key, request in requests.items()}

    async def _from_page(self, requests: Mapping[str, dict[str, Any]], timeout: float | None) -> dict[str, Any]:
        await self._fetch_questions()
        asked = [self._put_on_page(key, request) for key, request in requests.items()]
        self._call.page_answers = [*(self._call.page_answers or ()), *(each.answer for each in asked)]
        seconds = await self._page_timeout(timeout)
        if seconds > 0 and not all(each.answer.done() for each in asked):
            told = f"waiting for the person's answer at {self._questions.url}"
            self.progress(max(self._last_progress, 0.0), None, told)
            self.log("notice", told, "questions")
        try:
            answers = await self._questions.wait(asked, seconds)
        except StillWaitingError:
            self._left_questions += tuple(asked)
            raise
        self._used_questions += tuple(asked)
        return {key: check_shape(ELICIT, answer) for key, answer in zip(requests, answers, strict=True)}

    async def _fetch_questions(self) -> None:
        """Bring what earlier tries of this call have asked here, the first time."""
        if not self._has_fetched:
            self._has_fetched = True
            await self._questions.fetch(self._call.session.principal, self._binding())

    async def _page_timeout(self, timeout: float | None) -> float:
        """Return how many seconds to wait for an answer on the page: 0 if it is not open."""
        if not await self._questions.is_open(self._call.session.principal):
            return 0.0
        return min(timeout or self._hold, self._began + self._hold - time.monotonic())

    def _put_on_page(self, key: str, request: dict[str, Any]) -> PendingQuestion:
        """Return the question on the page."""
        call, params = self._call, request.get("params") or {}
        schema = params.get("requestedSchema")
        return self._questions.find_or_add(
            call.session.principal,
            self._binding(),
            [key, params, call.approving is not None],
            tool=replace_surrogates(str(call.params.get("name") or call.params.get("uri") or call.method)),
            client=replace_surrogates(str(self._client()))[:MAX_CLIENT],
            message=replace_surrogates(str(params.get("message", ""))),
            schema=schema if isinstance(schema, dict) else {},
            approved=call.approving,
            right=call.session.right,
        )

    def _is_for_page(self, request: dict[str, Any]) -> bool:
        is_form = request["method"] == ELICIT and (request.get("params") or {}).get("mode", "form") == "form"
        return is_form and not can_show_forms(self._call) and self._questions.url is not None

    def leave_waiting(self) -> None:
        """End the call with a question left on the page."""
        self._ending = "waiting"

    def _return_questions(self) -> None:
        """Give a retry the answers and `once` results so far, if the call ends with a question. An approval is left out
        if the retry's requestState carries it."""
        if self._ending != "over":
            for asked in self._used_questions:
                if self._ending == "waiting" or not asked.view.approval:
                    self._questions.hand_back(asked)
        if self._ending == "waiting":
            for asked in (*self._left_questions, *self._used_questions):
                self._questions.leave(asked, self._once_results)
        self._used_questions = self._left_questions = ()

    def _binding(self) -> list[Any]:
        """Return what a question on the page is bound to: this client's identical call."""
        return [self._call.session.owner, self._client(), *self._identity()]

    def _client(self) -> str:
        """Return the client's name: as it signed in, or as it calls itself."""
        return self._call.session.client or client_name(self._call.meta)

    def _check(self, requests: Mapping[str, dict[str, Any]]) -> None:
        """Raise CannotAskError for a capability that the client did not declare."""
        lacking: dict[str, Any] = {
            CAPABILITY[request["method"]]: {"url": {}} if is_link(request) else {}
            for request in requests.values()
            if not self._can_answer(request)
        }
        if lacking:
            why = f"this client did not declare {', '.join(sorted(lacking))}" if self._call.can_ask else UNREACHABLE
            raise CannotAskError(f"{why}, so it can't be asked", lacking)

    def _can_answer(self, request: dict[str, Any]) -> bool:
        method = request["method"]
        if method != ELICIT:
            return self.can(CAPABILITY[method])
        return can_open_links(self._call) if is_link(request) else can_show_forms(self._call)

    async def once(self, key: str, function: Callable[[], Awaitable[Any]]) -> Any:
        if key not in self._once_results and self._questions.url is not None:
            await self._fetch_questions()
            earlier = self._questions.once_results(self._call.session.principal, self._binding)
            self._once_results = {**earlier, **self._once_results}
        if key not in self._once_results:
            self._once_results[key] = await function()
        return self._once_results[key]

    def input_required(self, questions: InputRequired) -> dict[str, Any]:
        """Return the result that ends this try of the call. What is known so far travels with it, sealed."""
        self._ending = "asking"
        carried = {
            "answers": self._answers,
            "once": self._once_results,
            "approval": self._call.approval,
            "asked": time.time(),
            "hasty": sorted(self._instant_keys),
        }
        state = self._seal.seal(carried, self._call.session.owner, self._identity())
        asked = {"inputRequests": questions.requests} if questions.requests else {}  # else only to come back
        return {"resultType": "input_required", **asked, "requestState": state}

    def _recall(self) -> None:
        params, asked = self._call.params, 0.0
        if "requestState" in params:
            carried = self._unseal(params["requestState"])
            self._answers, self._once_results = carried["answers"], carried["once"]
            self._instant_keys |= frozenset(carried.get("hasty", ()))
            asked = carried.get("asked", 0.0)
            approval = carried.get("approval")
            self._call.approval = None if approval is None else (approval[0], approval[1], approval[2])
        if "inputResponses" in params:
            responses = params["inputResponses"]
            if not isinstance(responses, dict):
                raise InvalidParams("'inputResponses' must be an object")
            if 0 <= time.time() - asked < INSTANT:
                self._instant_keys |= responses.keys() - self._answers.keys()
            self._answers = {**responses, **self._answers}  # earlier answers win

    def _replay_answers(self, requests: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        missing = {key: request for key, request in requests.items() if not self._fits(key, request)}
        if missing:
            raise InputRequired(missing)
        return {key: self._answers[key] for key in requests}

    def _unseal(self, state: object) -> Any:
        """Return what was sealed for this request. Raises InvalidParams."""
        try:
            return self._seal.unseal(state, self._call.session.owner, self._identity())
        except SealError:
            raise InvalidParams("'requestState' was not issued for this request, or has expired") from None

    def _fits(self, key: str, request: dict[str, Any]) -> bool:
        answer = self._answers.get(key)
        if isinstance(answer, dict) and SHAPES[request["method"]](answer):
            return True
        self._answers.pop(key, None)
        return False

    async def _request(self, key: str, request: dict[str, Any], timeout: float) -> Any:
        method, sent = request["method"], time.monotonic()
        params = request.get("params") or {}
        if is_link(request):
            params = {**params, "elicitationId": params.get("elicitationId") or create_key(18)}
            self._links = {**self._links, key: params["elicitationId"]}
        try:
            answer = await self._call.session.request(method, params, self._call.channel, timeout)
        except TimeoutError:
            raise UnansweredError(f"no answer within {timeout:g} s", {CAPABILITY[method]: {}}) from None
        except ClientRefusedError as refused:
            raise UnansweredError(f"the client could not answer: {refused}", {CAPABILITY[method]: {}}) from None
        if time.monotonic() - sent < INSTANT:
            self._instant_keys |= {key}
        return check_shape(method, answer)

    def complete_link(self, key: str) -> None:
        if key in self._links and self._call.revision.elicitation_ids:
            self._call.channel.send(Notification(COMPLETE, {"elicitationId": self._links[key]}))

    def at_once(self, key: str) -> bool:
        return key in self._instant_keys

    def _identity(self) -> list[Any]:
        """Return what makes a retry the same request: method, name and arguments."""
        params = self._call.params
        return [self._call.method, params.get("name"), params.get("uri"), params.get("arguments")]
