"""What every official client is to find, and the ways in which the two SDKs' clients negotiate."""

from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import pytest

MODES = ["legacy", "auto", "2026-07-28"]  # initialize; ask, and take the newest there is; the stateless one, unasked

CARRIERS = ["stdio", "http", "sse"]


class Way(NamedTuple):
    """How a client talks: over what, and how it negotiates."""

    carrier: str
    mode: str

    def __str__(self) -> str:
        return f"{self.carrier} {self.mode}"


WAYS = [Way(carrier, mode) for carrier in CARRIERS for mode in MODES if (carrier, mode) != ("sse", "2026-07-28")]

OVER_HTTP = [way for way in WAYS if way.carrier != "stdio"]
AUTO = (Way("http", "auto"),)  # once it has asked it is Way("http", "2026-07-28")

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


def told_apart(ways: Sequence[Way]) -> list[Any]:
    """The ways as parameters, for what comes after the handshake: there `auto` has become what another way is from the
    beginning, and is for `make soak` where `ways` has that one."""
    return [
        pytest.param(
            way,
            id=str(way),
            marks=pytest.mark.soak if way.mode == "auto" and Way(way.carrier, MODES[-1]) in ways else (),
        )
        for way in ways
    ]


def crossed(some: Sequence[Any], others: Sequence[Any], later: Container[Any] = ()) -> list[Any]:
    """The parameters of every pair. Each of either is in one that `make test` runs, but for those of `some` that are
    for `later`; the rest are for `make soak`."""
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
