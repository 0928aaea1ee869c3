"""Methods that features add to those of the core."""

import asyncio
from pathlib import Path

import pytest

from tests.servers.http_in_process import inside
from toolgate.server.methods import build_dispatcher, lifecycle
from toolgate.server.methods.scopes import fixed_scopes
from toolgate.server.protocol.dispatcher import Method


def test_a_second_method_of_one_name_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        async with inside(tmp_path) as here:
            added = {"ping": Method(lifecycle.ping, fixed_scopes())}
            with pytest.raises(ValueError, match="there are two methods ping"):
                build_dispatcher(here.app.host.server(), [added])

    asyncio.run(body())
