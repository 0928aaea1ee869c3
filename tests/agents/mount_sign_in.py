"""Run an agent whose person is not connected to a mounted server, and see where the link to sign in there arrives:
`run_mount_sign_in` is the way in.

It starts this file as a program in namespaces with only a loopback interface, as tests.agents.run does."""

import argparse
import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.agents.clients import AGENTS, Agent, Place, run_logged
from tests.agents.drive import Scene
from tests.agents.model import Model, Step, serve_model
from tests.agents.run import CARRIERS, OUTCOME, TAIL, bring_up_loopback, run_apart
from tests.agents.server import HttpServer
from tests.agents.signin import sign_in
from tests.clients.raw_client import eventually
from tests.server.auth.sign_in_server import Browser
from tests.server.features.mounts.mounted import url_mount
from tests.server.features.mounts.sign_in.app import disconnect
from tests.server.features.mounts.sign_in.foreign_servers import KINDS, ForeignScene

TOOL = "far__whoami"
BLOCKING = {"MCP_CONNECTION_NONBLOCKING": "false", "MCP_CONNECT_TIMEOUT_MS": "60000"}  # Claude Code waits for the tools
ACCEPTED = {"hookSpecificOutput": {"hookEventName": "Elicitation", "action": "accept"}}


@dataclass
class Linked:
    """What the model was sent of its calls, by step, and what the agent has asked its person. `link`: the right one."""

    code: int
    shown: Mapping[str, str]
    asked: str
    link: str
    output: str


class AgentUser:
    """The person of the agent, at a browser."""

    def __init__(self, server: HttpServer) -> None:
        self.url, self._port = server.url, server.port

    def browser(self) -> Browser:
        browser = Browser(self._port, {"accept": "text/html"})
        assert browser.sign_in(name="ada").location == "/"
        return browser


def run_mount_sign_in(agent: str, folder: Path) -> Linked | str:
    """Return what happened, or the log of a run that failed."""
    said = run_apart(__name__, folder, agent)
    return said if isinstance(said, str) else Linked(**said)


def _record_questions(place: Place) -> Path:
    """Have Claude Code write what it asks its person to a file, and take a yes for it."""
    asked, settings = place.home / "asked.json", place.home / ".claude" / "settings.json"
    command = f"cat >{asked}.part && mv {asked}.part {asked} && echo '{json.dumps(ACCEPTED)}'"
    hook = {"hooks": [{"type": "command", "command": command}]}
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(json.dumps({"hooks": {"Elicitation": [hook]}}))
    return asked


def _follow(agent: Agent, folder: Path) -> Linked:
    scene = Scene(folder, "http://127.0.0.1:9")
    scene.prepare()
    with KINDS["Authlib"](folder / "far.log") as far:
        config = folder / "mounts.toml"
        config.write_text(url_mount(far.url, "far", 'auth = "oauth"', 'scope = "tools:shell"'))
        server = HttpServer(scene, [*scene.options, "--sandbox", "none", *CARRIERS["signin"]])
        try:
            return _follow_at(agent, scene, server, far)
        finally:
            server.stop()


def _follow_at(agent: Agent, scene: Scene, server: HttpServer, far: object) -> Linked:
    user = AgentUser(server)
    there = ForeignScene(far, user)
    script = {
        "wait": Step("Bash", {"command": "sleep 3"}),  # until the lists of the mounted server have come
        "connected": Step(TOOL),
        "unconnected": Step(TOOL, before=lambda: disconnect(user)),
        "again": Step(TOOL, before=lambda: there.connect(user)),
    }
    model = Model(script, scene.folder / "model.jsonl")
    with serve_model(model) as url:
        place = Place(scene.folder / "home", scene.work, url, ["--public-url", server.url])
        environment = {**agent.configure(place), **BLOCKING}
        sign_in(agent, place, environment, server)
        there.connect(user)
        asked = _record_questions(place)
        opener = threading.Thread(target=lambda: eventually(asked.exists) and there.connect(user), daemon=True)
        opener.start()
        code = run_logged(agent, agent.arguments, place, environment, scene.folder / "agent.log")
    output = (scene.folder / "agent.log").read_text(errors="replace")[-TAIL:]
    shown = {name: each.text for name, each in model.record.shown.items()}
    return Linked(code, shown, asked.read_text() if asked.exists() else "", there.link, output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agent", choices=list(AGENTS))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    bring_up_loopback()
    (given.folder / OUTCOME).write_text(json.dumps(asdict(_follow(AGENTS[given.agent], given.folder))))


if __name__ == "__main__":
    main()
