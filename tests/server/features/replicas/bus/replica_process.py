"""A replica in a process of its own, which says on standard output what happens to it, and does what its mail asks."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.clients.raw_client import ROOT
from toolgate.server.base.bus.settings import BusSettings
from toolgate.server.features.replicas.open_bus import open_bus


async def serve(url: str, prefix: str) -> None:
    bus = await open_bus(url, BusSettings(prefix=prefix), lambda: say(event="lost"))
    subscription = bus.topics.subscribe("news", lambda data: say(event="news", data=data.decode()), lambda: None)
    await subscription.confirm()

    async def echo(data: bytes) -> bytes:
        return data + b" from " + str(os.getpid()).encode()

    async def hang(_: bytes) -> bytes:
        say(event="hanging")
        return await asyncio.get_running_loop().create_future()

    async def append(data: bytes) -> bytes:
        bus.streams.append("session", bus.replica.name, 1, data)
        bus.topics.publish("news", b"appended")
        await bus.streams.flush()
        return b""

    for kind, handler in (("echo", echo), ("hang", hang), ("append", append)):
        bus.mail.receive(kind, handler)
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    say(event="ready", name=bus.replica.name)
    await ending.wait()
    await bus.close()


def say(**event: str) -> None:
    print(json.dumps(event), flush=True)


class ReplicaProcess:
    """The process, seen from a test. `name` is its replica's."""

    def __init__(self, url: str, prefix: str) -> None:
        command = (sys.executable, "-m", "tests.server.features.replicas.bus.replica_process", url, prefix)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        self.name: str = self.read("ready")["name"]

    def read(self, event: str) -> Any:
        """Return the next event, which must be of this kind."""
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        assert said["event"] == event, said
        return said

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


@contextmanager
def replica_process(url: str, prefix: str) -> Iterator[ReplicaProcess]:
    replica = ReplicaProcess(url, prefix)
    try:
        yield replica
    finally:
        replica.process.kill()
        replica.process.wait(10)
        assert replica.process.stdout is not None
        replica.process.stdout.close()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
