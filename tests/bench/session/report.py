"""Format the sessions as two tables with a row per step: tokens, and calls with their seconds."""

from collections.abc import Callable, Sequence

from tests.bench.report import table
from tests.bench.session.measure import DEFINITIONS, Session, Step, count_tokens
from tests.bench.session.sides import OURS

MOST_ROWS = 2  # Toolgate needs the fewest tokens in all rows but this many


def report(sessions: dict[str, Session]) -> str:
    """Return both tables, the errors, and whether Toolgate needs the fewest tokens."""
    lines = [
        "Tokens by cl100k:",
        "",
        *_token_table(sessions),
        "",
        "Calls and seconds:",
        "",
        *_effort_table(sessions),
        "",
    ]
    return "\n".join([*lines, *_missing(sessions), *_errors(sessions), _verdict(sessions)])


def _token_table(sessions: dict[str, Session]) -> list[str]:
    rows = [["", *_heads(sessions)]]
    for name in sessions[OURS].steps:
        steps = [session.steps[name] for session in sessions.values()]
        rows.append([name, *("no tool" if step.instead else f"{_tokens(step, _texts):,}" for step in steps)])
    for heading, texts in TOTALS.items():
        totals = (sum(_tokens(step, texts) for step in _without(session)) for session in sessions.values())
        rows.append([heading, *(f"{total:,}" for total in totals)])
    return table(rows)


def _effort_table(sessions: dict[str, Session]) -> list[str]:
    rows = [["", *_heads(sessions)]]
    for name in sessions[OURS].steps:
        rows.append([name, *(_effort([session.steps[name]]) for session in sessions.values())])
    rows.append(["all calls", *(_effort(_without(session)) for session in sessions.values())])
    return table(rows)


def fewest(sessions: dict[str, Session]) -> list[str]:
    """Return the steps in which another server needs fewer tokens than Toolgate."""
    found = []
    for step in sessions[OURS].steps:
        counts = {
            name: _tokens(session.steps[step], _texts)
            for name, session in sessions.items()
            if not session.steps[step].instead
        }
        if min(counts.values()) < counts[OURS]:
            found.append(step)
    return found


def _heads(sessions: dict[str, Session]) -> list[str]:
    return [f"{name} {session.version}".strip() for name, session in sessions.items()]


def _without(session: Session) -> list[Step]:
    return [step for name, step in session.steps.items() if name != DEFINITIONS]


def _texts(step: Step) -> Sequence[str]:
    return step.texts


def _tokens(step: Step, texts: Callable[[Step], Sequence[str]]) -> int:
    chosen = texts(step)
    return sum(count_tokens(chosen)) if chosen else 0


def _effort(steps: Sequence[Step]) -> str:
    if all(step.instead for step in steps):
        return "no tool"
    return f"{sum(step.calls for step in steps)}, {sum(step.seconds for step in steps):.1f} s"


def _missing(sessions: dict[str, Session]) -> list[str]:
    return [
        f"{name}, {step}: {taken.instead}."
        for name, session in sessions.items()
        for step, taken in session.steps.items()
        if taken.instead
    ]


def _errors(sessions: dict[str, Session]) -> list[str]:
    return [
        f"{name}, {step}, error: {error[:200]}"
        for name, session in sessions.items()
        for step, taken in session.steps.items()
        for error in taken.errors
    ] or ["No call ended with an error."]


def _verdict(sessions: dict[str, Session]) -> str:
    behind = fewest(sessions)
    met = "met" if len(behind) <= MOST_ROWS else "NOT MET"
    others = f" ({', '.join(behind)})" if behind else ""
    return f"fewest tokens in all but at most {MOST_ROWS} rows: {len(behind)} with more{others}: {met}"


TOTALS: dict[str, Callable[[Step], Sequence[str]]] = {
    "all results, as text": _texts,
    "all results, structured if any": lambda step: step.structured,
    "all arguments": lambda step: step.asked,
}
