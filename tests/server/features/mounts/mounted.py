"""Servers with mounts: config files, and mounted servers over HTTP."""

import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clients.raw_client import STATELESS, Server, eventually

PROGRAM = Path(__file__).with_name("far_server.py")
CAPABILITIES = {"elicitation": {}, "sampling": {}, "roots": {}}
ANSWERS: dict[str, Any] = {
    "elicitation/create": {"action": "accept", "content": {"name": "Ada"}},
    "sampling/createMessage": {"role": "assistant", "content": {"type": "text", "text": "said"}, "model": "m"},
    "roots/list": {"roots": [{"uri": "file:///far", "name": "far"}]},
}


def answer(method: str, _params: dict[str, Any]) -> Any:
    return ANSWERS[method]


def command_mount(era: str, name: str = "far", *lines: str) -> str:
    """Return the table of a mount that runs the program."""
    args = ", ".join(f'"{word}"' for word in (str(PROGRAM), era))
    return "\n".join((f"[mounts.{name}]", f'command = "{sys.executable}"', f"args = [{args}]", *lines, ""))


def url_mount(url: str, name: str = "far", *lines: str) -> str:
    return "\n".join((f"[mounts.{name}]", f'url = "{url}"', *lines, ""))


def write_config(folder: Path, *tables: str) -> tuple[str, str]:
    """Write a config file, and return the options that name it."""
    file = folder / "mounts.toml"
    file.write_text("\n".join(tables))
    return "--config", str(file)


class FarSite:
    """The program over HTTP."""

    def __init__(self, folder: Path, era: str) -> None:
        place = folder / f"port-{os.urandom(4).hex()}"
        self.process = subprocess.Popen([sys.executable, str(PROGRAM), era, str(place)])
        assert eventually(place.exists)
        self.base = f"http://127.0.0.1:{place.read_text()}"
        self.url = f"{self.base}/mcp"

    def ask(self, path: str) -> str:
        with urllib.request.urlopen(self.base + path) as response:
            return str(response.read().decode())


@contextlib.contextmanager
def far_site(folder: Path, era: str) -> Iterator[FarSite]:
    opened = FarSite(folder, era)
    try:
        yield opened
    finally:
        opened.process.kill()
        opened.process.wait()


def call_through(server: Server, tool: str, arguments: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    """Return the result of a call, whose questions are answered as the revision wants it."""
    params: dict[str, Any] = {"name": tool, "arguments": arguments or {}}
    result = server.request("tools/call", params, **meta)
    while server.revision == STATELESS and result.get("resultType") == "input_required":
        responses = {key: answer(each["method"], {}) for key, each in result["inputRequests"].items()}
        retried = {**params, "inputResponses": responses, "requestState": result["requestState"]}
        result = server.request("tools/call", retried, **meta)
    found: dict[str, Any] = result
    return found


def wait_listed(server: Server, *mounts: str) -> dict[str, Any]:
    """Return the tools by name, once those of the mounts (by default `far`) are among them: a busy machine takes longer
    to start a program than a first list waits."""
    tools: dict[str, Any] = {}

    def are_listed() -> bool:
        tools.clear()
        tools.update({tool["name"]: tool for tool in server.request("tools/list")["tools"]})
        return all(any(name.startswith(f"{mount}__") for name in tools) for mount in mounts or ("far",))

    assert eventually(are_listed), server.log()
    return tools
