"""Run one agent against one server, in a network of its own, and return what its model was sent.

`run_agent` is the way in. It starts this file as a program in namespaces with only a loopback interface, and its
processes end with it."""

import argparse
import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.agents.clients import AGENTS, LONGEST, Agent, Place, run_logged
from tests.agents.dialects import Shown
from tests.agents.drive import Scene, serve_pages, write_script
from tests.agents.facts import Outcome
from tests.agents.model import Model, serve_model
from tests.agents.server import HttpServer, ListeningServer, running_node, running_replicas
from tests.agents.signin import sign_in
from tests.clients.raw_client import PATIENCE
from tests.servers.forked_command import COMMAND, ROOT

CARRIERS: dict[str, tuple[str, ...]] = {  # the options that are the carrier's own
    "stdio": (),
    "http": ("--auth", "none"),
    "signin": ("--auth", "oauth", "--registration", "dynamic"),
    "node": ("--auth", "none"),
    "replicas": ("--auth", "none"),
}
DEADLINE = LONGEST + 60.0  # seconds for a run: most take 5 to 20 on an idle machine
OUTCOME = "outcome.json"
TAIL = 3000  # characters of the agent's output, shown when a test fails
NAMESPACES = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
UP = 0x1  # IFF_UP


def run_agent(agent: str, carrier: str, folder: Path) -> Outcome:
    """Run an agent in its own namespaces. A failure of the run is in the outcome's output."""
    said = run_apart(__name__, folder, agent, carrier)
    if isinstance(said, str):
        return Outcome(output=said)
    said["shown"] = {name: Shown(**value) for name, value in said["shown"].items()}
    return Outcome(**said)


def run_apart(module: str, folder: Path, *words: str) -> Any:
    """Run a module of this folder in its own namespaces, and return the outcome that it leaves there, or its log."""
    folder.mkdir(parents=True)
    command = [*_apart(), sys.executable, "-m", module, *words, str(folder)]
    with (folder / "run.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        try:
            process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            log.write(f"not over after {DEADLINE} s".encode())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # ends the namespaces with all their processes
            process.wait()
    result = folder / OUTCOME
    if not result.exists():
        return (folder / "run.log").read_text(errors="replace")[-TAIL:]
    return json.loads(result.read_text())


def _apart() -> list[str]:
    """Return the command that starts a program in namespaces. An ordinary user needs a user namespace for that."""
    more = [] if os.geteuid() == 0 else ["--map-root-user"]
    return [*NAMESPACES, *more, "--"]


def bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", UP)
        fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS


def _ask_instructions(scene: Scene) -> str:
    """Return the instructions of a server with these options."""
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    words = [COMMAND, *scene.options]
    answer = subprocess.run(words, input=json.dumps(hello).encode() + b"\n", stdout=subprocess.PIPE, timeout=PATIENCE)
    return str(json.loads(answer.stdout)["result"].get("instructions", ""))


@contextlib.contextmanager
def _served(scene: Scene, carrier: str) -> Iterator[ListeningServer | None]:
    if carrier == "stdio":
        yield None
        return
    with contextlib.ExitStack() as running:
        if carrier in ("node", "replicas"):
            place = [*scene.gateway_options, "--node", running.enter_context(running_node(scene))]
        else:
            place = [*scene.options, "--sandbox", "none"]
        if carrier == "replicas":
            yield running.enter_context(running_replicas(scene, [*place, *CARRIERS[carrier]]))
            return
        server = HttpServer(scene, [*place, *CARRIERS[carrier]])
        running.callback(server.stop)
        yield server


def _follow(agent: Agent, carrier: str, folder: Path) -> Outcome:
    """Let the agent follow the script, and collect what its model was sent."""
    with serve_pages() as pages:
        scene = Scene(folder, pages)
        scene.prepare()
        instructions = _ask_instructions(scene)
        with _served(scene, carrier) as server:
            script = write_script(scene, carrier, server and server.restart)
            model = Model(script, folder / "model.jsonl")
            with serve_model(model) as url:
                which = ["--public-url", server.url] if server else scene.options
                place = Place(scene.folder / "home", scene.work, url, which)
                environment = agent.configure(place)
                if carrier == "signin" and server:
                    sign_in(agent, place, environment, server)
                code = run_logged(agent, agent.arguments, place, environment, folder / "agent.log")
    record = model.record
    return Outcome(
        code=code,
        done=record.done,
        shown=record.shown,
        seconds=record.seconds,
        offered=record.offered,
        first=record.first,
        instructions=instructions,
        output=(folder / "agent.log").read_text(errors="replace")[-TAIL:],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agent", choices=list(AGENTS))
    parser.add_argument("carrier", choices=list(CARRIERS))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    bring_up_loopback()
    outcome = _follow(AGENTS[given.agent], given.carrier, given.folder)
    (given.folder / OUTCOME).write_text(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
