"""Checks in a row, and how they are told: ok, FAIL or skip a line, what to do below a FAIL, and at the end the first of
those once more."""

from collections.abc import Awaitable, Callable, Sequence

DONE, FAULT = 0, 1

# name, what looks (its text is the finding), and the checks that have to be ok before
Row = tuple[str, Callable[[], Awaitable[str]], tuple[str, ...]]


class Broken(Exception):
    """It is not as it has to be; `remedy` says what to do."""

    def __init__(self, finding: str, remedy: str) -> None:
        super().__init__(finding)
        self.remedy = remedy


class Skipped(Exception):
    """There is nothing to look at; the text says why."""


async def report(rows: Sequence[Row]) -> int:
    """Look at all of them; 1 when one is broken."""
    good: set[str] = set()
    first: tuple[str, Broken] | None = None
    for name, look, needs in rows:
        missing = [need for need in needs if need not in good]
        if missing:
            _say("skip", name, f"needs {' and '.join(missing)}")
            continue
        try:
            _say("ok", name, await look())
            good.add(name)
        except Skipped as skipped:
            _say("skip", name, str(skipped))
        except Broken as broken:
            _say("FAIL", name, str(broken))
            _say("", "", broken.remedy)
            first = first or (name, broken)
    if first is None:
        return DONE
    print(f"\nthe first thing to mend is {first[0]}: {_line(first[1].remedy)}")
    return FAULT


def _say(verdict: str, name: str, finding: str) -> None:
    print(f"{verdict:4}  {name:18}  {_line(finding)}", flush=True)


def _line(text: str) -> str:
    """One line, whatever a server said."""
    return "".join(each if each.isprintable() else " " for each in text)[:600]
