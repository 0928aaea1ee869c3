"""Call all functions that have something to do when something happens: a hook is a list to which they are added."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Generic, ParamSpec

P = ParamSpec("P")

log = logging.getLogger("toolgate")


class Hook(list[Callable[P, None]], Generic[P]):
    """Functions that are called one after the other. If one fails, that which calls the hook fails."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for function in self:
            function(*args, **kwargs)


class AsyncHook(list[Callable[P, Awaitable[None]]], Generic[P]):
    """The same for functions that are awaited, one after the other."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for function in self:
            await function(*args, **kwargs)


class SyncEndHook(list[Callable[[], None]]):
    """The same where the end of a server calls them: a failure is logged, and the end goes on."""

    def __call__(self) -> None:
        for function in self:
            try:
                function()
            except Exception:
                log.exception("a part failed at the end")


class EndHook(list[Callable[[], Awaitable[None]]]):
    """The same for functions that each end something: the next is called also if one fails or is cancelled."""

    async def __call__(self) -> None:
        async with AsyncExitStack() as ends:
            for function in reversed(self):
                ends.push_async_callback(function)
