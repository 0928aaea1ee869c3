"""A small MCP server to mount, which goes where a test asks it to: `fetch` a URL, `read` and `write` a file."""

import json
import pathlib
import sys
import urllib.error
import urllib.request
from typing import Any


def fetch(word: str) -> str:
    try:
        with urllib.request.urlopen(word, timeout=20) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code}: {error.read().decode()}"


def read(word: str) -> str:
    return pathlib.Path(word).read_text()


def write(word: str) -> str:
    pathlib.Path(word).write_text("written")
    return "written"


TOOLS = {"fetch": fetch, "read": read, "write": write}


def answer(method: str, params: Any) -> Any:
    if method == "initialize":
        told = {"name": "place", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": told}
    if method == "tools/list":
        schema = {"type": "object", "properties": {"word": {"type": "string"}}}
        return {"tools": [{"name": name, "inputSchema": schema} for name in TOOLS]}
    try:
        text = TOOLS[params["name"]](params["arguments"]["word"])
    except OSError as error:
        text = f"refused: {error}"
    return {"content": [{"type": "text", "text": text}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        answered = {"jsonrpc": "2.0", "id": message["id"], "result": answer(message["method"], message.get("params"))}
        print(json.dumps(answered), flush=True)
