"""The summary of the attempts that docs/security.md shows. `python -m tests.escape.table` prints it."""

from collections.abc import Sequence

from tests.escape.attempt import LEVELS, Attempt
from tests.escape.attempts import GROUPS


def table() -> str:
    """A row a group: how many attempts, and how many of them each level stops."""
    head = f"| what is tried | attempts | {' | '.join(LEVELS)} |\n|---|---|{'---|' * len(LEVELS)}\n"
    return head + "".join(f"| {name} | {len(group)} | {_cells(group)} |\n" for name, group in GROUPS.items())


def _cells(group: Sequence[Attempt]) -> str:
    return " | ".join(_cell(sum(_stops(level, attempt) for attempt in group), len(group)) for level in LEVELS)


def _stops(level: str, attempt: Attempt) -> bool:
    return level in attempt.stopped and level not in attempt.untried


def _cell(stopped: int, of: int) -> str:
    return "all" if stopped == of else "-" if stopped == 0 else str(stopped)


if __name__ == "__main__":
    print(table(), end="")
