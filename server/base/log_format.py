"""Format the lines of the log, as text or as JSON, with the request they are about.

A message may hold text from anywhere: nothing in it can begin another line or control a terminal. In text, what follows
a line (a traceback) is indented.
"""

import logging
import time
from contextvars import ContextVar

import msgspec

from toolgate.server.base.text import escape_unprintable
from toolgate.server.protocol.messages import replace_surrogates

INDENT = "  "  # before each further line


class LogContext(msgspec.Struct):
    """What is being handled: the id of the HTTP request, the principal, the trace. "" is unknown, or none."""

    request: str = ""
    principal: str = ""
    trace: str = ""


LOG_CONTEXT: ContextVar[LogContext | None] = ContextVar("about", default=None)  # of the task that logs


class TextFormatter(logging.Formatter):
    """Lines for people: `TIME LEVEL LOGGER: MESSAGE [REQUEST trace=TRACE]`. `max_bytes`: JSON only."""

    def __init__(self, max_bytes: int | None = None) -> None:
        super().__init__()
        self.converter = time.gmtime
        self._max_bytes = max_bytes

    def format(self, record: logging.LogRecord) -> str:
        about = LOG_CONTEXT.get()
        line = f"{self.formatTime(record)} {record.levelname} {record.name}: {escape_unprintable(record.getMessage())}"
        if about is not None and (about.request or about.trace):
            trace = f"trace={about.trace}" if about.trace else ""
            line += f" [{' '.join(filter(None, (about.request, trace)))}]"
        further = self._format_traceback(record).splitlines()
        return "\n".join((line, *(INDENT + escape_unprintable(each) for each in further)))

    def _format_traceback(self, record: logging.LogRecord) -> str:
        """Return the traceback and the stack, "" if there are none."""
        parts = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        parts += [self.formatStack(record.stack_info)] if record.stack_info else []
        return "\n".join(parts)


class JsonFormatter(TextFormatter):
    """Lines for programs: a JSON object each, in ASCII. Over `max_bytes`, the longest texts lose their middle."""

    def format(self, record: logging.LogRecord) -> str:
        about = LOG_CONTEXT.get() or LogContext()
        members = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request": about.request,
            "principal": about.principal,
            "trace": about.trace,
            "exception": self._format_traceback(record),
        }
        shown = {name: text for name, text in members.items() if text or name == "message"}
        line = _to_json(shown)
        while self._max_bytes is not None and len(line) > self._max_bytes:
            longest = max(shown, key=lambda name: len(shown[name]))
            shown[longest] = _shorten_middle(shown[longest])
            line = _to_json(shown)
        return line


FORMATTERS: dict[str, type[TextFormatter]] = {"text": TextFormatter, "json": JsonFormatter}


def _to_json(members: dict[str, str]) -> str:
    import json  # start-up: text does without

    return json.dumps(replace_surrogates(members))


def _shorten_middle(text: str) -> str:
    """Return less of it: the beginning says what it is, the end of a traceback what went wrong."""
    return f"{text[: len(text) // 5]} ... {text[-len(text) // 2 :]}"
