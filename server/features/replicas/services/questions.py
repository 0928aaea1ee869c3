"""Share the questions on the page between replicas. Each lives at the replica whose call asked it, which its id names.

A replica writes its questions of a principal to one key, which the pages of all replicas read. An answer goes to the
question's replica by mail. A call that is repeated at another replica takes its questions there. Of a dead replica the
answers are left: whoever claims one first may use it.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Collection, Coroutine, Generator
from typing import Any

import msgspec

from toolgate.server.base.bus.bus import Bus, BusUnreachableError, NoReplyError, UndeliveredError
from toolgate.server.base.bus.replica_ids import format_id, parse_id
from toolgate.server.calls.pending_questions import GONE, LIFETIME, PendingQuestions
from toolgate.server.calls.question import PageAnswer, PendingQuestion, QuestionView

ANSWER, TAKE = "question answer", "question take"  # kinds of mail
CHANGES = "questions"  # topic
UNKNOWN = "The server that asked did not answer. Look again in a moment."
OPEN = 15.0  # seconds that a page counts as open without a sign of it
SIGN = 5.0  # seconds between two signs
DECIDING = 10.0  # seconds that other tabs wait for a decision
DECIDED = 86_400.0  # seconds that a late click learns what was decided
DEAD = 4.0  # seconds within which a replica that does not read its mail is found dead
PAUSE = 0.25  # seconds between two looks whether it is

log = logging.getLogger("toolgate")


class SharedQuestion(msgspec.Struct, frozen=True):
    """A question as other replicas see it."""

    call: bytes
    question: bytes
    view: QuestionView
    size: int
    right: str | tuple[str, str] | None
    is_held: bool
    answer: dict[str, Any] | None
    once_results: dict[str, Any]


class RedisQuestionStore:
    """The questions of all replicas. `recent_names()` returns the replicas that live, or did within the lifetime of a
    question."""

    def __init__(self, bus: Bus, recent_names: Callable[[], Collection[str]]) -> None:
        self._bus = bus
        self._recent_names = recent_names
        self._work: set[asyncio.Task[None]] = set()
        self._unwritten: set[str] = set()  # principals

    def serve(self, questions: PendingQuestions) -> None:
        self._questions = questions
        self._bus.mail.receive(ANSWER, self._handle_answer)
        self._bus.mail.receive(TAKE, self._handle_take)
        self._bus.topics.subscribe(CHANGES, self._receive, questions.notify_watchers)

    def create_id(self) -> str:
        return format_id(self._bus.replica.name, secrets.token_urlsafe(18))

    # -- for the page

    async def list_waiting(self, principal: str) -> list[QuestionView]:
        return [each.view for each in await self._read(principal, self._bus.replica.list_names) if each.answer is None]

    async def is_open(self, principal: str) -> bool:
        with contextlib.suppress(BusUnreachableError):
            return await self._bus.keys.get(f"page {principal}") is not None
        return False

    @contextlib.contextmanager
    def show_page(self, principal: str) -> Generator[None]:
        signs = asyncio.get_running_loop().create_task(self._show_signs(principal))
        try:
            yield
        finally:
            signs.cancel()

    async def begin_decision(self, principal: str, id: str) -> bool:
        try:
            return await self._bus.keys.set_if_absent(f"deciding {principal} {id}", b"1", DECIDING)
        except BusUnreachableError:
            return True  # the question's replica decides

    async def end_decision(self, principal: str, id: str, text: str | None) -> None:
        with contextlib.suppress(BusUnreachableError):
            if text is not None:
                await self._bus.keys.set(f"decided {principal} {id}", text.encode(), DECIDED)
            await self._bus.keys.delete(f"deciding {principal} {id}")

    async def find_decision(self, principal: str, id: str) -> str | None:
        with contextlib.suppress(BusUnreachableError):
            text = await self._bus.keys.get(f"decided {principal} {id}")
            return None if text is None else text.decode()
        return None

    # -- for calls

    async def fetch(self, principal: str, call: bytes) -> None:
        for each in await self._read(principal, self._list_recent):
            if each.call == call and not each.is_held and (taken := await self._take(principal, each)) is not None:
                self._questions.add(self._to_pending(principal, taken))

    def note_change(self, principal: str) -> None:
        """Write the principal's questions, once for all changes of this turn, and tell the pages of other replicas."""
        if principal not in self._unwritten:
            self._unwritten.add(principal)
            self._start(self._write(principal))

    async def _list_recent(self) -> Collection[str]:
        return {*self._recent_names(), *await self._bus.replica.list_names()}  # the newest may not have been seen yet

    async def _read(
        self, principal: str, list_names: Callable[[], Coroutine[Any, Any, Collection[str]]]
    ) -> list[SharedQuestion]:
        """Return the questions of other replicas."""
        try:
            names = [name for name in await list_names() if name != self._bus.replica.name]
            values = await self._bus.keys.get_many([_key(principal, name) for name in names])
        except BusUnreachableError as error:
            log.warning("questions of other replicas can't be read: %s", error)
            return []
        decode = msgspec.msgpack.Decoder(list[SharedQuestion]).decode
        return [each for value in values if value is not None for each in decode(value)]

    async def send_answer(self, answer: PageAnswer) -> str | None:
        found = parse_id(answer.id)
        if found is None or found.replica == self._bus.replica.name:
            return await self._take_answer(answer)
        try:
            reply = await self._bus.mail.send(found.replica, ANSWER, msgspec.msgpack.encode(answer))
        except UndeliveredError:
            return GONE
        except (NoReplyError, BusUnreachableError) as error:
            log.warning("an answer on the page did not arrive: %s", error)
            return UNKNOWN
        return reply.decode() or None

    async def _take_answer(self, answer: PageAnswer) -> str | None:
        problem = await self._questions.take_answer(answer)
        if problem is None and not answer.settles:
            await self._write(answer.principal)
        return problem

    async def _handle_answer(self, data: bytes) -> bytes:
        problem = await self._take_answer(msgspec.msgpack.decode(data, type=PageAnswer))
        return (problem or "").encode()

    async def _take(self, principal: str, shared: SharedQuestion) -> SharedQuestion | None:
        """Take a question from its replica. An answered one of a dead replica goes to the first that claims it."""
        id = shared.view.id
        if (owner := parse_id(id)) is None:
            return None
        try:
            reply = await self._bus.mail.send(owner.replica, TAKE, msgspec.msgpack.encode((principal, id)))
            return msgspec.msgpack.decode(reply, type=SharedQuestion) if reply else None
        except (UndeliveredError, NoReplyError):
            return await self._claim(shared, owner.replica)
        except BusUnreachableError:
            return None

    async def _claim(self, shared: SharedQuestion, owner: str) -> SharedQuestion | None:
        id = shared.view.id
        with contextlib.suppress(BusUnreachableError):
            if shared.answer is not None and await self._is_dead_soon(owner):
                return shared if await self._bus.keys.set_if_absent(f"question {id}", b"1", 2 * LIFETIME) else None
        return None

    async def _is_dead_soon(self, replica: str) -> bool:
        """Wait until a replica that does not read its mail is found dead. Raises BusUnreachableError."""
        until = time.monotonic() + DEAD
        while await self._bus.replica.is_alive(replica):
            if time.monotonic() > until:
                return False
            await asyncio.sleep(PAUSE)
        return True

    async def _handle_take(self, data: bytes) -> bytes:
        principal, id = msgspec.msgpack.decode(data, type=tuple[str, str])
        asked = next((each for each in self._questions.list_all(principal) if each.view.id == id), None)
        if asked is None or asked.is_held:
            return b""
        shared = _to_shared(asked)
        self._questions.drop(asked)
        return msgspec.msgpack.encode(shared)

    def _to_pending(self, principal: str, shared: SharedQuestion) -> PendingQuestion:
        """Return a question that is here from now on, under an id of this replica."""
        answer: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        if shared.answer is not None:
            answer.set_result(shared.answer)
        view = msgspec.structs.replace(shared.view, id=self.create_id())
        asked = PendingQuestion(principal, shared.call, shared.question, view, answer, shared.size, shared.right)
        asked.is_held, asked.once_results = False, shared.once_results
        return asked

    # -- the key of a principal's questions here

    async def _write(self, principal: str) -> None:
        await asyncio.sleep(0)
        self._unwritten.discard(principal)
        own = [_to_shared(each) for each in self._questions.list_all(principal)]
        key = _key(principal, self._bus.replica.name)
        try:
            if own:
                await self._bus.keys.set(key, msgspec.msgpack.encode(own), LIFETIME)
            else:
                await self._bus.keys.delete(key)
        except (BusUnreachableError, ValueError) as error:
            log.warning("other replicas do not see the questions of a page: %s", error)
        self._bus.topics.publish(CHANGES, f"{self._bus.replica.name} {principal}".encode())

    def _receive(self, data: bytes) -> None:
        name, _, principal = data.decode().partition(" ")
        if name != self._bus.replica.name:
            self._questions.notify_watchers(principal)

    async def _show_signs(self, principal: str) -> None:
        """Show calls at other replicas that the page is open, until cancelled."""
        key = f"page {principal}"
        try:
            while True:
                with contextlib.suppress(BusUnreachableError):
                    await self._bus.keys.set(key, b"1", OPEN)
                await asyncio.sleep(SIGN)
        finally:
            if not self._questions.is_watched(principal):
                self._start(self._close_page(key))

    async def _close_page(self, key: str) -> None:
        with contextlib.suppress(BusUnreachableError):
            await self._bus.keys.delete(key)  # where another one is open, its next sign sets it again

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)


def _to_shared(asked: PendingQuestion) -> SharedQuestion:
    answer = asked.answer.result() if asked.answer.done() else None
    once = dict(asked.once_results)
    return SharedQuestion(asked.call, asked.question, asked.view, asked.size, asked.right, asked.is_held, answer, once)


def _key(principal: str, replica: str) -> str:
    return f"questions {replica} {principal}"
