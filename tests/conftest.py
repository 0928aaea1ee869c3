"""Fixtures: a server of one's own, started on request and ended, checked, after the test."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.wire import ROOT, Server, served

PROBE = ("-p", str(ROOT / "tests" / "plugins"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a server: `start(*options, revision=…, capabilities=…, answer=…)`."""
    with contextlib.ExitStack() as stack:

        def begin(*options: str, **how: Any) -> Server:
            return stack.enter_context(served(tmp_path, *options, **how))

        yield begin


@pytest.fixture
def probe(start: Callable[..., Server]) -> Callable[..., Server]:
    """Start a server that also has the tools of tests/plugins."""

    def begin(*options: str, **how: Any) -> Server:
        return start(*PROBE, *options, **how)

    return begin
