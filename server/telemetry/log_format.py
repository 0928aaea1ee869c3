"""How a line of the log looks, as text or as JSON, and which request it is about. Knows nothing of where lines go.

What a line tells may have come from anywhere: nothing in it begins another line, or speaks to a terminal. As text, what
follows a line (a traceback) is indented.
"""

import logging
import time
from contextvars import ContextVar
from dataclasses import dataclass

from toolgate.server.protocol.messages import replace_surrogates
from toolgate.server.text import escape_unprintable

INDENT = "  "  # before each further line


@dataclass(slots=True)
class LogContext:
    """What is being handled: the id of the HTTP request, who calls, the trace. "" is unknown, or none."""

    request: str = ""
    principal: str = ""
    trace: str = ""


LOG_CONTEXT: ContextVar[LogContext | None] = ContextVar("about", default=None)  # of the task that logs


class TextFormatter(logging.Formatter):
    """For people: `TIME LEVEL LOGGER: MESSAGE [REQUEST trace=TRACE]`. `most` is the bytes of a line that nobody cuts;
    None: any number. Text may be cut anywhere, and is not shortened here."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.converter = time.gmtime
        self._most = most

    def format(self, record: logging.LogRecord) -> str:
        about = LOG_CONTEXT.get()
        said = f"{self.formatTime(record)} {record.levelname} {record.name}: {escape_unprintable(record.getMessage())}"
        if about is not None and (about.request or about.trace):
            trace = f"trace={about.trace}" if about.trace else ""
            said += f" [{' '.join(filter(None, (about.request, trace)))}]"
        return "\n".join(
            (said, *(INDENT + escape_unprintable(line) for line in self._format_traceback(record).splitlines()))
        )

    def _format_traceback(self, record: logging.LogRecord) -> str:
        """What went wrong, with where it did."""
        parts = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        parts += [self.formatStack(record.stack_info)] if record.stack_info else []
        return "\n".join(parts)


class JsonFormatter(TextFormatter):
    """For programs: an object a line, in ASCII. With `most`, what is long loses its middle."""

    def format(self, record: logging.LogRecord) -> str:
        about = LOG_CONTEXT.get() or LogContext()
        said = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request": about.request,
            "principal": about.principal,
            "trace": about.trace,
            "exception": self._format_traceback(record),
        }
        told = {name: text for name, text in said.items() if text or name == "message"}
        line = _to_json(told)
        while self._most is not None and len(line) > self._most:
            longest = max(told, key=lambda name: len(told[name]))
            told[longest] = _shorten_middle(told[longest])
            line = _to_json(told)
        return line


FORMATTERS: dict[str, type[TextFormatter]] = {"text": TextFormatter, "json": JsonFormatter}


def _to_json(told: dict[str, str]) -> str:
    import json  # start-up: text does without

    return json.dumps(replace_surrogates(told))


def _shorten_middle(text: str) -> str:
    """Less of it: the beginning says what it is, the end of a traceback what went wrong."""
    return f"{text[: len(text) // 5]} ... {text[-len(text) // 2 :]}"
