"""Format the figures over HTTP as two tables, like those of stdio."""

from tests.bench.http.measure import CALLS, CPU, IDLE, OPENED, P50, P99, SESSION, STREAM
from tests.bench.http.sides import DIALECTS, OURS_SIGNED, OURS_STATELESS
from tests.bench.measure import Figures
from tests.bench.report import Target, absolutes, ratios
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
MOST_P99 = 25.0  # ms
LEVEL = 0.9  # less is noise
MOST_FOR_A_TOKEN = 1.15  # of what a call costs without

TARGETS = (
    Target("calls at 8 clients: at least 3 × the Python SDK's", CALLS[8], PYTHON, 3.0, True),
    Target("calls at 8 clients: at least 1.5 × the TypeScript SDK's", CALLS[8], TYPESCRIPT, 1.5, True),
    Target("calls at 8 clients: at least half the floor's", CALLS[8], FLOOR, 0.5, True),
    Target("sessions: at least 3 × the Python SDK's", OPENED, PYTHON, 3.0, True),
    Target("sessions: at least 3 × the TypeScript SDK's", OPENED, TYPESCRIPT, 3.0, True),
    Target("stateless at 8 clients: no slower than sessions", CALLS[8], OURS, LEVEL, True, side=OURS_STATELESS),
    Target(
        "a token, 64 clients: at most 15 % of a call's CPU", CPU[64], OURS, MOST_FOR_A_TOKEN, False, side=OURS_SIGNED
    ),
    Target(
        "a token, 64 clients: at most 15 % of calls/s", CALLS[64], OURS, 1 / MOST_FOR_A_TOKEN, True, side=OURS_SIGNED
    ),
    Target("an idle session: at most 6 KiB", SESSION, "", 6.0, False),
    Target("an open stream: at most 20 KiB", STREAM, "", 20.0, False),
    Target("an open subscription: at most 20 KiB", STREAM, "", 20.0, False, side=OURS_STATELESS),
)


def report(figures: Figures) -> str:
    """Return both tables. CPU is the idle use of a server with all those sessions and streams."""
    lasting = Target(f"p99 at 64 clients: under {MOST_P99:g} ms, as the floor's is", P99[64], "", MOST_P99, False)
    floor_is_good = figures.median(FLOOR, P99[64]) < MOST_P99
    targets = (*TARGETS, lasting) if floor_is_good else TARGETS
    return "\n".join((*absolutes(figures, list(DIALECTS), COLUMNS), "", *ratios(figures, targets)))
