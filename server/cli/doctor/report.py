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
MAX_LINE = 600  # characters: a server's text may have any length


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
    """A check has nothing to check; the text says why."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. `remedy` may be ""."""

    name: str
    verdict: str
    finding: str
    remedy: str = ""


CheckFinding = str | CheckNote
CheckFunction = Callable[[], Awaitable[CheckFinding]]

# name, function, and the checks that must pass before
CheckRow = tuple[str, CheckFunction, tuple[str, ...]]


async def run_checks(
    rows: Sequence[CheckRow], progress: TerminalProgress | None = None, about: Mapping[str, Any] | None = None
) -> int:
    """Run the checks, and print each result; 1 if one fails. With `about`, print one JSON object with that."""
    checks: list[CheckResult] = []
    for name, look, needs in rows:
        missing = [need for need in needs if not any(each.name == need and each.verdict in GOOD for each in checks)]
        if missing:
            verdict, finding, remedy = SKIP, f"needs {' and '.join(missing)}", ""
        else:
            with progress.show(f"checking {name}") if progress is not None else nullcontext():
                verdict, finding, remedy = await _run_check(look)
        checks.append(CheckResult(name, verdict, to_line(finding, MAX_LINE), to_line(remedy, MAX_LINE)))
        if about is None:
            _print_check(checks[-1])
    first = next((check for check in checks if check.verdict == FAIL), None)
    if about is not None:
        result = {**about, "ok": first is None, "first": first.name if first is not None else None, "checks": checks}
        print(msgspec.json.encode(result).decode())
    elif first is not None:
        print(f"\nFix this first: {first.name}: {first.remedy}")
    else:
        print("\nNo check failed.")
    return DONE if first is None else FAULT


async def _run_check(look: CheckFunction) -> tuple[str, str, str]:
    """Return the verdict of a check, its finding, and what to do or ""."""
    try:
        found = await look()
    except CheckSkippedError as skipped:
        return SKIP, str(skipped), ""
    except CheckError as error:
        return FAIL, str(error), error.remedy
    except OSError as error:  # the other checks still run
        return FAIL, f"it can't be checked: {describe_os_error(error)}", "fix what is named"
    return (NOTE, found.finding, found.remedy) if isinstance(found, CheckNote) else (OK, found, "")


def _print_check(check: CheckResult) -> None:
    print(f"{check.verdict:4}  {check.name:18}  {check.finding}", flush=True)
    if check.remedy:
        print(f"{'':4}  {'':18}  {check.remedy}", flush=True)
