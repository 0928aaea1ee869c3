"""A server to mount, with one tool that tells a fact: `python mounted_server.py ERA FACT`; ERA is "legacy" or "modern".

It imports little, so that an agent that lists tools once finds its tool in the first list.
"""

import json
import sys
from typing import Any

MODERN, LEGACY = "2026-07-28", "2025-11-25"
TOOL = {
    "name": "tell",
    "description": "Tell what is known of a lantern",
    "inputSchema": {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]},
    "annotations": {"readOnlyHint": True},
}


def answer(method: str, params: dict[str, Any], era: str, fact: str) -> dict[str, Any] | None:
    """Return the result, or None for a method that the era does not have."""
    match method:
        case "server/discover" if era == "modern":
            return {"supportedVersions": [MODERN], "capabilities": {"tools": {}}}
        case "initialize" if era == "legacy":
            named = {"name": "mounted", "version": "1"}
            return {"protocolVersion": LEGACY, "capabilities": {"tools": {}}, "serverInfo": named}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            return {"content": [{"type": "text", "text": f"{params['arguments']['of']}: {fact}"}]}
    return None


def main(era: str, fact: str) -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        result = answer(asked["method"], asked.get("params", {}), era, fact)
        if result is None:
            said: dict[str, Any] = {"error": {"code": -32601, "message": "unknown method"}}
        else:
            said = {"result": {**result, **({"resultType": "complete"} if era == "modern" else {})}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
