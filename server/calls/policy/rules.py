"""Decide which tool calls are refused or need approval, by the rules of --deny, --allow and --approve.

Deny wins over allow, allow over approve. `base/principals/rule_words.py` has how a rule is written.

In a pattern only `*` and `?` are special. A shell can spell everything in several ways, so a pattern is advice and no
boundary. It errs on the safe side. A pattern that refuses is also matched with each command within the text, without
its quotes. A pattern that allows must match the whole text, and its `*` and `?` match nothing that a shell treats as
more than a word.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from fnmatch import fnmatchcase
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from toolgate.server.base.principals.rule_words import parse_rule_text, split_kind, split_rules
from toolgate.server.base.principals.sign_in_methods import PASSWORD, SIGN_IN_METHODS

if TYPE_CHECKING:  # start-up: few servers have rules
    from toolgate.server.protocol.session import Session
    from toolgate.tools.api.tool import Tool

Verdict = Literal["denied", "allowed", "asked"]

LOOKED_UP_KINDS = frozenset(method.prefix for method in SIGN_IN_METHODS)  # names that only the state database knows

MAX_COMMAND = 128 * 2**10  # characters of a command that is matched: Linux starts no longer one
ANY, WORDS = r"(?s:.)", r"[^;&|<>()$`\\{}\x00-\x08\x0a-\x1f\x7f]"  # for * and ? in refusing and in allowing rules
ENDS = r"[;&|<>(){}`\r\n]+"  # between the commands of one text


class ShellCommand:
    """The text that patterns are matched with. Only a string is certainly a command: a list may be words."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        given = arguments.get("command")
        self.certain_text = given if isinstance(given, str) else None
        self.text = " ".join(map(str, given)) if isinstance(given, list) else self.certain_text

    @cached_property
    def variants(self) -> list[str]:
        """Return the text and each command in it, with single spaces, with and without quotes."""
        text = self.text or ""
        bare = re.sub(r"\\\r?\n|[\"'\\]", "", text)
        parts = [part for whole in dict.fromkeys((text, bare)) for part in (whole, *re.split(ENDS, whole))]
        return list(dict.fromkeys([text, *(" ".join(part.split()) for part in parts)]))


def _matches(pattern: str, command: ShellCommand, *, strict: bool) -> bool:
    """Return whether the pattern matches the command. `strict`: uncertain cases do not match; otherwise they do."""
    text = command.certain_text if strict else command.text
    if text is None:
        return False
    if len(text) > MAX_COMMAND:
        return not strict
    if strict:
        return _compile(pattern, WORDS).fullmatch(text) is not None
    return any(map(_compile(pattern, ANY).fullmatch, command.variants))


@cache
def _compile(pattern: str, character: str) -> re.Pattern[str]:
    """Compile a pattern. An atomic group ends each `*`, so no text takes long."""
    first, *rest = (re.escape(chunk).replace(r"\?", character) for chunk in pattern.split("*"))
    if not rest:
        return re.compile(first)
    middle = "".join(f"(?>{character}*?{chunk})" for chunk in rest[:-1])
    return re.compile(f"{first}{middle}{character}*{rest[-1]}")


class RuleCaller(NamedTuple):
    """The caller of a tool, with all of its names."""

    names: Set[str]
    session: "Session"


class Rule(msgspec.Struct, frozen=True):
    """One rule, parsed from `text`."""

    text: str
    caller: str
    target: str
    pattern: str | None  # for the command

    def __str__(self) -> str:
        return self.text

    @property
    def is_plain(self) -> bool:
        """Return whether it applies to every caller and any arguments."""
        return not self.caller and self.pattern is None

    def applies_to(self, tool: "Tool", command: ShellCommand, caller: RuleCaller, *, strict: bool) -> bool:
        """Return whether it applies to this call. `strict`: uncertain cases do not count; otherwise they do."""
        if not (self.names_tool(tool, strict=strict) and self._applies_to_caller(caller, strict=strict)):
            return False
        return self.pattern is None or _matches(self.pattern, command, strict=strict)

    def names_tool(self, tool: "Tool", *, strict: bool) -> bool:
        """Return whether it names this tool."""
        kind, what = split_kind(self.target)
        named = {"": tool.name, "scope": tool.scope, "plugin": tool.plugin, "mount": tool.mount}[kind]
        return named is not None and matches_name(what, named, strict=strict)

    def _applies_to_caller(self, caller: RuleCaller, *, strict: bool) -> bool:
        kind, scope = split_kind(self.caller)
        if kind == "scope":  # a client may request a token with fewer scopes: that must not take it out of a rule
            wanted = frozenset((scope,))
            return caller.session.allows(wanted) if strict else caller.session.was_granted(wanted)
        return not self.caller or self.caller in caller.names


class Rules:
    """All rules of a server. `names_people`: a rule names a person that only the state knows; `names_accounts`: an
    account."""

    def __init__(self, deny: Sequence[Rule] = (), allow: Sequence[Rule] = (), approve: Sequence[Rule] = ()) -> None:
        self._deny = deny
        self._allow = allow
        self._approve = approve
        self.can_refuse = bool(deny or approve)  # an exemption alone changes nothing
        kinds = {split_kind(rule.caller)[0] for rule in self._all}
        self.names_people = not LOOKED_UP_KINDS.isdisjoint(kinds)
        self.names_accounts = PASSWORD.prefix in kinds

    def verdict(self, tool: "Tool", arguments: Mapping[str, Any], caller: RuleCaller) -> tuple[Verdict, Rule | None]:
        """Return the verdict on the call, and the rule behind it, or None."""
        rows: tuple[tuple[Verdict, Sequence[Rule], bool], ...] = (
            ("denied", self._deny, False),
            ("allowed", self._allow, True),
            ("asked", self._approve, False),
        )
        command = ShellCommand(arguments)
        for verdict, rules, surely in rows:
            for rule in rules:
                if rule.applies_to(tool, command, caller, strict=surely):
                    return verdict, rule
        return "allowed", None

    def without_denied(self, tools: Mapping[str, "Tool"]) -> Mapping[str, "Tool"]:
        """Return the tools that no rule denies to every caller."""
        plain = [rule for rule in self._deny if rule.is_plain]
        if not plain:
            return tools
        return {
            name: tool for name, tool in tools.items() if not any(rule.names_tool(tool, strict=False) for rule in plain)
        }

    def by_option(self) -> Iterator[tuple[str, Rule, bool]]:
        """Yield each rule with its option, and whether it counts only in certain cases."""
        for option, rules in (("--deny", self._deny), ("--allow", self._allow), ("--approve", self._approve)):
            yield from ((option, rule, option == "--allow") for rule in rules)

    @property
    def _all(self) -> list[Rule]:
        return [*self._deny, *self._allow, *self._approve]


def parse_rules(words: Sequence[str], name_subject: Callable[[str], str] = str) -> list[Rule]:
    """Return the rules in `words`; commas separate several in one word. `name_subject(subject)` returns the name of the
    principal with that subject. Raises ValueError."""
    return [_parse_rule(text, name_subject) for word in words for text in split_rules(word)]


def _parse_rule(text: str, name_subject: Callable[[str], str]) -> Rule:
    words = parse_rule_text(text)
    kind, subject = split_kind(words.caller)
    return Rule(text, name_subject(subject) if kind == "subject" else words.caller, words.target, words.pattern)


def matches_name(pattern: str, name: str, *, strict: bool) -> bool:
    """Return whether the name of a tool, scope, plugin or mount matches; unless `strict`, in any case."""
    return fnmatchcase(name, pattern) or (not strict and fnmatchcase(name.lower(), pattern.lower()))
