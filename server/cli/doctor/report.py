"""Run checks in order, and print a line for each: ok, note, FAIL or skip, and below it what to do.

The last line repeats what to fix first. Programs get all of it as one JSON object.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec

from toolgate.server.progress import TerminalProgress
from toolgate.server.text import describe_os_error, to_line

DONE, FAULT = 0, 1
OK, NOTE, FAIL, SKIP = "ok", "note", "FAIL", "skip"
GOOD = (OK, NOTE)
MAX_LINE = 600  # characters: servers answer what they like


@dataclass(frozen=True, slots=True)
class CheckNote:
    """A finding that works, but not as well as it could; `remedy` says what to do."""

    finding: str
    remedy: str


class CheckError(Exception):
    """A check found a fault; `remedy` says what to do."""

    def __init__(self, finding: str, remedy: str) -> None:
        super().__init__(finding)
        self.remedy = remedy


class CheckSkippedError(Exception):
    """A check has nothing to look at; the text says why."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. `remedy` is "" where there is nothing to do."""

    name: str
    verdict: str
    finding: str
    remedy: str = ""


CheckFinding = str | CheckNote
CheckFunction = Callable[[], Awaitable[CheckFinding]]

# its name, the function, and the names of the checks that must be good before
CheckRow = tuple[str, CheckFunction, tuple[str, ...]]


async def run_checks(
    rows: Sequence[CheckRow], progress: TerminalProgress | None = None, about: Mapping[str, Any] | None = None
) -> int:
    """Run the checks, and print a line for each as it is done; 1 when one fails. With `about`, print one JSON object at
    the end, which begins with that."""
    checks: list[CheckResult] = []
    for name, look, needs in rows:
        missing = [need for need in needs if not any(each.name == need and each.verdict in GOOD for each in checks)]
        if missing:
            check = CheckResult(name, SKIP, f"needs {' and '.join(missing)}")
        else:
            with progress.show(f"checking {name}") if progress is not None else nullcontext():
                check = await _run_check(name, look)
        checks.append(check)
        if about is None:
            _print_check(check)
    first = next((check for check in checks if check.verdict == FAIL), None)
    if about is not None:
        print(_to_json(checks, first, about))
    elif first is not None:
        print(f"\nFix this first: {first.name}: {first.remedy}")
    return DONE if first is None else FAULT


async def _run_check(name: str, look: CheckFunction) -> CheckResult:
    try:
        found = await look()
    except CheckSkippedError as skipped:
        return CheckResult(name, SKIP, to_line(str(skipped), MAX_LINE))
    except CheckError as broken:
        return CheckResult(name, FAIL, to_line(str(broken), MAX_LINE), to_line(broken.remedy, MAX_LINE))
    except OSError as error:  # the other checks still run
        return CheckResult(
            name, FAIL, to_line(f"it can't be checked: {describe_os_error(error)}", MAX_LINE), "fix what is named"
        )
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
