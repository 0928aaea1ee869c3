"""Checks in a row, and how they are told: ok, note, FAIL or skip a line, what to do below a FAIL and a note, and at the
end the first of those to mend once more; or all of it as one JSON object, for programs."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec

from toolgate.server.progress import Progress

DONE, FAULT = 0, 1
OK, NOTE, FAIL, SKIP = "ok", "note", "FAIL", "skip"
GOOD = (OK, NOTE)


@dataclass(frozen=True, slots=True)
class Note:
    """It works, but not as well as it could; `remedy` says what to do."""

    finding: str
    remedy: str


class Broken(Exception):
    """It is not as it has to be; `remedy` says what to do."""

    def __init__(self, finding: str, remedy: str) -> None:
        super().__init__(finding)
        self.remedy = remedy


class Skipped(Exception):
    """There is nothing to look at; the text says why."""


@dataclass(frozen=True, slots=True)
class Check:
    """How one came out. `remedy` is "" where there is nothing to do."""

    name: str
    verdict: str
    finding: str
    remedy: str = ""


Finding = str | Note
Look = Callable[[], Awaitable[Finding]]

# name, what looks, and the checks that have to be good before
Row = tuple[str, Look, tuple[str, ...]]


async def report(rows: Sequence[Row], progress: Progress | None = None, about: Mapping[str, Any] | None = None) -> int:
    """Look at all of them; 1 when one is broken. Told line by line, or where there is something to be told `about` them
    as one JSON object, which has that too."""
    checks: list[Check] = []
    for name, look, needs in rows:
        missing = [need for need in needs if not any(each.name == need and each.verdict in GOOD for each in checks)]
        if missing:
            check = Check(name, SKIP, f"needs {' and '.join(missing)}")
        else:
            with progress.doing(f"looking at {name}") if progress is not None else nullcontext():
                check = await _looked(name, look)
        checks.append(check)
        if about is None:
            _say(check)
    first = next((check for check in checks if check.verdict == FAIL), None)
    if about is not None:
        print(_object(checks, first, about))
    elif first is not None:
        print(f"\nthe first thing to mend is {first.name}: {first.remedy}")
    return DONE if first is None else FAULT


async def _looked(name: str, look: Look) -> Check:
    try:
        found = await look()
    except Skipped as skipped:
        return Check(name, SKIP, _line(str(skipped)))
    except Broken as broken:
        return Check(name, FAIL, _line(str(broken)), _line(broken.remedy))
    except OSError as error:  # one that can't be looked at must not cost the others
        return Check(name, FAIL, _line(f"it can't be looked at: {error}"), "mend what is named")
    if isinstance(found, Note):
        return Check(name, NOTE, _line(found.finding), _line(found.remedy))
    return Check(name, OK, _line(found))


def _say(check: Check) -> None:
    print(f"{check.verdict:4}  {check.name:18}  {check.finding}", flush=True)
    if check.remedy:
        print(f"{'':4}  {'':18}  {check.remedy}", flush=True)


def _object(checks: Sequence[Check], first: Check | None, about: Mapping[str, Any]) -> str:
    told = {**about, "ok": first is None, "first": first.name if first is not None else None, "checks": checks}
    return msgspec.json.encode(told).decode()


def _line(text: str) -> str:
    """One line, whatever a server said."""
    return "".join(each if each.isprintable() else " " for each in text)[:600]
