"""Define how one engine did: its results, or why there are none."""

from typing import Literal

import msgspec

Status = Literal["ok", "empty", "blocked", "timeout", "error"]


class EngineResult(msgspec.Struct, frozen=True):
    """One cleaned result: `url` is a usable http URL, the texts are one line without markup."""

    title: str
    url: str
    snippet: str


class EngineOutcome(msgspec.Struct, frozen=True):
    """The outcome of one engine: `results`, best first; `ms` it took; `reason` for none.

    `wait`: seconds that the engine asks for. `is_engine_fault`: neither the query nor the server's load is the cause.
    `age`: seconds since this outcome, if the engine was not queried again.
    """

    name: str
    status: Status
    results: list[EngineResult] = []
    ms: int = 0
    reason: str = ""
    wait: float = 0.0
    is_engine_fault: bool = False
    age: float | None = None
