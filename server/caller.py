"""The client's end of one tool call: progress, logs and questions, in whichever way its revision has them.

Up to 2025-11-25 a question is a request to the client. From 2026-07-28 it ends the call (`InputRequired`), and the
retry brings the answers. Knows nothing of tools: it is the `Peer` their Context speaks to.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from toolgate.server.envelope import TASKS
from toolgate.server.errors import InvalidParams
from toolgate.server.messages import Notification
from toolgate.server.seal import Seal
from toolgate.server.session import LEVELS, Call, Refused
from toolgate.tools.errors import CannotAsk, NoTasks, Unanswered

CAPABILITY = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
SHAPES: dict[str, Callable[[dict[str, Any]], bool]] = {  # what an answer must look like to be one
    "elicitation/create": lambda answer: (
        answer.get("action") in ("accept", "decline", "cancel")
        and isinstance(answer.get("content", {}), (dict, type(None)))
    ),
    "sampling/createMessage": lambda answer: "role" in answer and "content" in answer,
    "roots/list": lambda answer: isinstance(answer.get("roots"), list),
}


class InputRequired(BaseException):
    """Ends the call with questions. No Exception: a tool's `except Exception` must not swallow it."""

    def __init__(self, requests: dict[str, dict[str, Any]]) -> None:
        super().__init__()
        self.requests = requests


def no_task(required: bool) -> bool:
    """What is said to a call that can't become a task. Raises NoTasks when it has to."""
    if required:
        raise NoTasks(
            f"this is done as a task only, and the client did not declare {TASKS}", {"extensions": {TASKS: {}}}
        )
    return False


class Nobody:
    """The client's end of work that no request asked for: nobody hears it, and nobody can be asked."""

    wants_progress = False
    held = True

    def can(self, capability: str) -> bool:
        return False

    def knows(self, feature: str) -> bool:
        return False

    def progress(self, progress: float, total: float | None, message: str | None) -> None: ...

    def log(self, level: str, data: Any, logger: str | None) -> None: ...

    def close_stream(self) -> None: ...

    async def as_task(self, required: bool) -> bool:
        return no_task(required)

    def when_changed(self, tell: Callable[[], None]) -> None: ...

    async def ask(self, requests: Mapping[str, dict[str, Any]], timeout: float | None) -> dict[str, Any]:
        raise CannotAsk("nobody is there to be asked", {})

    async def once(self, key: str, function: Callable[[], Awaitable[Any]]) -> Any:
        return await function()


class Caller:
    """Speaks to the client on behalf of one call. `hold` bounds a question, in seconds."""

    held = True

    def __init__(self, call: Call, seal: Seal, hold: float, streaming: bool) -> None:
        self._call = call
        self._seal = seal
        self._hold = hold
        self._heart: asyncio.TimerHandle | None = None
        self._last_progress = -math.inf
        token = call.meta.get("progressToken")
        self._token = token if streaming and type(token) in (int, str) else None
        self._answers: dict[str, Any] = {}
        self._done: dict[str, Any] = {}
        if call.revision.stateless:
            self._recall()

    @property
    def wants_progress(self) -> bool:
        return self._token is not None

    def can(self, capability: str) -> bool:
        session = self._call.session
        if capability == "elicitation":
            declared = session.capabilities.get("elicitation")
            # {} means forms; a client that declares modes must name them (client/elicitation, "Capabilities")
            has_forms = isinstance(declared, dict) and ("form" in declared or "url" not in declared)
            return has_forms and self._call.revision.elicitation
        return session.can(capability)

    def knows(self, feature: str) -> bool:
        return self._call.revision.has(feature)

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self._token is None or not math.isfinite(progress):
            return
        if progress <= self._last_progress:  # it must grow (basic/utilities/progress)
            progress = math.nextafter(self._last_progress, math.inf)
        self._last_progress = progress
        params: dict[str, Any] = {"progressToken": self._token, "progress": progress}
        if total is not None and math.isfinite(total):
            params["total"] = total
        if message is not None and self._call.revision.progress_messages:
            params["message"] = message
        self._call.channel.send(Notification("notifications/progress", params))

    def start_heartbeat(self, seconds: float) -> None:
        """Tell a client that waits, every so often, that the call lives."""
        self._heart = asyncio.get_running_loop().call_later(seconds, self._beat, seconds)

    def _beat(self, seconds: float) -> None:
        self.progress(max(self._last_progress, 0.0), None, "still running")
        self.start_heartbeat(seconds)

    def stop(self) -> None:
        """The call is answered: no progress may follow (basic/patterns/progress)."""
        self._token = None
        if self._heart is not None:
            self._heart.cancel()

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
        return no_task(required)

    def when_changed(self, tell: Callable[[], None]) -> None: ...

    async def ask(self, requests: Mapping[str, dict[str, Any]], timeout: float | None) -> dict[str, Any]:
        self.check(requests)
        if self._call.revision.stateless:
            return self._answered(requests)
        return {key: await self._request(request, timeout or self._hold) for key, request in requests.items()}

    def check(self, requests: Mapping[str, dict[str, Any]]) -> None:
        """Raise CannotAsk for what the client did not declare it can be asked."""
        lacking = {CAPABILITY[request["method"]] for request in requests.values()}
        lacking = {capability for capability in lacking if not self.can(capability)}
        if lacking:
            names = ", ".join(sorted(lacking))
            raise CannotAsk(
                f"this client did not declare {names}, so it can't be asked", {name: {} for name in lacking}
            )

    async def once(self, key: str, function: Callable[[], Awaitable[Any]]) -> Any:
        if key not in self._done:
            self._done[key] = await function()
        return self._done[key]

    def input_required(self, questions: InputRequired) -> dict[str, Any]:
        """The result that ends this try of the call; what is known so far travels with it, sealed."""
        carried = {"answers": self._answers, "once": self._done, "approval": self._call.approval}
        state = self._seal.close(carried, self._call.session.owner, self._identity())
        return {"resultType": "input_required", "inputRequests": questions.requests, "requestState": state}

    def _recall(self) -> None:
        params = self._call.params
        if "requestState" in params:
            carried = self._seal.open(params["requestState"], self._call.session.owner, self._identity())
            self._answers, self._done = carried["answers"], carried["once"]
            approval = carried.get("approval")
            self._call.approval = None if approval is None else (approval[0], approval[1])
        if "inputResponses" in params:
            responses = params["inputResponses"]
            if not isinstance(responses, dict):
                raise InvalidParams("'inputResponses' must be an object")
            self._answers = {**responses, **self._answers}  # what was answered stays answered

    def _answered(self, requests: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        missing = {key: request for key, request in requests.items() if not self._fits(key, request)}
        if missing:
            raise InputRequired(missing)
        return {key: self._answers[key] for key in requests}

    def _fits(self, key: str, request: dict[str, Any]) -> bool:
        answer = self._answers.get(key)
        if isinstance(answer, dict) and SHAPES[request["method"]](answer):
            return True
        self._answers.pop(key, None)
        return False

    async def _request(self, request: dict[str, Any], timeout: float) -> Any:
        method = request["method"]
        try:
            answer = await self._call.session.request(method, request.get("params") or {}, self._call.channel, timeout)
        except TimeoutError:
            raise Unanswered(f"nobody answered within {timeout:g} s", {CAPABILITY[method]: {}}) from None
        except Refused as refused:
            raise Unanswered(f"the client could not answer: {refused}", {CAPABILITY[method]: {}}) from None
        if not isinstance(answer, dict) or not SHAPES[method](answer):
            raise Unanswered("the client's answer has no shape known here", {CAPABILITY[method]: {}})
        return answer

    def _identity(self) -> list[Any]:
        """What makes the retry the same request: its method, name and arguments."""
        params = self._call.params
        return [self._call.method, params.get("name"), params.get("uri"), params.get("arguments")]
