"""Sign an agent in without a screen: its own command, and a person who goes where it sends a browser."""

import os
import pty
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.agents.clients import Agent, Place, surroundings
from tests.agents.server import HttpServer
from tests.auth.walk import Person
from tests.interop.gated import visit
from tests.wire import PATIENCE, eventually

BROWSERS = ("xdg-open", "open", "www-browser", "x-www-browser", "sensible-browser")
QUESTION = re.compile(r"http://[^\s\x1b\x07\"]+code_challenge=[^\s\x1b\x07\"]+(?=\s)")


def sign_in(agent: Agent, place: Place, environment: Mapping[str, str], server: HttpServer) -> None:
    """Run the agent's login to its end. Fails where the agent does, or asks nobody."""
    asked = place.home / "browser.txt"
    asked.touch()
    path = f"{_fake_browsers(place.home / 'browsers', asked)}:{os.environ['PATH']}"
    ours, its = pty.openpty()  # Claude Code wants a terminal
    words = [*agent.program(), *agent.login]
    process = subprocess.Popen(
        words,
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=place.work,
        env={**surroundings(place, environment), "PATH": path, "DISPLAY": ":0"},
        start_new_session=True,
    )
    os.close(its)
    os.set_blocking(ours, False)
    said = bytearray()

    def listen() -> str | None:
        """Return the question that the agent printed, or opened a browser with."""
        said.extend(_read(ours))
        found = QUESTION.search(asked.read_text()) or QUESTION.search(said.decode(errors="replace"))
        return found and found[0]

    def is_over() -> bool:
        listen()
        return process.poll() is not None

    try:
        assert eventually(lambda: listen() is not None or is_over()), said.decode(errors="replace")
        question = listen()
        assert question, said.decode(errors="replace")
        assert visit(Person(server).decide(question)) < 400
        assert eventually(is_over), said.decode(errors="replace")
        assert process.returncode == 0, said.decode(errors="replace")
    finally:
        (place.home / "login.log").write_bytes(said)
        process.kill()
        process.wait(PATIENCE)
        os.close(ours)


def _fake_browsers(folder: Path, asked: Path) -> Path:
    """Make commands that open a browser, which write down where they are sent."""
    folder.mkdir()
    for name in BROWSERS:
        (folder / name).write_text(f'#!/bin/sh\necho "$@" >>{asked}\n')
        (folder / name).chmod(0o755)
    return folder


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # nothing there now, or the other side is closed
        return b""
