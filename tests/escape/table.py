"""The summary of the attempts that docs/security.md shows. `python -m tests.escape.table` prints it."""

from collections.abc import Sequence

from tests.escape.attempt import LEVELS, Attempt
from tests.escape.attempts import ATTEMPTS, GROUPS
from tests.escape.attempts.limits import ELSEWHERE, HELD_BY


def table() -> str:
    """Return a row per group: how many attempts, and how many of them each level stops."""
    head = f"| what is tried | attempts | {' | '.join(LEVELS)} |\n|---|---|{'---|' * len(LEVELS)}\n"
    return head + "".join(f"| {name} | {len(group)} | {_cells(group)} |\n" for name, group in GROUPS.items())


def limits_table() -> str:
    """Return a row per limit: how many attempts on it, and what enforces it."""
    head = "| limit | attempts | bwrap | uid | both without control groups |\n|---|---|---|---|---|\n"
    return head + "".join(f"| {name} | {_number(name)} | {' | '.join(held)} |\n" for name, held in HELD_BY.items())


def _number(limit: str) -> int:
    return sum(each.limit == limit for each in ATTEMPTS) + (limit in ELSEWHERE)


def _cells(group: Sequence[Attempt]) -> str:
    return " | ".join(_cell(sum(_stops(level, attempt) for attempt in group), len(group)) for level in LEVELS)


def _stops(level: str, attempt: Attempt) -> bool:
    return level in attempt.stopped and level not in attempt.untried


def _cell(stopped: int, of: int) -> str:
    return "all" if stopped == of else "-" if stopped == 0 else str(stopped)


if __name__ == "__main__":
    print(table(), limits_table(), sep="\n", end="")
