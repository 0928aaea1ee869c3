"""Make what people have switched off known to one server, and to those beside it."""

from collections.abc import Awaitable, Callable

from toolgate.server.app.host import AppHost
from toolgate.server.base.bus.bus import Bus
from toolgate.server.base.errors import StateError
from toolgate.server.features.mounts.assembly.sharing import ChangeSharing, PersonChange
from toolgate.server.features.mounts.choices.book import ChoiceBook
from toolgate.server.features.mounts.choices.switched_off import SwitchedOff

TOPIC = "mount-choices"


class LazyChoices:
    """The choices of all people. `on_change` as that of `ChoiceBook`; `tell_processes()` has other processes on the
    machine look at them."""

    def __init__(
        self,
        host: AppHost,
        on_change: Callable[[str, SwitchedOff | None, SwitchedOff | None], None],
        tell_processes: Callable[[], Awaitable[None]],
    ) -> None:
        self._host = host
        self._on_change = on_change
        self._tell_processes = tell_processes
        self._book: ChoiceBook | None = None
        self._sharing: ChangeSharing | None = None  # with other servers on the state

    def open(self) -> ChoiceBook:
        if self._book is None:
            self._book = ChoiceBook(self._host.store, self._on_change, self._share)
        return self._book

    async def load(self) -> None:
        """Read the state now, or as soon as it can be read."""
        book = self.open()
        try:
            await book.load()
        except StateError:
            book.load_soon()

    def load_soon(self) -> None:
        if self._book is not None:
            self._book.load_soon()

    def find(self, principal: str) -> SwitchedOff | None:
        """Return what a principal has switched off, or None while that is not known."""
        return self._book.find(principal) if self._book is not None else None

    def has(self, choice: SwitchedOff | None) -> bool:
        """Return whether somebody has switched off just this."""
        return self._book is not None and self._book.has(choice)

    def share_with(self, bus: Bus) -> None:
        """Tell the other servers on the state, and hear of them."""
        book = self.open()
        self._sharing = ChangeSharing(bus, TOPIC, lambda _: book.load_soon(), book.load_soon)

    async def remove(self, principal: str) -> None:
        """Forget a person. Raises StateError."""
        if self._book is not None:
            await self._book.remove(principal)

    def close(self) -> None:
        if self._book is not None:
            self._book.close()

    async def _share(self, principal: str) -> None:
        if self._sharing is not None:
            self._sharing.tell(PersonChange(principal))
        await self._tell_processes()
