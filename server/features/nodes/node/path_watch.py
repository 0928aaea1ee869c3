"""Wait for the changes of one path, for one request after another."""

import asyncio
from collections.abc import AsyncIterator


class PathWatch:
    """The watch of a path. `changes` yields at each change."""

    def __init__(self, changes: AsyncIterator[object]) -> None:
        self._changes = changes
        self._step: asyncio.Task[bool] | None = None  # what a request waits for

    async def wait(self) -> bool:
        """Wait for the next change. Return False if there is none any more, or the watch is closed meanwhile. Raises
        ValueError while another request waits."""
        if self._step is not None:
            raise ValueError("another request waits for this watch")
        self._step = step = asyncio.get_running_loop().create_task(self._advance())
        try:
            await asyncio.wait([step])
        except asyncio.CancelledError:
            step.cancel()
            raise
        finally:
            self._step = None
        return not step.cancelled() and step.result()

    async def close(self) -> None:
        """End the watch, and what waits for it."""
        if self._step is not None:
            self._step.cancel()
            await asyncio.wait([self._step])
        close = getattr(self._changes, "aclose", None)
        if close is not None:
            await close()

    async def _advance(self) -> bool:
        async for _ in self._changes:
            return True
        return False
