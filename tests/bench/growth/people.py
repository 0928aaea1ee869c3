"""Rows about people: a server behind sign-in, whose commands run in sandboxes."""

import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.bench.driver import PATIENCE, Cores
from tests.bench.growth.measure import Row, Trial
from tests.bench.people import Person, SandboxServer, town

PAUSE = 1.0  # seconds of rest that are measured
AT_REST = ("--limit", "idle=1")


@contextmanager
def open_server(folder: Path, *options: str) -> Generator[SandboxServer]:
    cores = Cores()
    cores.pinned = False
    with town(folder, cores, *options) as place:
        yield place


def run_first_command(person: Person) -> None:
    _, result = person.call("Bash", command="echo in")
    if result["content"][0]["text"] != "in\n":
        raise RuntimeError(f"a wrong answer: {result}")


def wait_at_rest(place: SandboxServer) -> None:
    """Wait until the server has no folder of a person open."""
    descriptors = Path(f"/proc/{place.site.process.pid}/fd")
    until = time.monotonic() + PATIENCE
    while any("/spool/" in str(each.readlink()) for each in descriptors.iterdir() if each.is_symlink()):
        if time.monotonic() > until:
            raise RuntimeError("the folders of people at rest stay open")
        threading.Event().wait(0.1)


@contextmanager
def beside_people_at_rest(folder: Path, size: int) -> Generator[Trial]:
    """Yield a trial of a second in which nothing happens, after `size` people were here."""
    with open_server(folder, *AT_REST) as place:
        for number in range(size):
            person = place.person(f"person-{number}")
            run_first_command(person)
            person.close()
        wait_at_rest(place)
        yield Trial(lambda: threading.Event().wait(PAUSE), place.site.cpu)


@contextmanager
def with_new_people(folder: Path, size: int) -> Generator[Trial]:
    """Yield a trial in which the first commands of `size` new people come at once. Its clock counts per person."""
    with open_server(folder) as place, ThreadPoolExecutor(size) as callers:
        run_first_command(place.person("first"))
        known = 0

        def act() -> None:
            nonlocal known
            people = [place.person(f"person-{number}") for number in range(known, known + size)]
            known += size
            list(callers.map(run_first_command, people))

        yield Trial(act, lambda: place.site.cpu() / size)


ROWS = (
    Row("a second of a server, after n people were here", 8, beside_people_at_rest, actions=5),
    Row("a new person's first command, n at once", 8, with_new_people, actions=1),
)
