"""Servers with the example plugins, whose only services are the test's stand-ins."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import ROOT, Server, served
from tests.clients.raw_http_client import site, spoken
from tests.conftest import TRANSPORTS

EXAMPLES = ("-p", str(ROOT / "plugins"))
ALONE = {"OLLAMA_HOST": "127.0.0.1:1"}  # nothing listens there


@pytest.fixture
def examples(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a server over stdio: `examples(*options, env=…, revision=…)`."""
    with contextlib.ExitStack() as stack:

        def begin(*options: str, env: Mapping[str, str] | None = None, **how: Any) -> Server:
            return stack.enter_context(served(tmp_path, *EXAMPLES, *options, env={**ALONE, **(env or {})}, **how))

        yield begin


@pytest.fixture(params=TRANSPORTS)
def everywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a client on each transport in turn."""
    with contextlib.ExitStack() as stack:

        def begin(*options: str, env: Mapping[str, str] | None = None, **how: Any) -> Server:
            env = {**ALONE, **(env or {})}
            if request.param == "stdio":
                return stack.enter_context(served(tmp_path, *EXAMPLES, *options, env=env, **how))
            listening = stack.enter_context(site(tmp_path, *EXAMPLES, *options, env=env))
            return stack.enter_context(spoken(listening, request.param, owned=True, **how))

        yield begin
