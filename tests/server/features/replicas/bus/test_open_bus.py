"""The bus that a server opens: in memory by default, which costs nothing."""

import subprocess
import sys

from tests.clients.raw_client import ROOT
from toolgate.tools.api.installation import name_extra

MEMORY = """
import asyncio, sys, threading
from toolgate.server.features.replicas.open_bus import open_bus

async def use():
    bus = await open_bus()
    await bus.keys.set("a", b"1", 60)
    bus.streams.append("session", "s", 1, b"x")
    bus.topics.subscribe("list", print, print)
    assert len(asyncio.all_tasks()) == 1 and threading.active_count() == 1
    await bus.close()

asyncio.run(use())
own = {name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - BEFORE
print(*sorted(own - {"toolgate", "msgspec", "typing_extensions"}))  # the last is msgspec's
apart = ("toolgate.server.base", "toolgate.server.features")
print(*sorted(name for name in sys.modules if name.startswith("toolgate.server.") and not name.startswith(apart)))
"""


def run_program(text: str) -> list[str]:
    begin = 'import sys; BEFORE = {name.split(".")[0] for name in sys.modules}\n'
    done = subprocess.run((sys.executable, "-c", begin + text), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_bus_in_memory_has_no_task_no_thread_and_no_import_but_msgspec() -> None:
    assert run_program(MEMORY) == ["", ""]


def test_without_the_package_the_error_names_the_extra() -> None:
    text = """
import asyncio
sys.modules["redis"] = None
from toolgate.server.features.replicas.open_bus import open_bus
try:
    asyncio.run(open_bus("redis://127.0.0.1"))
except ModuleNotFoundError as error:
    print(error)
"""
    assert run_program(text) == [f"it needs a package: {name_extra('replicas')}"]
