"""Find rules that can match no call: a slip in a name would leave open what the rule should guard.

A name must exist at the start. A glob may match a plugin that comes later, if there are plugin folders.
"""

import logging
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.server.base.principals.rule_words import split_kind
from toolgate.server.base.principals.sign_in_methods import PASSWORD
from toolgate.server.base.text import escape_unprintable, suggest
from toolgate.server.calls.policy.rules import Rule, Rules, matches_name

if TYPE_CHECKING:  # start-up: few servers have rules
    from toolgate.tools.api.registry import Registry
    from toolgate.tools.api.tool import Tool

log = logging.getLogger("toolgate")

MAX_NAMES = 40  # listed in an error

GLOB = "*?["  # a name with one of these is a pattern
PRINCIPAL = "u-…"
ACCOUNT = f"{PASSWORD.prefix}:…"

Callers = Mapping[str, Collection[str] | None]


class RuleNames(msgspec.Struct, frozen=True):
    """The names that rules can match now.

    - `plugins`: those of all plugin files, also of broken ones.
    - `scopes`: None if an external issuer chooses them.
    - `callers`: form of a caller (`account:…`) → the names, or None if they can't be listed. A form that no caller has
      is missing.
    - `mounts`: those of all mounted servers, also of unreachable ones, whose tools come when they are known.
    - `is_complete`: no tool is hidden, and no plugin file is without its tools. `can_grow`: plugins may be added.
    """

    tools: "Mapping[str, Tool]"
    plugins: Collection[str]
    scopes: Collection[str] | None
    callers: Callers
    is_complete: bool = True
    can_grow: bool = False
    mounts: Collection[str] = ()

    def find_fault(self, rule: Rule, *, strict: bool) -> tuple[str, bool]:
        """Return why the rule can match no call, or "", and whether that is final; `strict` as in `Rule.applies_to`."""
        fault = self._find_caller_fault(rule)
        if fault:
            return fault, True
        kind, what = split_kind(rule.target)
        is_glob = any(map(what.__contains__, GLOB))
        places = {"plugin": self.plugins, "mount": self.mounts}.get(kind)
        if places is not None:
            is_found = any(matches_name(what, name, strict=strict) for name in places)
            return "" if is_found else _describe_missing(kind, what, places), not (is_glob and self.can_grow)
        matched = [tool for tool in self.tools.values() if rule.names_tool(tool, strict=strict)]
        if matched:
            takes_command = rule.pattern is None or any(map(_may_take_command, matched))
            return "" if takes_command else f"{matched[0].name} has no argument `command` for a pattern", True
        if kind == "scope" and what in (self.scopes or ()):
            return "", True
        known = sorted({tool.scope for tool in self.tools.values()}.union(self.scopes or ())) if kind else self.tools
        may_come = bool(self.mounts) or (self.can_grow if is_glob else not self.is_complete)
        return _describe_missing(kind or "tool", what, known), not may_come

    def _find_caller_fault(self, rule: Rule) -> str:
        """Return why no caller has the rule's name, or ""."""
        if not rule.caller:
            return ""
        kind, name = split_kind(rule.caller)
        if kind == "scope":
            is_known = self.scopes is None or name in self.scopes
            return "" if is_known else _describe_missing(kind, name, self.scopes or ())
        form = f"{kind}:…" if kind else LOCAL_NAME if name == LOCAL_NAME else PRINCIPAL
        known = self.callers.get(form, ())
        if known is None or name in known:
            return ""
        if form == ACCOUNT and form in self.callers:
            return f"{_describe_missing(kind, name, known)}; toolgate user add {name} adds it"
        return f"no caller here is {rule.text.partition('=')[0]}; callers are {', '.join([*self.callers, 'scope:…'])}"


class RuleCheck:
    """Refuse rules that match nothing at the start, and log those that match nothing any more.

    `find_names(registry)` returns what rules can name now.
    """

    def __init__(self, rules: Rules, find_names: Callable[["Registry"], RuleNames]) -> None:
        self._rules = rules
        self._find_names = find_names
        self._logged: set[str] = set()

    def refuse(self, registry: "Registry") -> None:
        """Raise UsageError for the first rule that can match no call; log those that may match one later."""
        for rule, fault, is_final in self.find_faults(registry):
            if is_final:
                raise UsageError(f"{rule}: {fault}")
        self.warn(registry)

    def warn(self, registry: "Registry") -> None:
        """Log the rules that match no call now, each once until it matches one."""
        faults = {rule: fault for rule, fault, _ in self.find_faults(registry)}
        for rule, fault in faults.items():
            if rule not in self._logged:
                log.warning("%s matches nothing now: %s", rule, fault)
        self._logged = set(faults)

    def find_faults(self, registry: "Registry") -> list[tuple[str, str, bool]]:
        """Return the rules that match no call, each with its option, why, and whether that is final."""
        rules = list(self._rules.by_option())
        if not rules:
            return []
        names = self._find_names(registry)
        found = [(f"{option} {rule}", *names.find_fault(rule, strict=strict)) for option, rule, strict in rules]
        return [row for row in found if row[1]]


def _may_take_command(tool: "Tool") -> bool:
    """Return whether calls may have the argument that patterns match."""
    return "command" in tool.input.get("properties", {}) or tool.input.get("additionalProperties", True) is not False


def _describe_missing(kind: str, name: str, known: Collection[str]) -> str:
    if not known:
        return f"there is no {kind} {name}: there is none yet"
    listed = [escape_unprintable(each) for each in known]
    more = f" and {len(listed) - MAX_NAMES} more" if len(listed) > MAX_NAMES else ""
    found = f"no {kind} matches {name}" if any(map(name.__contains__, GLOB)) else f"there is no {kind} {name}"
    near = suggest(name, listed)
    if not near and "Bash" in known and re.fullmatch(r"[a-z][a-z0-9._-]*", name):  # a program, as in 'rm *'
        near = f" (did you mean Bash({name} *)?)"
    return f"{found}{near}; {kind}s are {', '.join(listed[:MAX_NAMES])}{more}"
