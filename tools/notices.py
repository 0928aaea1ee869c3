"""What happened while nobody was asking, kept until the principal's next tool result takes it along."""

MAX_NOTICES = 32  # a client that never calls again must not fill memory; the oldest go first


class Notices:
    """One principal's notices: a background task that ended, a callback that fired. Each is told once."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._times: dict[str, int] = {}

    def add(self, key: str, text: str) -> None:
        """Keep `text` under `key`; a later notice under the same key takes its place, and is counted."""
        self._texts.pop(key, None)
        self._texts[key] = text
        self._times[key] = self._times.get(key, 0) + 1
        while len(self._texts) > MAX_NOTICES:
            self.drop(next(iter(self._texts)))

    def drop(self, key: str) -> None:
        """Forget a notice: its news has been told another way."""
        self._texts.pop(key, None)
        self._times.pop(key, None)

    def take(self) -> dict[str, str]:
        """All of them, oldest first; they are no longer here."""
        taken = {
            key: text if self._times[key] == 1 else f"{text} ({self._times[key]} times)"
            for key, text in self._texts.items()
        }
        self._texts, self._times = {}, {}
        return taken

    def restore(self, taken: dict[str, str]) -> None:
        """Put back what could not be told after all."""
        for key, text in taken.items():
            if key not in self._texts:
                self.add(key, text)
