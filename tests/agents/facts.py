"""Name the facts that a model must be sent in a run, and which of them an agent withholds by itself."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.agents import drive
from tests.agents.dialects import Shown
from tests.interop.official_clients import THIRTEEN

HTTP = ("http", "signin", "node", "replicas")
TOOLS = ("stdio", "http", "node", "replicas")
ALL = ("stdio", *HTTP)
SOON = 15.0  # seconds


@dataclass
class Outcome:
    """The outcome of a run."""

    code: int = -1  # the agent's exit code
    done: bool = False  # whether the script was followed to its end
    shown: dict[str, Shown] = field(default_factory=dict)  # by the name of the step
    offered: dict[str, list[str]] = field(default_factory=dict)  # tool names offered when the step was due
    seconds: dict[str, float] = field(default_factory=dict)  # that the agent took for the step
    first: str = ""  # the first request that offered Toolgate's tools, as JSON
    instructions: str = ""  # the server's
    output: str = ""  # the end of what the agent printed

    def text(self, step: str) -> str:
        return self.shown[step].text if step in self.shown else ""

    def images(self, step: str) -> int:
        return self.shown[step].images if step in self.shown else 0

    def says(self, step: str, *patterns: str) -> bool:
        """Return whether the answer of the step matches all patterns."""
        return all(re.search(pattern, self.text(step)) for pattern in patterns)

    def mentions(self, pattern: str, *, but: tuple[str, ...] = ()) -> bool:
        """Return whether any answer matches, other than those of the steps `but`."""
        return any(self.says(step, pattern) for step in self.shown if step not in but)


@dataclass(frozen=True, slots=True)
class Fact:
    title: str  # a row of the table
    carriers: tuple[str, ...]
    holds: Callable[[Outcome], bool]


FACTS: Mapping[str, Fact] = {
    "tools": Fact("all thirteen tools are offered", ALL, lambda run: {*THIRTEEN} <= {*run.offered.get("shell", [])}),
    "instructions": Fact(
        "what the server is for (`instructions`)",
        TOOLS,
        lambda run: run.instructions != "" and json.dumps(run.instructions)[1:-1] in run.first,
    ),
    "Bash": Fact("Bash: output and exit code, as text", ALL, lambda run: run.says("shell", "said-42", "exit code: 3")),
    "cd": Fact("Bash: `cd` sticks", TOOLS, lambda run: run.says("folder", "/work/deep")),
    "ReadDocs": Fact("ReadDocs: the page", TOOLS, lambda run: run.mentions(drive.ON_THE_PAGE)),
    "InvokeSkill": Fact("InvokeSkill: the instructions", TOOLS, lambda run: run.says("skill", drive.IN_THE_SKILL)),
    "ReadImage": Fact("ReadImage: the picture", TOOLS, lambda run: run.images("picture") == 1),
    "AskUserQuestion": Fact(
        "AskUserQuestion: the questions as text, if no person can answer",
        TOOLS,
        lambda run: run.says("question", re.escape(drive.QUESTION), "frosted"),
    ),
    "WebSearch": Fact("WebSearch: the results", TOOLS, lambda run: run.says("search", drive.FOUND, "lanterns.example")),
    "TaskManager": Fact("TaskManager: the task", TOOLS, lambda run: run.says("todo", drive.TODO)),
    "PlanMode": Fact(
        "PlanMode: the goal, and the end",
        TOOLS,
        lambda run: run.says("plan", drive.GOAL) and run.says("end of plan", 'is off|"active": ?false'),
    ),
    "BackgroundBash": Fact(
        "BackgroundBash: the task id", TOOLS, lambda run: run.says("background", drive.TASK.pattern)
    ),
    "ReadBgOutput": Fact("ReadBgOutput: the output", TOOLS, lambda run: run.says("output", "from-behind")),
    "ListBgTasks": Fact("ListBgTasks: the commands", TOOLS, lambda run: run.says("tasks", "from-behind", "sleep 61")),
    "KillBgTask": Fact("KillBgTask: how it ended", TOOLS, lambda run: run.says("kill", "killed")),
    "SetCallback": Fact("SetCallback: the confirmation", TOOLS, lambda run: run.says("callback", "scheduled|fires_in")),
    "fired": Fact("a callback that fired", TOOLS, lambda run: run.mentions(f"fired: {drive.REMINDER}")),
    "ended": Fact(
        "a background task that ended",
        TOOLS,
        lambda run: run.mentions("echo from-behind.* exited with code 0", but=("output", "tasks")),
    ),
    "handover": Fact(
        "Bash: the task id of a long command that continues in the background",
        TOOLS,
        lambda run: run.says("long", r"background task \d+", "ReadBgOutput"),
    ),
    "plugin": Fact("a plugin's structured result", TOOLS, lambda run: run.says("plugin", "42", "of brass")),
    "new plugin": Fact(
        "the tool of a plugin added during the session", TOOLS, lambda run: drive.LATER in run.offered.get("kill", [])
    ),
    "text number": Fact("Bash: a number sent as text", TOOLS, lambda run: run.says("text number", "texts-77")),
    "text id": Fact("KillBgTask: an id sent as text", TOOLS, lambda run: run.says("text id", "killed")),
    "text of a plugin": Fact(
        "a plugin: a number sent as text", TOOLS, lambda run: run.says("text of a plugin", "49", "of brass")
    ),
    "description": Fact(
        "Bash: a `description`, which is ignored", TOOLS, lambda run: run.says("description", "described-88")
    ),
    "mounts": Fact(
        "what two mounted servers return",
        TOOLS,
        lambda run: all(run.says(name, f"the lantern: {fact}") for name, (_, fact) in drive.MOUNTS.items()),
    ),
    "signin": Fact(
        "the tools, after signing in by the agent's own command",
        ("signin",),
        lambda run: run.done and run.says("shell", "said-42"),
    ),
    "restart": Fact("a call after `kill -9` and a restart", HTTP, lambda run: run.says("restart", "again-55")),
    "folder": Fact("the working directory after that", HTTP, lambda run: run.says("restart", "/work/deep\\b")),
    "cut": Fact(
        "an error for the call that runs during `kill -9`, within 15 s",
        drive.KILLED,
        lambda run: "never" not in run.text("cut") and run.seconds.get("cut", SOON) < SOON,
    ),
    "after the cut": Fact("the next call", drive.KILLED, lambda run: run.says("after the cut", "after-66")),
}

BY_ITSELF = "it checks arguments by the schema itself"
LIMITS: Mapping[tuple[str, str], str] = {  # facts that an agent never passes on: (agent, fact) → why
    ("claude-code", "cut"): "it waits for `MCP_TOOL_TIMEOUT`",
    ("codex", "new plugin"): "it lists the tools once, and ignores `list_changed`",
    **{("gemini-cli", fact): BY_ITSELF for fact in ("text number", "text id", "text of a plugin", "description")},
}
