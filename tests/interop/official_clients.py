"""The expected findings of every official client, and the ways in which the two SDKs' clients negotiate."""

from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import pytest

MODES = ["legacy", "auto", "2026-07-28"]  # initialize; ask for the newest; use the stateless one without asking

CARRIERS = ["stdio", "http", "sse"]


class Negotiation(NamedTuple):
    """How a client connects: its transport, and how it negotiates."""

    carrier: str
    mode: str

    def __str__(self) -> str:
        return f"{self.carrier} {self.mode}"


WAYS = [
    Negotiation(carrier, mode) for carrier in CARRIERS for mode in MODES if (carrier, mode) != ("sse", "2026-07-28")
]

OVER_HTTP = [way for way in WAYS if way.carrier != "stdio"]
AUTO = (Negotiation("http", "auto"),)  # after negotiation the same as Negotiation("http", "2026-07-28")

LEAN = {"Bash", "ReadImage", "ReadDocs", "InvokeSkill", "ReadBgOutput"}  # without structured output by default
THIRTEEN = [
    "Bash",
    "ReadImage",
    "ReadDocs",
    "WebSearch",
    "TaskManager",
    "PlanMode",
    "AskUserQuestion",
    "InvokeSkill",
    "BackgroundBash",
    "ReadBgOutput",
    "ListBgTasks",
    "KillBgTask",
    "SetCallback",
]


def told_apart(ways: Sequence[Negotiation]) -> list[Any]:
    """Return the ways as parameters for tests after the handshake. There `auto` equals another way, and runs in `make
    soak` if `ways` has that one."""
    return [
        pytest.param(
            way,
            id=str(way),
            marks=pytest.mark.soak if way.mode == "auto" and Negotiation(way.carrier, MODES[-1]) in ways else (),
        )
        for way in ways
    ]


def crossed(some: Sequence[Any], others: Sequence[Any], later: Container[Any] = ()) -> list[Any]:
    """Return the parameters of every pair. `make test` runs each item at least once, except for those of `some` in
    `later`; `make soak` runs the rest."""
    return [
        pytest.param(
            one,
            other,
            id=f"{one}-{other}",
            marks=() if (at - place) % len(others) == 0 and one not in later else pytest.mark.soak,
        )
        for at, one in enumerate(some)
        for place, other in enumerate(others)
    ]
