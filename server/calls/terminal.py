"""Ask the person at the terminal what a called server asks, field by field.

Each line of the server's text is marked as the server's, and no character of it controls the terminal.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Generator, Mapping
from typing import Any

from toolgate.server.base.text import escape_invisible
from toolgate.server.calls import forms
from toolgate.server.calls.forms import ElicitationField

TTY = "/dev/tty"
LINE = 65_536  # bytes of one answer
MAX_ASKED = 20_000  # characters of a question: our longest, for an approval, is shorter
MAX_SHOWN = 500  # of any other text
MAX_CHOICES = 200  # listed
NO_TERMINAL = "the server asks a question, and there is no terminal to answer it: declined"


class Terminal:
    """A terminal to ask at: reads `source` and writes to the other."""

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink
        self._rest = b""

    def write(self, text: str) -> None:
        os.write(self._sink, text.encode("utf-8", "replace"))

    async def read_line(self, prompt: str) -> str | None:
        """Return the line typed after the prompt, or None at the end of input (Ctrl-D)."""
        self.write(prompt)
        while b"\n" not in self._rest:
            await self._wait_readable()
            data = os.read(self._source, LINE)
            if not data or len(self._rest) > LINE:
                self._rest = b""
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode("utf-8", "replace")

    async def _wait_readable(self) -> None:
        """Wait for input without a thread, which could not be cancelled while it reads."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def on_readable() -> None:
            loop.remove_reader(self._source)
            if not ready.done():
                ready.set_result(None)

        loop.add_reader(self._source, on_readable)
        try:
            await ready
        finally:
            loop.remove_reader(self._source)


class TerminalElicitation:
    """Answer a called server's elicitations. `declined`: a question was declined because there was no terminal."""

    def __init__(self) -> None:
        self.has_declined = False
        self._lock = asyncio.Lock()  # one question at a time

    async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of elicitation/create. Raises LookupError for any other request."""
        if method != "elicitation/create" or params.get("mode", "form") != "form":
            raise LookupError(f"{method} was not declared")
        async with self._lock:
            with open_terminal() as terminal:
                if terminal is not None:
                    return await _ask_form(terminal, params)
        if not self.has_declined:
            sys.stderr.write(f"toolgate: {NO_TERMINAL}\n")
        self.has_declined = True
        return {"action": "decline"}


@contextlib.contextmanager
def open_terminal() -> Generator[Terminal | None]:
    """Return the process's terminal, or standard input if it is one, or None."""
    try:
        tty = os.open(TTY, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        yield Terminal(0, 2) if os.isatty(0) else None
        return
    try:
        yield Terminal(tty, tty)
    finally:
        os.close(tty)


async def _ask_form(terminal: Terminal, params: Mapping[str, Any]) -> dict[str, Any]:
    schema = params.get("requestedSchema")
    fields = forms.parse_fields(schema) if isinstance(schema, Mapping) else []
    terminal.write(f"\nThe server asks:\n{quote_lines(str(params.get('message', '')), MAX_ASKED)}")
    try:
        reply = await (_ask_fields(terminal, fields) if fields else _ask_yes_no(terminal))
    except asyncio.CancelledError:
        terminal.write("\nThe server no longer waits for this answer.\n")
        raise
    if reply["action"] == "cancel":
        terminal.write("\n")
    return reply


async def _ask_yes_no(terminal: Terminal) -> dict[str, Any]:
    """Ask a question without fields, as for approval: yes or no."""
    while True:
        line = await terminal.read_line("[y/n] ")
        if line is None:
            return {"action": "cancel"}
        word = line.strip().lower()
        if word in ("y", "yes"):
            return {"action": "accept", "content": {}}
        if word in ("n", "no"):
            return {"action": "decline"}


async def _ask_fields(terminal: Terminal, fields: list[ElicitationField]) -> dict[str, Any]:
    terminal.write("(press Enter to skip an optional field or take its default; Ctrl-D closes the question)\n")
    content: dict[str, Any] = {}
    for previous, field in zip([None, *fields], fields, strict=False):
        if previous is not None and _is_alternative(field, previous) and previous.name in content:
            continue
        terminal.write(_format_field(field))
        while True:
            line = await terminal.read_line(f"{escape_line(field.title, MAX_SHOWN)}{_format_hint(field)}: ")
            if line is None:
                return {"action": "cancel"}
            try:
                value = _parse_value(field, line)
            except ValueError as error:
                terminal.write(f"  {error}\n")
                continue
            if value is not None:
                content[field.name] = value
            break
    return {"action": "accept", "content": content}


def _is_alternative(field: ElicitationField, previous: ElicitationField) -> bool:
    """Return whether the field takes own words in place of a choice, as in the form of AskUserQuestion."""
    return previous.kind == "choice" and field.kind == "text" and field.name == f"{previous.name}_other"


def _parse_value(field: ElicitationField, line: str) -> Any:
    """Return the value, or None if it is left out. Raises ValueError."""
    if line.strip():
        return field.parse(line)
    if field.default is not None:
        return field.default
    if field.required:
        raise ValueError("an answer is required")
    return None


def _format_field(field: ElicitationField) -> str:
    listed = list(field.choices.items())[:MAX_CHOICES]
    lines = [f"  {number}. {_format_choice(value, title)}" for number, (value, title) in enumerate(listed, 1)]
    if len(field.choices) > len(listed):
        lines.append(f"  … and {len(field.choices) - len(listed):,} more")
    about = quote_lines(field.description, MAX_ASKED) if field.description else ""
    return about + "".join(f"{line}\n" for line in lines)


def _format_choice(value: str, title: str) -> str:
    told = escape_line(title, MAX_SHOWN)
    return told if value == title else f"{told} ({escape_line(value, MAX_SHOWN)})"


HINTS: Mapping[str, str] = {
    "yes_no": "y/n",
    "choice": "a number",
    "choices": "numbers, with commas between them",
    "number": "a number",
    "integer": "a whole number",
}


def _format_hint(field: ElicitationField) -> str:
    default = field.default
    if isinstance(default, bool):
        default = "y" if default else "n"
    told = [HINTS.get(field.kind, ""), "" if default is None else f"default {escape_line(str(default), MAX_SHOWN)}"]
    words = ", ".join(word for word in told if word)
    return f" ({words})" if words else ""


def quote_lines(text: str, most: int) -> str:
    """Return the server's words, each line marked as the server's."""
    return "".join(f"  | {escape_line(line, most)}\n" for line in _truncate(text, most).split("\n"))


def escape_line(text: str, most: int) -> str:
    """Return the server's words on one line, without anything that controls the terminal."""
    return escape_invisible(_truncate(text, most))


def _truncate(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} … {len(text) - most:,} characters are NOT SHOWN"
