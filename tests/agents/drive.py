"""Write the script that the model follows, and its page, skill, picture, plugin and search engine."""

import contextlib
import http.server
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tests.agents.dialects import Shown
from tests.agents.model import Step

CUT = 1.5  # seconds into a call: the server is killed
KILLED = ("http", "node", "replicas")  # carriers that are killed in a call, too
ALLOWED = ("--allow-private", "127.0.0.1")
HOLD = "12"  # seconds: a loaded machine takes five to start a browser
PAGE = b"<html><head><title>Lantern</title></head><body><main><h1>Lantern</h1><p>%s</p></main></body></html>"
ON_THE_PAGE = "The lantern hangs in the hall since the winter of the long frost, and burns oil of the finest kind."
IN_THE_SKILL = "Trim the wick before you light it."
REMINDER = "Repair the lamp"
TODO = "Paint the fence"
GOAL = "Mow the lawn"
PLUGIN_TOOL = "measure_lantern"
LATER = "weigh_lantern"  # a plugin added while the agent runs
MOUNTS = {"lamps": ("legacy", "it was lit in May"), "tides": ("modern", "it hangs above the flood")}  # era and fact
MOUNTED = Path(__file__).with_name("mounted_server.py")
TASK = re.compile(r'(?:background task |"task_id": ?)(\d+)')
FOUND = "A history of lanterns"
PLUGIN = '''
from dataclasses import dataclass

from toolgate.tools import tool


@dataclass
class Size:
    width_mm: int
    label: str


@tool(read_only=True)
async def {name}(width: int) -> Size:
    """Measure a lantern."""
    return Size(width * 7, "of brass")
'''
QUESTION = "Which glass does the lantern get?"
QUESTIONS = {"questions": [{"question": QUESTION, "options": ["clear", "frosted"]}]}


@dataclass(frozen=True, slots=True)
class Scene:
    """The folders of one run, and the URL of its pages."""

    folder: Path
    pages: str

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def options(self) -> list[str]:
        """Return the options of a server that has its commands and browser itself."""
        return [*self.gateway_options, "--workspace", str(self.work)]

    @property
    def gateway_options(self) -> list[str]:
        """Return the options of a server that has them at a node."""
        folders = [word for name in ("state", "skills", "plugins") for word in (f"--{name}", str(self.folder / name))]
        folders += ["--config", str(self.folder / "mounts.toml")]
        return [*folders, *ALLOWED, "--engines", f"searxng={self.pages}/", "--hold", HOLD]

    @property
    def node_options(self) -> list[str]:
        return ["--state", str(self.folder / "node"), "--workspace", str(self.work), *ALLOWED]

    def prepare(self) -> None:
        for name in ("work", "skills/wicks", "plugins", "home"):
            (self.folder / name).mkdir(parents=True)
        skill = f"---\nname: wicks\ndescription: Care for wicks.\n---\n{IN_THE_SKILL} For $ARGUMENTS.\n"
        (self.folder / "skills" / "wicks" / "SKILL.md").write_text(skill)
        Image.new("RGB", (64, 48), (200, 120, 0)).save(self.work / "lantern.png")
        self.add_plugin(PLUGIN_TOOL)
        (self.folder / "mounts.toml").write_text("".join(map(_mount, MOUNTS)))

    def add_plugin(self, name: str) -> None:
        (self.folder / "plugins" / f"{name}.py").write_text(PLUGIN.format(name=name))


def _mount(name: str) -> str:
    """Return the table of a mounted server."""
    args = json.dumps(["-I", "-S", str(MOUNTED), *MOUNTS[name]])
    return f"[mounts.{name}]\ncommand = {json.dumps(sys.executable)}\nargs = {args}\n"


def write_script(scene: Scene, carrier: str, restart: Callable[[], None] | None) -> dict[str, Step]:
    """Return the calls of a run in order, by name. `restart` ends the server by kill -9 and starts it again."""
    script = {"shell": Step("Bash", {"command": "mkdir -p deep && cd deep; echo said-$((40 + 2)); (exit 3)"})}
    if carrier != "signin":
        script |= _write_tools(scene)
    if restart is not None:
        script["restart"] = Step("Bash", {"command": "pwd; echo again-$((50 + 5))"}, before=restart)
    if carrier in KILLED and restart is not None:
        cut = threading.Timer(CUT, restart)
        script["cut"] = Step("Bash", {"command": 'sleep 31; echo ne""ver'}, before=cut.start)
        script["after the cut"] = Step("Bash", {"command": "pwd; echo after-$((60 + 6))"}, before=cut.join)
    return script


def _write_tools(scene: Scene) -> dict[str, Step]:
    reminder = {"action": "set", "message": REMINDER, "delay_seconds": 1, "repeat_count": 1}
    return {
        "folder": Step("Bash", {"command": "pwd"}),
        "page": Step("ReadDocs", {"url": f"{scene.pages}/page.html"}),
        "page again": Step("ReadDocs", {"url": f"{scene.pages}/page.html"}),  # by the browser that the first one starts
        "skill": Step("InvokeSkill", {"skill_name": "wicks", "arguments": "lanterns"}),
        "picture": Step("ReadImage", {"file_path": str(scene.work / "lantern.png")}),
        "question": Step("AskUserQuestion", {"questions_json": json.dumps(QUESTIONS)}),
        "search": Step("WebSearch", {"query": "lanterns"}),
        "todo": Step("TaskManager", {"action": "create", "query": "", "text": TODO}),
        "plan": Step("PlanMode", {"action": "enter", "goal": GOAL}),
        "end of plan": Step("PlanMode", {"action": "exit"}),
        "background": Step("BackgroundBash", {"command": "echo from-behind"}),
        "callback": Step("SetCallback", reminder),
        "long": Step("Bash", {"command": "sleep 61; echo late", "timeout": 120000}),
        "output": Step("ReadBgOutput", task_of("background")),
        "tasks": Step("ListBgTasks", before=lambda: scene.add_plugin(LATER)),
        "wait": Step("Bash", {"command": "sleep 2"}),
        "kill": Step("KillBgTask", task_of("long")),
        "plugin": Step(PLUGIN_TOOL, {"width": 6}),
        "text number": Step("Bash", {"command": "echo texts-$((70 + 7))", "timeout": "5000"}),
        "text id": Step("KillBgTask", lambda shown: {"task_id": str(task_of("long")(shown)["task_id"])}),
        "text of a plugin": Step(PLUGIN_TOOL, {"width": "7"}),
        **{name: Step(f"{name}__tell", {"of": "the lantern"}) for name in MOUNTS},
        "description": Step("Bash", {"command": "echo described-$((80 + 8))", "description": "Print a word"}),
    }


def task_of(step: str) -> Callable[[Mapping[str, Shown]], dict[str, int]]:
    """Return a function that finds, as a model would, the background task in the answer of a step."""

    def find(shown: Mapping[str, Shown]) -> dict[str, int]:
        found = TASK.search(shown[step].text)
        return {"task_id": int(found[1]) if found else 0}

    return find


class _Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/search"):
            hit = {"title": FOUND, "url": "https://lanterns.example/history", "content": "From oil to light."}
            kind, body = "application/json", json.dumps({"results": [hit]}).encode()
        else:
            kind, body = "text/html", PAGE % ON_THE_PAGE.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def serve_pages() -> Iterator[str]:
    """Serve the page, and a SearXNG that finds it; yield the URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
