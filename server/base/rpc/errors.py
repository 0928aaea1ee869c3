"""Turn the errors that an API names into data, and back into exceptions."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from toolgate.tools.api import errors
from toolgate.tools.api.outbound.errors import AddressRefusedError, PageTimeoutError, PageUnreachableError

ASKING_ERRORS = (errors.CannotAskError, errors.UnansweredError, errors.StillWaitingError, errors.TasksUnsupportedError)
PAGE_ERRORS = (PageUnreachableError, PageTimeoutError, AddressRefusedError)
TOOL_ERRORS: Sequence[type[errors.ToolError]] = (
    *(errors.ToolError, errors.NotFound, errors.WrongArgumentsError),
    *(*ASKING_ERRORS, *PAGE_ERRORS),
)
PYTHON_ERRORS = {
    error.__name__: error for error in (KeyError, LookupError, OverflowError, TimeoutError, ValueError, TypeError)
}


class ErrorData(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error that the API names: those of tools with their fields, others with their arguments."""

    name: str
    text: str = ""
    arguments: list[Any] = []
    required: Any = None


class ErrorTable:
    """The errors that the methods of one API name. Both ends of a link have the same.

    added: those beside the errors of tools and of Python
    """

    def __init__(self, *added: type[errors.ToolError]) -> None:
        self._tool_errors = {error.__name__: error for error in (*TOOL_ERRORS, *added)}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._tool_errors.keys() | PYTHON_ERRORS.keys())

    def to_data(self, error: BaseException) -> ErrorData | None:
        """Return the error as the other end can raise it, or None for one the API does not name."""
        for kind in type(error).__mro__:
            if self._tool_errors.get(kind.__name__) is kind:
                assert isinstance(error, errors.ToolError)
                required = error.required if isinstance(error, errors.CannotAskError) else None
                return ErrorData(kind.__name__, str(error.text), required=required)
            if PYTHON_ERRORS.get(kind.__name__) is kind:
                return ErrorData(kind.__name__, arguments=[_plain(argument) for argument in error.args])
        return None

    def to_error(self, error: ErrorData) -> Exception:
        """Return the exception that `to_data` was given, as far as it was sent."""
        kind = self._tool_errors.get(error.name)
        if kind is None:
            return PYTHON_ERRORS.get(error.name, RuntimeError)(*error.arguments)
        if issubclass(kind, errors.CannotAskError):
            required: Mapping[str, Any] = error.required if isinstance(error.required, dict) else {}
            return kind(error.text, dict(required))
        return kind(error.text)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
