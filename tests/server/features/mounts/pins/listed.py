"""Mounts of a server that lists what a file says."""

import contextlib
import json
import os
import pty
import select
import sys
from pathlib import Path
from typing import Any

from tests.clients.raw_client import COMMAND, PATIENCE
from tests.servers import forked_command

PROGRAM = Path(__file__).with_name("listed_server.py")


class ListedMount:
    """The mount `far`, whose lists a test writes."""

    def __init__(self, folder: Path, era: str = "legacy", *lines: str) -> None:
        self.file = folder / "listed.json"
        args = json.dumps([str(PROGRAM), str(self.file), era])
        self.table = "\n".join(("[mounts.far]", f'command = "{sys.executable}"', f"args = {args}", *lines, ""))

    def say(self, **lists: Any) -> None:
        """Have it list this from now on."""
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(lists))
        part.replace(self.file)


def tool(name: str, **members: Any) -> dict[str, Any]:
    return {"name": name, "description": f"does {name}", "inputSchema": {"type": "object"}, **members}


def ask_at_terminal(folder: Path, words: tuple[str, ...], answer: str) -> str:
    """Return what a command shows at a terminal to a person who types this answer."""
    outer, inner = pty.openpty()
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "TERM": "dumb"}
    with open(inner, "r+b", buffering=0) as terminal:
        streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
        process = forked_command.start([COMMAND, *words], **streams, cwd=folder, env=environment)
    try:
        os.write(outer, f"{answer}\n".encode())
        shown = b""
        with contextlib.suppress(OSError):  # the end, on Linux
            while select.select([outer], [], [], PATIENCE)[0] and (data := os.read(outer, 65_536)):
                shown += data
        assert process.wait(PATIENCE) == 0, shown
    finally:
        process.kill()
        os.close(outer)
    return shown.decode()
