"""Checks in a row, and how they are told: ok, note, FAIL or skip a line, what to do below a FAIL and a note, and at the
end the first of those to mend once more; or all of it as one JSON object, for programs."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec

from toolgate.server.progress import TerminalProgress
from toolgate.server.text import to_line

DONE, FAULT = 0, 1
OK, NOTE, FAIL, SKIP = "ok", "note", "FAIL", "skip"
GOOD = (OK, NOTE)
MAX_LINE = 600  # characters: servers answer what they like


@dataclass(frozen=True, slots=True)
class CheckNote:
    """It works, but not as well as it could; `remedy` says what to do."""

    finding: str
    remedy: str


class CheckFailedError(Exception):
    """It is not as it has to be; `remedy` says what to do."""

    def __init__(self, finding: str, remedy: str) -> None:
        super().__init__(finding)
        self.remedy = remedy


class CheckSkippedError(Exception):
    """There is nothing to look at; the text says why."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How one came out. `remedy` is "" where there is nothing to do."""

    name: str
    verdict: str
    finding: str
    remedy: str = ""


CheckFinding = str | CheckNote
CheckFunction = Callable[[], Awaitable[CheckFinding]]

# name, what looks, and the checks that have to be good before
CheckRow = tuple[str, CheckFunction, tuple[str, ...]]


async def run_checks(
    rows: Sequence[CheckRow], progress: TerminalProgress | None = None, about: Mapping[str, Any] | None = None
) -> int:
    """Look at all of them; 1 when one is broken. Told line by line, or where there is something to be told `about` them
    as one JSON object, which has that too."""
    checks: list[CheckResult] = []
    for name, look, needs in rows:
        missing = [need for need in needs if not any(each.name == need and each.verdict in GOOD for each in checks)]
        if missing:
            check = CheckResult(name, SKIP, f"needs {' and '.join(missing)}")
        else:
            with progress.show(f"looking at {name}") if progress is not None else nullcontext():
                check = await _run_check(name, look)
        checks.append(check)
        if about is None:
            _print_check(check)
    first = next((check for check in checks if check.verdict == FAIL), None)
    if about is not None:
        print(_to_json(checks, first, about))
    elif first is not None:
        print(f"\nthe first thing to mend is {first.name}: {first.remedy}")
    return DONE if first is None else FAULT


async def _run_check(name: str, look: CheckFunction) -> CheckResult:
    try:
        found = await look()
    except CheckSkippedError as skipped:
        return CheckResult(name, SKIP, to_line(str(skipped), MAX_LINE))
    except CheckFailedError as broken:
        return CheckResult(name, FAIL, to_line(str(broken), MAX_LINE), to_line(broken.remedy, MAX_LINE))
    except OSError as error:  # one that can't be looked at must not cost the others
        return CheckResult(name, FAIL, to_line(f"it can't be looked at: {error}", MAX_LINE), "mend what is named")
    if isinstance(found, CheckNote):
        return CheckResult(name, NOTE, to_line(found.finding, MAX_LINE), to_line(found.remedy, MAX_LINE))
    return CheckResult(name, OK, to_line(found, MAX_LINE))


def _print_check(check: CheckResult) -> None:
    print(f"{check.verdict:4}  {check.name:18}  {check.finding}", flush=True)
    if check.remedy:
        print(f"{'':4}  {'':18}  {check.remedy}", flush=True)


def _to_json(checks: Sequence[CheckResult], first: CheckResult | None, about: Mapping[str, Any]) -> str:
    told = {**about, "ok": first is None, "first": first.name if first is not None else None, "checks": checks}
    return msgspec.json.encode(told).decode()
