"""Run checks in order, and print a line for each: ok, note, FAIL or skip, and below it what to do.

The last line says what to fix first, or that all is well. Programs get all of it as one JSON object.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec

from toolgate.server.base.errors import StateError, UsageError
from toolgate.server.base.progress import TerminalProgress
from toolgate.server.base.text import describe_os_error, to_line
from toolgate.server.cli.terminal.style import BAD, BOLD, DIM, FINE, GREEN, PLAIN, YELLOW, Style

DONE, FAULT = 0, 1
ACCESS_NEEDED = "needs toolgate login, or an access token in TOOLGATE_TOKEN"  # in the finding of a skipped check
OK, NOTE, FAIL, SKIP = "ok", "note", "FAIL", "skip"
GOOD = (OK, NOTE)
COLOURS = {OK: GREEN, NOTE: YELLOW, FAIL: BAD, SKIP: DIM}
INDENT = 26  # columns before a finding
MAX_LINE = 600  # characters: a server's text may have any length


class CheckNote(msgspec.Struct, frozen=True):
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


class CheckResult(msgspec.Struct, frozen=True):
    """The result of one check. `remedy` may be ""."""

    name: str
    verdict: str
    finding: str
    remedy: str = ""


Now = Callable[[], float]  # this machine's clock, in seconds since the epoch
ClockReading = Callable[[Now], Awaitable[tuple[float, float, float]]]  # a clock, between two times of this machine
CheckFinding = str | CheckNote
CheckFunction = Callable[[], Awaitable[CheckFinding]]

# name, function, and the checks that must pass before
CheckRow = tuple[str, CheckFunction, tuple[str, ...]]


class DoctorPart(msgspec.Struct, frozen=True):
    """What a feature checks.

    checks: in order; they come after the check called `after`
    replaced: what comes in place of checks of the machine, by their names
    needs: what must pass before checks of the machine, by their names
    clocks: those of other machines, by the names that people know
    """

    checks: Sequence[CheckRow]
    after: str
    replaced: Mapping[str, CheckFunction] = {}
    needs: Mapping[str, tuple[str, ...]] = {}
    clocks: Mapping[str, ClockReading] = {}


async def run_checks(
    rows: Sequence[CheckRow],
    progress: TerminalProgress | None = None,
    about: Mapping[str, Any] | None = None,
    style: Style = PLAIN,
) -> int:
    """Run the checks, and print each result; 1 if one fails. With `about`, print one JSON object with that."""
    checks: list[CheckResult] = []
    blocked = 0  # checks that are not run because another has not passed
    for name, look, needs in rows:
        missing = [need for need in needs if not any(each.name == need and each.verdict in GOOD for each in checks)]
        if missing:
            blocked += 1
            verdict, finding, remedy = SKIP, f"needs {' and '.join(missing)}", ""
        else:
            with progress.show(f"checking {name}") if progress is not None else nullcontext():
                verdict, finding, remedy = await _run_check(look)
        checks.append(CheckResult(name, verdict, to_line(finding, MAX_LINE), to_line(remedy, MAX_LINE)))
        is_blocked = missing and any(each.verdict == FAIL for each in checks)
        if about is None and not is_blocked:
            _print_check(checks[-1], style)
    first = next((check for check in checks if check.verdict == FAIL), None)
    if about is not None:
        result = {**about, "ok": first is None, "first": first.name if first is not None else None, "checks": checks}
        print(msgspec.json.encode(result).decode())
    else:
        print(f"\n{_conclude(checks, first, blocked, style)}")
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
    except (UsageError, StateError) as error:
        return FAIL, f"it can't be checked: {error}", "fix what is named"
    return (NOTE, found.finding, found.remedy) if isinstance(found, CheckNote) else (OK, found, "")


def _print_check(check: CheckResult, style: Style) -> None:
    verdict = style.paint(COLOURS[check.verdict], f"{check.verdict:4}")
    finding = style.wrap(check.finding, INDENT)
    print(f"{verdict}  {check.name:18}  {style.paint(DIM, finding) if check.verdict == SKIP else finding}", flush=True)
    if check.remedy:
        print(" " * INDENT + style.paint(BOLD, style.wrap(check.remedy, INDENT)), flush=True)


def _conclude(checks: Sequence[CheckResult], first: CheckResult | None, blocked: int, style: Style) -> str:
    """Return the last line: what to fix first, or that all is well."""
    count = Counter(check.verdict for check in checks)
    if first is not None:
        failed = [f"{count[FAIL]} checks failed"] if count[FAIL] > 1 else []
        if blocked:
            failed.append(f"{blocked} {'other needs' if blocked == 1 else 'others need'} one that did not pass")
        more = f" ({', '.join(failed)})" if failed else ""
        return style.wrap(f"{style.paint(BAD, 'Fix this first')}: {first.name}: {first.remedy}{more}", 0)
    rest = [f"{count[NOTE]} with a note"] if count[NOTE] else []
    rest += [f"{count[SKIP]} skipped"] if count[SKIP] else []
    told = f"{count[OK] + count[NOTE]} checks passed{', ' if rest else ''}{', '.join(rest)}."
    if any(check.verdict == SKIP and ACCESS_NEEDED in check.finding for check in checks):
        told += " Calls and event streams are not among them: sign in with toolgate login to check those too."
    return f"{style.paint(FINE, 'All is well')}: {told}"
