"""Sign an agent in without a screen: run its login command, and follow its URL as a person."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tests.agents.clients import Agent, Place, surroundings
from tests.agents.server import HttpServer
from tests.agents.terminal import Terminal
from tests.clients.raw_client import eventually
from tests.interop.sign_in_server import visit
from tests.server.auth.http_browser import Person

BROWSERS = ("xdg-open", "open", "www-browser", "x-www-browser", "sensible-browser")
SIZE = (50, 2000)  # no line is broken: URLs are read from it
QUESTION = re.compile(r"http://[^\s\x1b\x07\"]+code_challenge=[^\s\x1b\x07\"]+(?=\s)")


class Login:
    """The agent's login command on its own terminal, with a fake browser."""

    def __init__(self, agent: Agent, place: Place, environment: Mapping[str, str]) -> None:
        self._agent = agent
        self._home = place.home
        self._asked = place.home / "browser.txt"
        self._asked.touch()
        path = f"{_fake_browsers(place.home / 'browsers', self._asked)}:{os.environ['PATH']}"
        own = {**surroundings(place, environment), "PATH": path, "DISPLAY": ":0"}
        self._terminal = Terminal([*agent.program(), *agent.login], place.work, own, SIZE)

    @property
    def said(self) -> str:
        return self._terminal.said

    def question(self) -> str | None:
        """Return the URL for the person, which the agent opened or printed."""
        found = QUESTION.search(self._asked.read_text()) or QUESTION.search(self.said)
        return found and found[0]

    def is_asking(self) -> bool:
        return not self._agent.asks or self._agent.asks in self.said or self.is_over()

    def say_yes(self) -> None:
        self._terminal.type("\r")

    def is_over(self) -> bool:
        kept = self._agent.tokens and any(path.stat().st_size for path in self._home.glob(self._agent.tokens))
        return bool(kept) or self._terminal.is_over()

    def end(self) -> int | None:
        """End the command, and return its exit code if it had ended by itself."""
        code = self._terminal.end()
        (self._home / "login.log").write_text(self.said)
        return code


def sign_in(agent: Agent, place: Place, environment: Mapping[str, str], server: HttpServer) -> None:
    """Run the agent's login to its end. Fails if the agent fails or asks for no sign-in."""
    login = Login(agent, place, environment)
    try:
        assert eventually(login.is_asking), login.said
        if agent.asks:
            login.say_yes()
        assert eventually(lambda: login.question() is not None or login.is_over()), login.said
        question = login.question()
        assert question, login.said
        assert visit(Person(server).decide(question)) < 400
        assert eventually(login.is_over), login.said
    finally:
        code = login.end()
    assert code == (None if agent.tokens else 0), (place.home / "login.log").read_text()


def _fake_browsers(folder: Path, asked: Path) -> Path:
    """Make commands that stand in for a browser and record the URLs they open."""
    folder.mkdir()
    for name in BROWSERS:
        (folder / name).write_text(f'#!/bin/sh\necho "$@" >>{asked}\n')
        (folder / name).chmod(0o755)
    return folder
