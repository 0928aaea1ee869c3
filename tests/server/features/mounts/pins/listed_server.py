"""A mounted server that lists what a file says: `python listed_server.py FILE ERA`, over stdio.

The file is a JSON object with `tools`, `prompts`, `resources`, `resourceTemplates`, `skills` and `instructions`; `more`
has tools for clients with elicitation alone. Its tool `reload` tells of a change of all lists. ERA is "legacy" or
"modern".
"""

import json
import sys
from pathlib import Path
from typing import Any

MODERN, LEGACY = "2026-07-28", "2025-11-25"
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "skills/list": "skills",
}
CHANGED = [f"notifications/{name}/list_changed" for name in ("tools", "prompts", "resources")]
RELOAD = {"name": "reload", "inputSchema": {"type": "object"}}
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


class ListedServer:
    def __init__(self, file: Path, era: str) -> None:
        self.file = file
        self.is_modern = era == "modern"
        self.told: dict[str, Any] = {}  # capabilities of the client

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        says = json.loads(self.file.read_text())
        can = params.get("_meta", {}).get(CAPABILITIES, self.told)
        capabilities: dict[str, Any] = {name: {"listChanged": True} for name in ("tools", "prompts", "resources")}
        capabilities["extensions"] = {"io.modelcontextprotocol/skills": {}}
        common = {"capabilities": capabilities, "instructions": says.get("instructions", "")}
        match method:
            case "server/discover" if self.is_modern:
                return {"supportedVersions": [MODERN], **common}
            case "initialize" if not self.is_modern:
                self.told = params["capabilities"]
                return {"protocolVersion": LEGACY, "serverInfo": {"name": "listed", "version": "1"}, **common}
            case "tools/list":
                more = says.get("more", []) if "elicitation" in can else []
                return {"tools": [RELOAD, *says.get("tools", []), *more]}
            case method if method in LISTS:
                return {LISTS[method]: says.get(LISTS[method], [])}
            case "tools/call":
                if params["name"] == "reload":
                    for changed in CHANGED:
                        write({"method": changed})
                return {"content": [{"type": "text", "text": f"ran {params['name']}"}]}
            case "prompts/get":
                return {"messages": [{"role": "user", "content": {"type": "text", "text": "a prompt"}}]}
            case "resources/read":
                return {"contents": [{"uri": params["uri"], "text": "a text"}]}
            case _:
                return None


def write(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def main() -> None:
    server = ListedServer(Path(sys.argv[1]), sys.argv[2])
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message or message["method"] == "subscriptions/listen":
            continue
        result = server.answer(message["method"], message.get("params") or {})
        if result is None:
            write({"id": message["id"], "error": {"code": -32601, "message": "unknown method"}})
        else:
            kind = {"resultType": "complete"} if server.is_modern else {}
            write({"id": message["id"], "result": {**result, **kind}})


if __name__ == "__main__":
    main()
