"""Write the script that the model follows, and what its calls meet: a page, a skill, a picture, a plugin, a search."""

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tests.agents.model import Step

PAGE = b"<html><head><title>Lantern</title></head><body><main><h1>Lantern</h1><p>%s</p></main></body></html>"
ON_THE_PAGE = "The lantern hangs in the hall since the winter of the long frost, and burns oil of the finest kind."
IN_THE_SKILL = "Trim the wick before you light it."
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
QUESTIONS = {"questions": [{"question": "Which glass does the lantern get?", "options": ["clear", "frosted"]}]}


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
        """Return the options that the server is started with."""
        folders = {"state": "state", "workspace": "work", "skills": "skills", "plugins": "plugins"}
        named = [word for option, name in folders.items() for word in (f"--{option}", str(self.folder / name))]
        web = ["--allow-private", "127.0.0.1", "--engines", f"searxng={self.pages}/"]
        return [*named, *web, "--hold", "3"]

    def prepare(self) -> None:
        for name in ("work", "skills/wicks", "plugins", "home"):
            (self.folder / name).mkdir(parents=True)
        skill = f"---\nname: wicks\ndescription: Care for wicks.\n---\n{IN_THE_SKILL} For $ARGUMENTS.\n"
        (self.folder / "skills" / "wicks" / "SKILL.md").write_text(skill)
        Image.new("RGB", (64, 48), (200, 120, 0)).save(self.work / "lantern.png")
        self.add_plugin("measure_lantern")

    def add_plugin(self, name: str) -> None:
        (self.folder / "plugins" / f"{name}.py").write_text(PLUGIN.format(name=name))


def write_script(scene: Scene, restart: Callable[[], None] | None) -> dict[str, Step]:
    """Return the calls of a run in order, by name. `restart` ends the server by kill -9 and starts it again."""
    image = str(scene.work / "lantern.png")
    script = {
        "shell": Step("Bash", {"command": "mkdir -p deep && cd deep; echo said-$((40 + 2)); (exit 3)"}),
        "folder": Step("Bash", {"command": "pwd"}),
        "page": Step("ReadDocs", {"url": f"{scene.pages}/page.html"}),
        "skill": Step("InvokeSkill", {"skill_name": "wicks", "arguments": "lanterns"}),
        "picture": Step("ReadImage", {"file_path": image}),
        "question": Step("AskUserQuestion", {"questions_json": json.dumps(QUESTIONS)}),
        "search": Step("WebSearch", {"query": "lanterns"}),
        "todo": Step("TaskManager", {"action": "create", "query": "", "text": "Paint the fence"}),
        "plan": Step("PlanMode", {"action": "enter", "goal": "Mow the lawn"}),
        "end of plan": Step("PlanMode", {"action": "exit"}),
        "background": Step("BackgroundBash", {"command": "echo from-behind"}),
        "callback": Step("SetCallback", _reminder()),
        "long": Step("Bash", {"command": "sleep 61; echo late", "timeout": 120000}),
        "output": Step("ReadBgOutput", {"task_id": 1}),
        "tasks": Step("ListBgTasks", {}, before=lambda: scene.add_plugin("weigh_lantern")),
        "wait": Step("Bash", {"command": "sleep 2"}),
        "kill": Step("KillBgTask", {"task_id": 2}),
        "plugin": Step("measure_lantern", {"width": 6}),
    }
    if restart is not None:
        script["restart"] = Step("Bash", {"command": "pwd; echo again-$((50 + 5))"}, before=restart)
    return script


def _reminder() -> dict[str, object]:
    return {"action": "set", "message": "Repair the lamp", "delay_seconds": 1, "repeat_count": 1}


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
    """Serve the page, and a SearXNG that finds one; gives the URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
