"""Describe a question on the server's page, and bind it to the call that asks."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.server.protocol.session import ApprovalRequest

if TYPE_CHECKING:
    from toolgate.server.base.principals.principal import GrantKey


class QuestionView(msgspec.Struct, frozen=True):
    """A question as the page shows it.

    - `tool`: name of the tool or prompt, or the URI of a resource.
    - `schema`: a flat one, as in elicitation/create.
    - `approval`: what is to be approved, if it asks whether the tool may run at all.
    - `asked`, `expires`: seconds since 1970.
    """

    id: str
    tool: str
    client: str  # as in `Session.client`
    asked: float
    expires: float
    message: str
    schema: Mapping[str, Any]
    approval: ApprovalRequest | None


class PageAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What a person decided: `action` with the form's values. `settles`: the approval is remembered elsewhere."""

    principal: str
    id: str
    action: str
    content: Mapping[str, Any]
    settles: bool = False


class PendingQuestion(msgspec.Struct, eq=False):
    """A question and its answer, bound to `call` and to the wording in `question`. `is_held`: a running call waits for
    it. `once_results`: results that earlier tries of the call stored by `once`."""

    principal: str
    call: bytes
    question: bytes
    view: QuestionView
    answer: "asyncio.Future[dict[str, Any] | None]"  # None: it was dropped
    size: int  # bytes of what the page shows
    right: "GrantKey | None" = None  # what the access of its call depends on
    is_held: bool = True
    once_results: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    timer: asyncio.TimerHandle | None = None


class QuestionWatcher(msgspec.Struct, eq=False):
    """An open page with a principal's questions: `async for` yields after each change."""

    principal: str
    _change: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def __aiter__(self) -> AsyncIterator[None]:
        return self

    async def __anext__(self) -> None:
        await self._change.wait()
        self._change.clear()

    def notify(self) -> None:
        self._change.set()


def digest_call(value: Any) -> bytes:
    """Return the same digest for equal values."""
    return hashlib.sha256(to_stable_json(value)).digest()


def to_stable_json(value: Any) -> bytes:
    """Return the same JSON for equal values."""
    try:
        return msgspec.json.encode(value, order="deterministic")
    except UnicodeEncodeError:  # half of a surrogate pair, escaped so that different ones differ
        import json  # start-up: rare

        return json.dumps(value, sort_keys=True).encode()
