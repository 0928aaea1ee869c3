"""Format the figures over HTTP as two tables, like those of stdio."""

from tests.bench.http.measure import (
    CALLS,
    CPU,
    IDLE,
    OPENED,
    P50,
    P99,
    PROSE_CPU,
    SESSION,
    SLICED_CALLS,
    SLICED_CPU,
    STREAM,
)
from tests.bench.http.sides import DIALECTS, OURS_SIGNED, OURS_STATELESS
from tests.bench.measure import Figures
from tests.bench.report import Target, absolutes, ratios, relatives
from tests.bench.sides import FLOOR, OURS, PYTHON, TYPESCRIPT

COLUMNS = {  # metric → heading
    **{metric: f"calls/s, {clients}" for clients, metric in CALLS.items()},
    **{metric: f"p50 µs, {clients}" for clients, metric in P50.items()},
    **{metric: f"p99 ms, {clients}" for clients, metric in P99.items()},
    CPU[8]: "CPU µs a call, 8",  # of the server: more meaningful than calls/s on a busy machine
    OPENED: "sessions/s",
    SESSION: "KiB/session",
    STREAM: "KiB/stream",
    IDLE: "idle CPU, ms/s",
}

TARGETS = (
    Target("processor time at 8 clients: at most 1.9 × the floor's", CPU[8], FLOOR, 1.9, False),
    Target("processor time at 8 clients: at most 0.26 of the Python SDK's", CPU[8], PYTHON, 0.26, False),
    Target("100 KB of prose: at most 0.67 of the Python SDK's processor time", PROSE_CPU, PYTHON, 0.67, False),
    Target("calls at 8 clients: at least 4 × the Python SDK's", CALLS[8], PYTHON, 4.0, True),
    Target("calls at 8 clients: at least 2.5 × the TypeScript SDK's", CALLS[8], TYPESCRIPT, 2.5, True),
    Target("calls at 8 clients: at least half the floor's", CALLS[8], FLOOR, 0.5, True),
    Target("p99 at 64 clients: at most 1.5 × the floor's", P99[64], FLOOR, 1.5, False),
    Target("sessions: at least 3 × the Python SDK's", OPENED, PYTHON, 3.0, True),
    Target("sessions: at least 3 × the TypeScript SDK's", OPENED, TYPESCRIPT, 3.0, True),
    Target("2026-07-28: at least 0.85 of the sessions era", SLICED_CALLS, OURS, 0.85, True, side=OURS_STATELESS),
    Target("a token at 8 clients: at most 10 % of a call's CPU", SLICED_CPU, OURS, 1.1, False, side=OURS_SIGNED),
    Target("a token at 8 clients: at most 10 % of calls/s", SLICED_CALLS, OURS, 1 / 1.1, True, side=OURS_SIGNED),
    Target("an idle session: at most 6 KiB", SESSION, "", 6.0, False),
    Target("an open stream: at most 13 KiB", STREAM, "", 13.0, False),
    Target("an open subscription: at most 13 KiB", STREAM, "", 13.0, False, side=OURS_STATELESS),
)


def report(figures: Figures) -> str:
    """Return both tables. CPU is the idle use of a server with all those sessions and streams."""
    sides = [side for side in DIALECTS if side != FLOOR]
    beside = relatives(figures, sides, {CALLS[8]: "calls/s, 8", CPU[8]: "CPU a call, 8"})
    return "\n".join((*absolutes(figures, list(DIALECTS), COLUMNS), "", *beside, "", *ratios(figures, TARGETS)))
