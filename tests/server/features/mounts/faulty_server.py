"""A server over stdio with a fault: `python faulty_server.py FAULT`.

- "silent" answers nothing, "listless" no tools/list.
- "rubbish" writes what is no message in place of each answer.
- "late" answers nothing for the first LATE seconds.
"""

import json
import sys
import time
from typing import Any

LATE = 5.0  # seconds: longer than a first list may wait
TOOL = {"name": "echo", "inputSchema": {"type": "object"}}


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    match asked["method"]:
        case "initialize":
            result: dict[str, Any] = {
                "protocolVersion": asked["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "faulty", "version": "1"},
            }
        case "tools/list":
            result = {"tools": [TOOL]}
        case _:
            return {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "unknown method"}}
    return {"jsonrpc": "2.0", "id": asked["id"], "result": result}


def main(fault: str) -> None:
    if fault == "late":
        time.sleep(LATE)
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked or fault == "silent" or (fault == "listless" and asked["method"] == "tools/list"):
            continue
        print("%PDF-1.7 \x00" if fault == "rubbish" else json.dumps(answer(asked)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
