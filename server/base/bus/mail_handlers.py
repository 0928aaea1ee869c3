"""Answer mail with the handler of its kind, within a time limit and one at a time for each message."""

import asyncio
import logging

from toolgate.server.base.bus.bus import MailHandler, NoReplyError, check_data, check_name

log = logging.getLogger("toolgate.bus")


class MailHandlers:
    """The handlers of one replica, by kind."""

    def __init__(self) -> None:
        self._handlers: dict[str, MailHandler] = {}

    def add(self, kind: str, handler: MailHandler) -> None:
        """Raises ValueError if the kind has a handler."""
        check_name(kind)
        if kind in self._handlers:
            raise ValueError(f"mail of the kind {kind} has a handler")
        self._handlers[kind] = handler

    async def answer(self, kind: str, data: bytes, seconds: float) -> bytes:
        """Return the reply of the kind's handler. Raises NoReplyError."""
        handler = self._handlers.get(kind)
        if handler is None:
            raise NoReplyError(f"the replica has no handler for {kind}")
        try:
            async with asyncio.timeout(seconds):
                reply = await handler(data)
            check_data(reply)
        except TimeoutError:
            raise NoReplyError(f"the handler for {kind} takes longer than {seconds:g} s") from None
        except Exception:
            log.exception("the handler for %s failed", kind)
            raise NoReplyError(f"the handler for {kind} failed; the log of its replica says why") from None
        return reply
