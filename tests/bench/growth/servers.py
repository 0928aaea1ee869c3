"""Rows about a server in this process: requests beside what it serves."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.growth.measure import Row, Trial
from tests.servers.http_in_process import Inside, inside
from toolgate.server.protocol.request_meta import PREFIX
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.resource import resource

REVISION = "2026-07-28"
META = {f"{PREFIX}protocolVersion": REVISION, f"{PREFIX}clientCapabilities": {}}


@contextmanager
def open_server(folder: Path) -> Generator[tuple[asyncio.Runner, Inside]]:
    """Yield an event loop and a server in it."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        opened: asyncio.Future[Inside] = loop.create_future()
        ended = asyncio.Event()

        async def hold() -> None:
            async with inside(folder) as served:
                opened.set_result(served)
                await ended.wait()

        holder = loop.create_task(hold())
        yield runner, loop.run_until_complete(opened)
        ended.set()
        loop.run_until_complete(holder)


async def ask(served: Inside, method: str, **params: Any) -> Any:
    """Return the result of a request."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    answer = await served.ask("POST", message, mcp_protocol_version=REVISION, mcp_method=method).json()
    return answer["result"]


async def serve(served: Inside, registry: Registry) -> None:
    served.app.host.server().swap_registry(registry)


@contextmanager
def beside_templates(folder: Path, size: int) -> Generator[Trial]:
    """Yield a trial that lists a page of `size` resources beside twice as many templates."""

    def read() -> str:
        """A text."""
        return "text"

    def read_named(name: str) -> str:
        """A text of that name."""
        return name

    with open_server(folder) as (runner, served):
        fixed = [resource(f"fixed://{number}")(read) for number in range(size)]
        templates = [resource(f"t{number}://{{name}}")(read_named) for number in range(2 * size)]
        runner.run(serve(served, Registry([*fixed, *templates])))
        yield Trial(lambda: runner.run(ask(served, "resources/list")))


ROWS = (Row("a page of n resources, beside 2 n templates", 256, beside_templates),)
