"""Have the person whose call needs a connection make one, while the call waits.

A client of 2025-11-25 that opens links is sent an elicitation with the link while the call waits. One that no request
reaches during the call gets the error of that revision (-32042), which has the same. A client of 2026-07-28 is asked by
the end of its request; a later try that has waited as long as it may ends with its state alone, and the next one goes
on waiting. Any other client gets the text with the link.

Of all calls of one session, one asks; the others wait with it. A person who declines has declined for all of them.

Source: MCP 2025-11-25 and 2026-07-28 client/elicitation, "URL Mode Elicitation Requests".
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from toolgate.server.base.errors import StateError
from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.server.base.principals.sign_in_methods import PASSWORD
from toolgate.server.base.text import to_line
from toolgate.server.calls.client import InputRequired
from toolgate.server.calls.client_questions import ELICIT, LINKS
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.mount.sign_in_waits import SIGN_IN_QUESTION
from toolgate.server.features.mounts.sign_in.arrivals import ConnectionArrivals, SignInNeed
from toolgate.server.features.mounts.sign_in.waiting import ACCEPT, UNANSWERED, SignInQuestion, WaitingCall
from toolgate.server.features.mounts.upstream.errors import UpstreamFault
from toolgate.server.protocol.errors import UrlElicitationRequired
from toolgate.server.protocol.request_meta import client_name
from toolgate.server.protocol.session import create_key
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import CannotAskError

BEGAN = "mounted-sign-in-began"  # what later tries of the call know
LIFETIME = 600.0  # seconds for a call that no hold ends
TRIES = 6  # that wait, of one call in the stateless era: official clients give up after ten
RESERVE = 0.25  # of the hold: what is left for the call itself, where a later try has all of it
BACK_WITHIN = 20.0  # seconds for a client whose request ended with the question; then another call may ask
SOON = 0.01  # seconds at least for an answer
RETURN = 5.0  # seconds for a client whose request ended with its state alone
MAX_QUESTIONS = 1_000  # a client may give itself any name
MAX_CLIENT = 100  # characters of it
MAX_WORDS = 200  # characters of what the other side says


class SignInElicitation:
    """Has the people of one mount sign in there. `find_link()` returns where a person connects, `find_label(principal)`
    their name here; `now()` is the time of the state."""

    def __init__(
        self,
        config: MountConfig,
        arrivals: ConnectionArrivals,
        find_link: Callable[[], str],
        find_label: Callable[[str], Awaitable[str]],
        now: Callable[[], float],
    ) -> None:
        self._config = config
        self._arrivals = arrivals
        self._find_link = find_link
        self._find_label = find_label
        self._now = now
        self._questions: dict[tuple[str, str, float], SignInQuestion] = {}  # by principal, session or client, and need

    @property
    def has_page(self) -> bool:
        """Whether there is a page where people sign in."""
        return bool(self._find_link())

    async def wait(self, refusal: UpstreamFault, context: Context) -> None:
        """Return once the person can be served. Raises the refusal, UrlElicitationRequired and InputRequired."""
        with self._arrivals.follow(context.principal) as arrival:
            need, link = await self._find_need(context.principal, refusal), self._find_link()
            if need is None:
                return
            if not link:
                raise refusal.create_error()
            request = {"mode": "url", "url": link, "message": await self._describe(need, context.principal)}
            if not context.can(LINKS):
                raise _create_refusal(refusal, request, context)
            call = WaitingCall(context, refusal, request, need, await self._find_end(context), self._now)
            await self._wait(call, arrival)
        if call.comes_back and call.seconds_left < RESERVE * (context.hold or 0.0):
            raise InputRequired({})

    async def _find_need(self, principal: str, refusal: UpstreamFault) -> SignInNeed | None:
        try:
            return await self._arrivals.find_need(principal)
        except StateError:
            raise refusal.create_error() from None

    async def _find_end(self, context: Context) -> float:
        """Return when the call ends without a connection, whatever its tries."""

        async def now() -> float:
            return self._now()

        hold = context.hold
        began: float = await context.once(BEGAN, now)
        return began + (LIFETIME if hold is None else min(LIFETIME, TRIES * hold))

    async def _wait(self, call: WaitingCall, arrival: "asyncio.Future[None]") -> None:
        """Wait for the connection, and first for an answer: this call asks if no other does."""
        key = call.context.principal, _name_asker(call.context), call.need.made_at
        has_asked = await call.has_asked()
        while True:
            question = self._questions.get(key)
            asks = has_asked or question is None or not question.is_open
            if question is None or not question.is_open:
                question = self._add_question(key)
            question.is_asking = question.is_asking or asks
            question.waiting += 1
            try:
                action = await (_ask(call, question, arrival) if asks else _follow(call, question, arrival))
                if action == ACCEPT:
                    await _wait_for_arrival(call, question, arrival)
            finally:
                question.waiting -= 1
                if not question.is_open and self._questions.get(key) is question:
                    del self._questions[key]
            if action:
                break
        if action != ACCEPT:
            raise call.refuse(action)
        if asks:
            call.context.complete_link(SIGN_IN_QUESTION)

    def _add_question(self, key: tuple[str, str, float]) -> SignInQuestion:
        if len(self._questions) >= MAX_QUESTIONS:
            self._questions = {name: each for name, each in self._questions.items() if each.is_open}
        if len(self._questions) >= MAX_QUESTIONS:
            del self._questions[next(iter(self._questions))]
        question = self._questions[key] = SignInQuestion()
        return question

    async def _describe(self, need: SignInNeed, principal: str) -> str:
        """Return the words beside the link."""
        label = ""
        if principal != LOCAL_NAME:
            with contextlib.suppress(StateError):
                label = (await self._find_label(principal)).removeprefix(f"{PASSWORD.prefix}:")
        host = urlsplit(self._config.url).netloc.rpartition("@")[2]
        words = to_line(need.words, MAX_WORDS)
        return (
            f"{self._config.name} ({host}) {words}. Open the link{f' as {label}' if label else ''}, "
            "and connect it there: the call goes on by itself."
        )


async def _ask(call: WaitingCall, question: SignInQuestion, arrival: "asyncio.Future[None]") -> str:
    """Ask the client, and return the person's action. A connection that is made meanwhile is as good as an answer.
    Raises InputRequired."""
    await call.note_asked()
    seconds = max(call.seconds_left, SOON)
    asked = call.context.ask({SIGN_IN_QUESTION: {"method": ELICIT, "params": call.request}}, timeout=seconds)
    asking = asyncio.get_running_loop().create_task(asked)
    asking.add_done_callback(_retrieve)
    try:
        await _wait_any(asking, arrival)
        action: str = ACCEPT if arrival.done() else asking.result()[SIGN_IN_QUESTION]["action"]
    except InputRequired:
        question.keep(BACK_WITHIN)
        raise
    except CannotAskError:
        action = UNANSWERED
    except BaseException:
        question.settle("")
        raise
    finally:
        asking.cancel()
        question.is_asking = False
    question.settle(action)
    return action


async def _follow(call: WaitingCall, question: SignInQuestion, arrival: "asyncio.Future[None]") -> str:
    """Return the action of the person whom another call asks, or "" if that is gone."""
    while question.is_open and not question.answer.done() and not arrival.done():
        left = call.seconds_left
        if not left:
            raise call.put_off()
        seconds = left if question.is_asking else min(left, question.seconds_left)
        await _wait_any(question.answer, arrival, seconds=seconds)
    if arrival.done():
        return ACCEPT
    return question.answer.result() if question.answer.done() else ""


async def _wait_for_arrival(call: WaitingCall, question: SignInQuestion, arrival: "asyncio.Future[None]") -> None:
    """Wait for the connection of a person who agreed. Raises the refusal, or InputRequired."""
    await _wait_any(arrival, seconds=call.seconds_left)
    if not arrival.done():
        question.keep(RETURN)
        raise call.put_off()


async def _wait_any(*futures: "asyncio.Future[Any]", seconds: float | None = None) -> None:
    await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


def _create_refusal(refusal: UpstreamFault, request: dict[str, Any], context: Context) -> Exception:
    """Return the error for a client that is not asked during the call."""
    refused, declared = refusal.create_error(), context.caller.capabilities.get("elicitation")
    if context.knows("elicitation_ids") and isinstance(declared, dict) and "url" in declared:
        return UrlElicitationRequired(refused.text, {"elicitations": [{**request, "elicitationId": create_key(18)}]})
    return refused


def _name_asker(context: Context) -> str:
    """Return what those who wait for one question have in common: the session, or the client without one."""
    return context.caller.session or client_name(context.caller.meta)[:MAX_CLIENT]


def _retrieve(asking: "asyncio.Task[Any]") -> None:
    """Mark the error as retrieved: the call may have gone on without the answer."""
    if not asking.cancelled():
        asking.exception()
