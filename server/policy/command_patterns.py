"""Match shell commands with patterns such as `git push*`, in which `*` and `?` alone are special.

A shell has more than one spelling for everything, so a pattern is advice and no boundary. It errs on the safe side. A
pattern that refuses is matched with each command in the text as well, without its quotes. A pattern that allows has to
match the whole text, and no `*` or `?` in it matches what a shell reads as more than a word.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

MAX_COMMAND = 128 * 2**10  # characters of a command that are looked at: Linux starts none that is longer
ANY, WORDS = r"(?s:.)", r"[^;&|<>()$`\\{}\x00-\x08\x0a-\x1f\x7f]"  # what * and ? stand for: the latter to be sure
ENDS = re.compile(r"[;&|<>(){}`\r\n]+")  # of one command in a text of several


class ShellCommand:
    """The text that patterns are about, of a call's arguments. Only a string is one for sure: a list may be words."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        given = arguments.get("command")
        self.certain_text = given if isinstance(given, str) else None
        self.text = " ".join(map(str, given)) if isinstance(given, list) else self.certain_text

    @cached_property
    def variants(self) -> list[str]:
        """The text, and each command in it, with single spaces, with quotes and without."""
        text = self.text or ""
        bare = re.sub(r"\\\r?\n|[\"'\\]", "", text)
        parts = [part for whole in dict.fromkeys((text, bare)) for part in (whole, *ENDS.split(whole))]
        return list(dict.fromkeys([text, *(" ".join(part.split()) for part in parts)]))


class CommandPattern:
    """One pattern, as `text` has it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def matches(self, command: ShellCommand, *, strict: bool) -> bool:
        """Whether the command is one of these. `surely`: a doubt counts against that, not for it."""
        text = command.certain_text if strict else command.text
        if text is None:
            return False
        if len(text) > MAX_COMMAND:
            return not strict
        if strict:
            return self._strict_regex.fullmatch(text) is not None
        return any(map(self._broad_regex.fullmatch, command.variants))

    @cached_property
    def _strict_regex(self) -> re.Pattern[str]:
        return _compile(self.text, WORDS)

    @cached_property
    def _broad_regex(self) -> re.Pattern[str]:
        return _compile(self.text, ANY)


def _compile(pattern: str, character: str) -> re.Pattern[str]:
    """`*` is any number of such characters and `?` is one. Each `*` takes as few as it can and never more later, so
    that no text takes long."""
    first, *rest = (re.escape(chunk).replace(r"\?", character) for chunk in pattern.split("*"))
    if not rest:
        return re.compile(first)
    middle = "".join(f"(?>{character}*?{chunk})" for chunk in rest[:-1])
    return re.compile(f"{first}{middle}{character}*{rest[-1]}")
