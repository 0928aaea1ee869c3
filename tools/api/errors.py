"""Define the errors that a tool may raise.

ToolError                       the tool says no: an `isError` result with this text
├── NotFound                    there is no such resource
├── WrongArgumentsError         the arguments of a prompt or a completion do not fit
└── CannotAskError              the client declared no way to be asked (elicitation, sampling, roots)
    ├── UnansweredError         it was asked, and no answer came in time
    │   └── StillWaitingError   the question stays where the person can still answer it
    └── TasksUnsupportedError   it knows no tasks, and the tool runs as one only
CollisionError                  two parts claim one name (raised at load, not in a call)
"""

from typing import Any


class ToolError(Exception):
    """The tool's own work failed. The text goes to the model: say what failed and what to do next."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class NotFound(ToolError):
    """There is no such resource. Raise it from a resource's function; the URI is added by the server."""


class WrongArgumentsError(ToolError):
    """What was given does not fit; the text names it."""


class CannotAskError(ToolError):
    """The client did not declare the capability a question to it needs.

    `required` is the capability object it would have to declare, such as `{"elicitation": {}}`.
    """

    def __init__(self, text: str, required: dict[str, Any]) -> None:
        super().__init__(text)
        self.required = required


class UnansweredError(CannotAskError):
    """The client was asked and did not answer in time, or answered with an error."""


class StillWaitingError(UnansweredError):
    """Nobody has answered yet, and the question waits on: the text says where. The same call, made again, takes the
    answer that was given meanwhile."""


class TasksUnsupportedError(CannotAskError):
    """The client did not declare that it knows tasks, and the tool's work is only done as one."""


class CollisionError(Exception):
    """Two parts claim one name; the text names both places."""
