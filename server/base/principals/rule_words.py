"""Read how a rule of --deny, --allow and --approve is written, without deciding anything.

    [WHO=]WHAT[(PATTERN)]        Bash(git push*)      scope:tools:web      account:ada=plugin:weather

WHAT is a glob of tool names, `scope:` and a glob of scopes, or `plugin:` or `mount:` and a glob of their names. PATTERN
is matched with the argument `command`. WHO is a name of the caller (`auth/principal_names.py`), or `scope:` and a scope
granted to them.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from toolgate.server.base.principals.sign_in_methods import SIGN_IN_METHODS

MAX_RULE = 500  # characters
RULE = r"(?s)(?:(?P<who>[^()]*)=)?(?P<what>[^=()]*)(?:\((?P<pattern>.+)\))?"  # compiled when it is needed: start-up
GLOB = r"[A-Za-z0-9_.*?\[\]!-]+"
SCOPE = r"[\x21\x23-\x27\x2a-\x5b\x5d-\x7e]+"  # without parentheses
TARGET_KINDS: Mapping[str, str] = {"": GLOB, "scope": SCOPE, "plugin": r"[^\s,]+", "mount": GLOB}
CALLER_KINDS: Mapping[str, str] = {
    "": r"local|u-[0-9a-f]{40}",
    "scope": SCOPE,
    "subject": r".+",
    **{method.prefix: r".+" for method in SIGN_IN_METHODS},
}
RULE_FORM = "[WHO=]WHAT[(PATTERN)], such as Bash, scope:tools:web or Bash(git push*)"


class RuleWords(NamedTuple):
    """The parts of a rule: `caller` is "" for everybody, `pattern` None for any arguments."""

    caller: str
    target: str
    pattern: str | None


def check_rule_word(word: str) -> str:
    """Return the word if all rules in it are valid. Raises ValueError."""
    if not [parse_rule_text(text) for text in split_rules(word)]:
        raise ValueError(f"{word!r} has no rule: a rule is {RULE_FORM}")
    return word


def split_rules(word: str) -> list[str]:
    """Split a list of rules at commas and white space outside of parentheses; if it has only names, at ":" too."""
    names = word.split(":")
    if all(re.fullmatch(GLOB, name) and name not in TARGET_KINDS and name not in CALLER_KINDS for name in names):
        return names
    found, depth = [""], 0
    for character in word:
        depth = max(0, depth + {"(": 1, ")": -1}.get(character, 0))
        if depth == 0 and re.match(r"[,\s]", character):
            found.append("")
        else:
            found[-1] += character
    return [text for text in found if text]


def parse_rule_text(text: str) -> RuleWords:
    """Return the parts of one rule. Raises ValueError."""
    read = re.fullmatch(RULE, text)
    if read is None or len(text) > MAX_RULE or not text.isprintable():
        raise ValueError(f"{text[:MAX_RULE]!r} is not a rule: a rule is {RULE_FORM}")
    who, what = read["who"], read["what"]
    if who is None and split_kind(what)[0] in CALLER_KINDS.keys() - TARGET_KINDS.keys():
        raise ValueError(f"{text!r} is a caller: add what the rule is about, such as {what}=Bash")
    if not _is_one_of(TARGET_KINDS, what):
        kinds = "the name of a tool, a glob, scope:SCOPE, plugin:NAME or mount:NAME"
        raise ValueError(f"{text!r}: {what!r} must be {kinds}")
    if who is not None and not _is_one_of(CALLER_KINDS, who):
        known = ", ".join(f"{kind}:…" for kind in CALLER_KINDS if kind)
        raise ValueError(f"{text!r}: {who!r} is not a caller: callers are local, u-…, {known}")
    return RuleWords(who or "", what, read["pattern"])


def split_kind(word: str) -> tuple[str, str]:
    """Split a kind from its value: "scope:tools:web" → "scope" and "tools:web"; "Bash" → "" and "Bash"."""
    kind, colon, rest = word.partition(":")
    return (kind, rest) if colon else ("", word)


def _is_one_of(kinds: Mapping[str, str], word: str) -> bool:
    kind, rest = split_kind(word)
    return kind in kinds and re.fullmatch(kinds[kind], rest) is not None
