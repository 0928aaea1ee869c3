"""The servers of the session, and the calls by which a model does each step with each server's tools.

The calls are those that the servers' own descriptions ask for: files by file tools where a server has them.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters

from tests.bench.session.project import RIGHT, RUN_TESTS, WRONG
from tests.interop.node import node

PEERS = Path(__file__).parent.parent / "peers"
ROOT = PEERS.parent.parent.parent
INSTALL = "install it with: make peers"
Call = tuple[str, dict[str, Any]]
OURS, COMMANDER, CODING = "Toolgate", "DesktopCommander", "coding-tools-mcp"


@dataclass(frozen=True)
class Side:
    """A server and its way through the session. `steps`: step → its calls, or a sentence where it has no tool. `poll`
    makes the call that reads a background command, from the result that started it."""

    version: str
    server: StdioServerParameters
    steps: Mapping[str, Sequence[Call] | str]
    poll: Callable[[str], Call]


def prepared(folder: Path, page: str) -> dict[str, Side]:
    """Return each server by its name; its project is `folder/NAME`. Raises RuntimeError if one is missing."""
    return {name: make(folder / name, page) for name, make in SIDES.items()}


def toolgate(project: Path, page: str) -> Side:
    question = {"question": "Round prices?", "header": "Rounding", "options": ["to cents", "not at all"]}
    steps: dict[str, Sequence[Call] | str] = {
        "look at the project": [("Bash", {"command": "ls && cat tickets.py"})],
        "run the tests": [("Bash", {"command": RUN_TESTS})],
        "edit a file": [("Bash", {"command": f"sed -i 's/^{WRONG.replace('*', '[*]')}$/{RIGHT}/' tickets.py"})],
        "run the tests again": [("Bash", {"command": RUN_TESTS})],
        "build in the background": [("BackgroundBash", {"command": "sh build.sh"})],
        "read a page": [("ReadDocs", {"url": page})],
        "plan": [
            ("PlanMode", {"action": "enter", "goal": "Round prices"}),
            ("TaskManager", {"action": "create", "query": "Round in total()"}),
            ("PlanMode", {"action": "exit"}),
        ],
        "ask the person": [("AskUserQuestion", {"questions_json": json.dumps({"questions": [question]})})],
        "be reminded": [
            ("SetCallback", {"action": "set", "message": "Look at the build", "delay_seconds": 1, "repeat_count": 1}),
            ("Bash", {"command": "sleep 1.5"}),
        ],
    }
    command = [str(Path(sys.executable).with_name("toolgate")), "--state", f"{project}-state"]
    command += ["--allow-private", "127.0.0.1", "--browser", "none"]
    return Side("", _server(command, project), steps, lambda told: ("ReadBgOutput", {"task_id": _number(told)}))


def desktop_commander(project: Path, page: str) -> Side:
    main = PEERS / "node_modules" / "@wonderwhy-er" / "desktop-commander"
    if not main.exists():
        raise RuntimeError(f"DesktopCommander is missing; {INSTALL}")
    settings = _home(project) / ".claude-server-commander" / "config.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"telemetryEnabled": False, "allowedDirectories": [str(project)]}))
    tests = {"command": f"cd {project} && {RUN_TESTS}", "timeout_ms": 10_000}
    file = str(project / "tickets.py")
    steps: dict[str, Sequence[Call] | str] = {
        "look at the project": [("list_directory", {"path": str(project)}), ("read_file", {"path": file})],
        "run the tests": [("start_process", tests)],
        "edit a file": [("edit_block", {"file_path": file, "old_string": WRONG, "new_string": RIGHT})],
        "run the tests again": [("start_process", tests)],
        "build in the background": [("start_process", {"command": f"cd {project} && sh build.sh", "timeout_ms": 500})],
        "read a page": [("read_file", {"path": page, "isUrl": True})],
        "plan": "no tool: the model plans in its own text, and nothing holds it to that",
        "ask the person": "no tool: the model ends its turn with the question",
        "be reminded": "no tool: the model waits in a command",
    }
    version = json.loads((main / "package.json").read_text())["version"]

    def poll(told: str) -> Call:
        return "read_process_output", {"pid": _number(told), "timeout_ms": 5_000}

    return Side(version, _server([node(), str(main / "dist" / "index.js")], project), steps, poll)


def coding_tools(project: Path, page: str) -> Side:
    command = ROOT / ".venv" / "peers" / "coding-tools" / "bin" / "coding-tools-mcp"
    if not command.exists():
        raise RuntimeError(f"coding-tools-mcp is missing; {INSTALL}")
    patch = f"*** Begin Patch\n*** Update File: tickets.py\n@@\n-{WRONG}\n+{RIGHT}\n*** End Patch"
    steps: dict[str, Sequence[Call] | str] = {
        "look at the project": [("list_dir", {}), ("read_file", {"path": "tickets.py"})],
        "run the tests": [("exec_command", {"cmd": RUN_TESTS})],
        "edit a file": [("apply_patch", {"patch": patch})],
        "run the tests again": [("exec_command", {"cmd": RUN_TESTS})],
        "build in the background": [("exec_command", {"cmd": "sh build.sh", "yield_time_ms": 500})],
        "read a page": [("exec_command", {"cmd": f"curl -s {page}"})],
        "plan": "no tool: the model plans in its own text, and nothing holds it to that",
        "ask the person": "no tool: the model ends its turn with the question",
        "be reminded": "no tool: the model waits in a command",
    }
    server = _server([str(command), "--stdio", "--permission-mode", "trusted", "--workspace", str(project)], project)
    pinned = re.search(r"^coding-tools-mcp==(\S+)", (PEERS / "coding-tools.lock").read_text(), re.MULTILINE)
    assert pinned is not None

    def poll(told: str) -> Call:
        found = re.search(r"command_id\W+([\w-]+)", told)
        assert found is not None, told
        return "write_stdin", {"command_id": found[1], "chars": "", "yield_time_ms": 5_000}

    return Side(pinned[1], server, steps, poll)


def _number(told: str) -> int:
    found = re.search(r"\d+", told)
    assert found is not None, told
    return int(found[0])


def _home(project: Path) -> Path:
    return project.with_name(f"{project.name}-home")


def _server(command: Sequence[str], project: Path) -> StdioServerParameters:
    home = _home(project)
    home.mkdir(parents=True, exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    return StdioServerParameters(command=command[0], args=list(command[1:]), env=environment, cwd=project)


SIDES: dict[str, Callable[[Path, str], Side]] = {OURS: toolgate, COMMANDER: desktop_commander, CODING: coding_tools}
