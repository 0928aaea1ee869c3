"""Mounts of a server that lists what a file says."""

import json
import sys
from pathlib import Path
from typing import Any

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
