"""Show a run to a model: its command, an excerpt of its output, and how it ended."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from toolgate.tools.api.text.cleaning import clean_text
from toolgate.tools.workspace.output.ansi import OutputCleaner, feed_in_turns
from toolgate.tools.workspace.output.run_record import Run

CHUNK = 2**18  # bytes at a time, so that 64 MiB are never held at once

Reader = Callable[[int, int], Awaitable[bytes]]  # offset and limit, in bytes


class Excerpt(msgspec.Struct, frozen=True):
    """An excerpt of output. `text` is all, or beginning and end with notes around them, less `dropped_characters`. It
    covers `used_bytes`."""

    text: str
    dropped_characters: int
    used_bytes: int


async def make_excerpt(read: Reader, size: int, limit: int, rest: str, *, final: bool) -> Excerpt:
    """Return the first `size` bytes as clean text of at most `limit` characters. `rest` says where all of it is. That
    note stands first and last, since clients cut the middle out again."""

    def first(total: int) -> str:
        return f"[{total:,} characters of output, the middle is left out; {rest}]\n"

    def middle(dropped: int) -> str:
        return f"\n[… {dropped:,} characters dropped …]\n"

    last = f"[{rest}]"
    half = max(0, limit - len(first(size) + middle(size) + last) - 1) // 2
    cleaner = OutputCleaner()
    head = tail = ""
    total = offset = 0
    is_over = size == 0
    while not is_over:
        data = await read(offset, min(CHUNK, size - offset))
        offset += len(data)
        is_over = not data or offset >= size
        piece = await feed_in_turns(cleaner, data)
        if is_over:
            piece += cleaner.end(final=final)
        total += len(piece)
        if len(head) <= limit:  # the head holds the whole text so far
            head += piece
            tail = head[half:] if total > limit else ""
        else:
            tail += piece
        tail = tail[-half:] if half else ""
        if not is_over:
            await asyncio.sleep(0)  # others run too
    if total <= limit:
        return Excerpt(head, 0, cleaner.used)
    dropped = total - 2 * half
    return Excerpt(with_notes(first(total) + head[:half] + middle(dropped) + tail, last), dropped, cleaner.used)


def with_notes(text: str, *notes: str) -> str:
    """Return output followed by notes on lines of their own."""
    gap = "\n" if text and notes and not text.endswith("\n") else ""
    return text + gap + "\n".join(notes)


def name_blank(text: str) -> str:
    """Return a text that is not blank: clients drop a blank one, and the APIs of models refuse it."""
    if text.strip():
        return text
    return with_notes(text, "(only white space)") if text else "(no output)"


def shorten_command(command: str, limit: int) -> str:
    """Return a command on one line, without characters that hide or control."""
    line = clean_text(" ".join(command.split()))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def describe_end(run: Run) -> str:
    """Return how a run ended, to complete a sentence: "exited with code 0 after 12 s"."""
    seconds = f"{run.runtime_ms / 1000:.1f}".removesuffix(".0")
    match run.status:
        case "running":
            return f"is running for {seconds} s"
        case "exited":
            return f"exited with code {run.exit_code} after {seconds} s" + "".join(f"; {why}" for why in run.hits)
        case "killed":
            return f"was killed after {seconds} s" + (f": {run.reason}" if run.reason else "")
        case "lost":
            why = f"; {run.reason}" if run.reason else ""
            seen = f" (last seen after {seconds} s)" if seconds != "0" else ""
            return f"is lost: the server can't tell how it ended{seen}{why}"
