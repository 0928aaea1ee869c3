"""Run Claude Code on a terminal, and see which turns it begins by itself: `run_waking` is the way in.

It starts this file as a program in namespaces with only a loopback interface, as tests.agents.run does."""

import argparse
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.agents.clients import AGENTS, Place, surroundings
from tests.agents.dialects import texts
from tests.agents.drive import REMINDER, Scene
from tests.agents.model import Model, Step, serve_model
from tests.agents.run import OUTCOME, bring_up_loopback, run_apart
from tests.agents.server import HttpServer
from tests.agents.terminal import Terminal
from tests.clients.raw_client import eventually

SIZE = (50, 160)
PROMPT = "Begin."
READY = "❯"
NOTE = re.compile(r"<task-notification>.*?</task-notification>", re.DOTALL)
DELAY = 3  # seconds until the callback fires: its turn is over by then
COMMAND = "until [ -e go ]; do sleep 0.1; done; echo lit-$((40 + 2)); exit 3"


@dataclass
class Waking:
    """What the model was sent: of its calls, by step, and by the turns that it did not ask for, in order."""

    shown: Mapping[str, str]
    turns: list[str]


def run_waking(folder: Path) -> Waking | str:
    """Return what happened, or the log of a run that failed."""
    said = run_apart(__name__, folder)
    return said if isinstance(said, str) else Waking(**said)


SCRIPT = {
    "background": Step("BackgroundBash", {"command": COMMAND}),
    "tasks": Step("ListBgTasks"),
    "callback": Step("SetCallback", {"action": "set", "message": REMINDER, "delay_seconds": DELAY, "repeat_count": 1}),
}


class WatchedModel(Model):
    """The scripted model. `notes`: each notification that begins or joins a turn after the script's end."""

    def __init__(self, log: Path) -> None:
        super().__init__(SCRIPT, log)
        self.notes: list[str] = []

    def answer(self, path: str, body: Any) -> Any:
        was_done = self.record.done
        events = super().answer(path, body)
        if was_done:  # the model had nothing more to say, and nobody has typed
            shown = "\n".join(texts(message["content"]) for message in body.get("messages", ()))
            self.notes += [note for note in NOTE.findall(shown) if note not in self.notes]
        return events


def _accept_everything(place: Place) -> None:
    """Answer what Claude Code asks at its first start."""
    file = place.home / ".claude.json"
    config = json.loads(file.read_text())
    config |= {"hasCompletedOnboarding": True, "theme": "dark"}
    config["customApiKeyResponses"] = {"approved": ["dummy"], "rejected": []}
    project = config.setdefault("projects", {}).setdefault(str(place.work), {})
    project |= {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    file.write_text(json.dumps(config))


def _begin(terminal: Terminal, has_begun: Callable[[], bool]) -> None:
    """Type the prompt, and wait until the agent has passed it on with the server's tools."""
    assert eventually(lambda: READY in terminal.said)
    seen = len(terminal.said)
    terminal.type(PROMPT)
    assert eventually(partial(_has_shown, terminal, seen))
    terminal.type("\r")
    assert eventually(has_begun), terminal.said[-2000:]


def _has_shown(terminal: Terminal, seen: int) -> bool:
    return PROMPT in terminal.said[seen:]


def _follow(folder: Path) -> Waking:
    scene = Scene(folder, "http://127.0.0.1:9")
    scene.prepare()
    server = HttpServer(scene, [*scene.options, "--sandbox", "none", "--auth", "none"])
    model = WatchedModel(folder / "model.jsonl")
    agent = AGENTS["claude-code"]
    try:
        with serve_model(model) as url:
            place = Place(scene.folder / "home", scene.work, url, ["--public-url", server.url])
            environment = agent.configure(place)
            _accept_everything(place)
            words = [*agent.program(), "--allowedTools", "mcp__toolgate"]
            terminal = Terminal(words, place.work, surroundings(place, environment), SIZE)
            try:
                _begin(terminal, lambda: bool(model.record.first))
                assert eventually(lambda: model.record.done), terminal.said[-2000:]
                assert eventually(lambda: any(REMINDER in note for note in model.notes)), terminal.said[-2000:]
                (scene.work / "go").touch()
                assert eventually(lambda: any("lit-42" in note for note in model.notes)), terminal.said[-2000:]
            finally:
                terminal.end()
    finally:
        server.stop()
    return Waking({name: shown.text for name, shown in model.record.shown.items()}, model.notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    bring_up_loopback()
    (folder / OUTCOME).write_text(json.dumps(asdict(_follow(folder))))


if __name__ == "__main__":
    main()
