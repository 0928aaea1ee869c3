"""Output of commands that takes long to clean, and patterns that take long to find in it."""

import json
import re
from typing import Any

from tests.watchdog.watch import Watched
from tests.watchdog.worst import in_session, message

OUTPUT = {  # what Python programs write
    "returns": "('\\r' * 2_000 + 'x\\n') * 400",
    "returns on one line": "'\\r' * 2**20",
    "escapes": "('\\x1b[31m\\xe9' * 1_000 + '\\n') * 80",
    "meters": "('\\r'.join(f'{number} words' for number in range(500)) + '\\n') * 80",
    "states": "('x\\ry\\r' * 1_000 + '\\n') * 150",
    "backspaces": "'a\\b' * 2**19",
    "marks": "'a' + '\\u0300\\u0316' * 2**18",
    "empty lines": "'\\n' * 2**19",
    "long lines": "('a' * 4_096 + '\\n') * 40",
}
PATTERNS = [*("a?" * 120 + chr(letter) for letter in range(66, 73)), "*a" * 120 + "b"]


def poll(watched: Watched, pattern: str, cursor: str | None) -> tuple[int, str]:
    """Return how many lines have matched since the cursor, and the next cursor."""
    params = {"name": "command.output", "arguments": {"pattern": pattern}, "cursor": cursor}
    result = request(watched, "events/poll", params)
    return len(result["events"]), result["cursor"]


def write(watched: Watched, kind: str) -> str:
    """Start a command with such output, and return the number of its background task."""
    program = f"print({OUTPUT[kind]}); print(); print('ready')"
    command = f'PYTHONIOENCODING=utf-8 python3 -c "{program}"'
    result = request(watched, "tools/call", {"name": "BackgroundBash", "arguments": {"command": command}})
    return re.findall(r"task (\d+)", result["content"][0]["text"])[0]


def read(watched: Watched, number: str) -> None:
    request(watched, "resources/read", {"uri": f"bg://{number}/output"})


def request(watched: Watched, method: str, params: dict[str, Any]) -> Any:
    """Return the result of a request, which comes as JSON or as a stream."""
    answer = watched.send(in_session(watched, "full", message(method, params), method)).decode()
    return json.loads(re.findall(r"\{.*\}", answer)[-1])["result"]
