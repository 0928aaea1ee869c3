"""Tell those who watch a principal that something of theirs has changed."""

from collections.abc import Callable


class Watchers:
    """Functions that are called at each change. `by_principal` is empty while nobody watches."""

    def __init__(self) -> None:
        self.by_principal: dict[str, set[Callable[[], None]]] = {}

    def watch(self, principal: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` at each change. Return a function that stops this."""
        watching = self.by_principal.setdefault(principal, set())
        watching.add(notify)

        def stop() -> None:
            watching.discard(notify)
            if not watching and self.by_principal.get(principal) is watching:
                del self.by_principal[principal]

        return stop

    def notify_all(self) -> None:
        for principal in list(self.by_principal):
            self.notify(principal)

    def notify(self, principal: str) -> None:
        for notify in list(self.by_principal.get(principal, ())):
            notify()
