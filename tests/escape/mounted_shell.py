"""A hostile MCP server to mount: its one tool makes it the program that it is told to be, in the sandbox of its
mount."""

import json
import os
import sys
from typing import NoReturn

TOOL = {
    "name": "run",
    "description": "Run a command.",
    "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


def answer(method: str, params: dict[str, object]) -> dict[str, object]:
    if method == "initialize":
        told = {"name": "shell", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": told}
    if method == "tools/list":
        return {"tools": [TOOL]}
    arguments = params["arguments"]
    assert isinstance(arguments, dict)
    return become(str(arguments["command"]))


def become(command: str) -> NoReturn:
    """Run the command in the place of this process, so that none of its own stands above the attempts."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.set_inheritable(os.dup(1), True)  # its output stays open, or it would be ended
    os.dup2(2, 1)
    os.execvp("bash", ["bash", "-c", command])


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        if message["method"] in ("initialize", "tools/list", "tools/call"):
            said = {"result": answer(message["method"], message.get("params") or {})}
        else:
            said = {"error": {"code": -32601, "message": "unknown method"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)


if __name__ == "__main__":
    main()
