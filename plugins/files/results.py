"""Collect what Grep found, within the size of a result. Runs in the caller's sandbox."""

from collections.abc import Callable

from .paths import show_text

MAX_LINES = 250  # of a result, those of the context too
MAX_TEXT = 20_000  # characters
MAX_PATHS = 30_000  # characters of a result that is paths alone
MAX_FILES = 250
MAX_LINE = 300  # characters of a line


class Results:
    """What was found: in `mode` "lines", "files" or "counts". `show` makes a path readable."""

    def __init__(self, mode: str, show: Callable[[str], str]) -> None:
        self._mode = mode
        self._show = show
        self._counts: dict[str, int] = {}
        self._lines: list[str] = []
        self._size = 0
        self._last = ("", 0)
        self.is_full = False
        self.notes: list[str] = []

    @property
    def wants_lines(self) -> bool:
        return self._mode == "lines"

    @property
    def needs_one(self) -> bool:
        """Whether one match of a file says enough."""
        return self._mode == "files"

    def add_file(self, path: str, count: int) -> None:
        """Add a file with this many matching lines."""
        if path not in self._counts and len(self._counts) == MAX_FILES:
            self.is_full = True
            return
        self._counts[path] = self._counts.get(path, 0) + count

    def add(self, path: str, number: int, line: str, *, is_match: bool) -> None:
        """Add a line of a file; the lines of a file come one after another."""
        if is_match:
            self.add_file(path, 1)
        if not self.wants_lines or self.is_full:
            return
        before, last = self._last
        new = [] if path == before and self._lines else [self._show(path)]
        if not new and not is_match and number > last + 1 and last:
            new.append("--")
        line = line.rstrip("\r")
        cut = f"{line[:MAX_LINE]}…" if len(line) > MAX_LINE else line
        new.append(f"{number}{':' if is_match else '-'}{show_text(cut)}")
        self._size += sum(map(len, new)) + len(new)
        if len(self._lines) + len(new) > MAX_LINES or self._size > MAX_TEXT:
            self.is_full = True
            return
        self._lines += new
        self._last = (path, number)

    def format(self, where: str) -> str:
        """Return the text for the model."""
        match self._mode:
            case "lines":
                found = self._lines
            case "files":
                found = sorted(map(self._show, self._counts))
            case _:
                found = sorted(f"{self._show(path)}:{count}" for path, count in self._counts.items())
        if not self.wants_lines:
            kept = fit_paths(found)
            self.is_full |= len(kept) < len(found)
            found = kept
        if not found:
            found = [f"[nothing in {where} matches]"]
        notes = [*self.notes, *(["there is more: narrow the pattern, path or glob"] if self.is_full else [])]
        return "\n".join([*found, *([f"[{'; '.join(notes)}]"] if notes else [])])


def fit_paths(paths: list[str]) -> list[str]:
    """Return the first of the paths, as many as a result may hold."""
    size = 0
    for count, path in enumerate(paths):
        size += len(path) + 1
        if size > MAX_PATHS:
            return paths[:count]
    return paths
