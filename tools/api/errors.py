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

from typing import Any, Self


class ToolError(Exception):
    """The tool's own work failed. The text goes to the model: say what failed and what to do next. `decision`: the word
    of the audit log for a call that was refused before any work."""

    decision = ""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def as_decision(self, word: str) -> Self:
        """Return the error as a refusal that the audit log names so."""
        self.decision = word
        return self


class NotFound(ToolError):
    """The resource does not exist. A resource's function raises it; the server adds the URI."""


class WrongArgumentsError(ToolError):
    """The arguments do not fit; the text names the one at fault."""


class CannotAskError(ToolError):
    """The client did not declare the capability that a question needs. `required` is the capability object that the
    client must declare, such as `{"elicitation": {}}`."""

    def __init__(self, text: str, required: dict[str, Any]) -> None:
        super().__init__(text)
        self.required = required


class UnansweredError(CannotAskError):
    """The client was asked and did not answer in time, or answered with an error."""


class StillWaitingError(UnansweredError):
    """No answer has come yet; the text says that first, then where the question waits. The same call takes the answer
    later."""

    @property
    def advice(self) -> str:
        """Where the question waits, and what to do."""
        return self.text.partition(". ")[2]


class TasksUnsupportedError(CannotAskError):
    """The client does not support tasks, and the tool runs only as one."""


class CollisionError(Exception):
    """Two parts have the same name; the text names both places."""


def drop_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an error that is answered, and of the errors behind it or in its group.

    A traceback holds the frames of the work, and so the arguments of the call. A frame may hold the error: in a local
    variable, a future or a task. Such a circle keeps a request's 16 MiB until the next garbage collection, which counts
    objects, not bytes.
    """
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = None
        waiting += [behind for behind in (each.__cause__, each.__context__) if behind is not None]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
