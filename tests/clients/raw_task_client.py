"""Ask for tasks as a client does (extension io.modelcontextprotocol/tasks)."""

from typing import Any

from tests.clients.raw_client import Server, eventually

TASKS = "io.modelcontextprotocol/tasks"
KNOWS = {"extensions": {TASKS: {}}, "elicitation": {}, "roots": {}}


def created(server: Server, tool: str, **arguments: Any) -> str:
    """Return the id of the task that a call becomes."""
    result = server.call(tool, arguments)
    assert result["resultType"] == "task", result
    id: str = result["taskId"]
    return id


def get(server: Server, id: str) -> Any:
    return server.request("tasks/get", {"taskId": id})


def until(server: Server, id: str, *wanted: str) -> Any:
    """Return the task once it has one of the statuses; it must have another before."""
    found: list[Any] = []

    def there() -> bool:
        found.append(get(server, id))
        return found[-1]["status"] in wanted

    assert eventually(there), found[-1]
    return found[-1]


def ended(server: Server, id: str) -> Any:
    return until(server, id, "completed", "failed", "cancelled")


def text(task: Any) -> str:
    """Return the text of a completed task."""
    assert task["status"] == "completed", task
    said: str = task["result"]["content"][0]["text"]
    return said


def accepted(name: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"name": name}}
