"""List the scopes of this server: what each implies, what a person is told of it, and how scopes are written.

A part (tool, prompt, resource) declares its scope, and a method in its row of the method table. The 401 and 403
challenges, the metadata and the tools' `securitySchemes` are made from here.
Source: RFC 6749 section 3.3, RFC 6750 section 3; MCP 2026-07-28 basic/authorization, "Scope Challenge Handling".
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from toolgate.tools.api.registry import Registry
from toolgate.tools.api.scopes import PLUGINS as PLUGINS
from toolgate.tools.api.scopes import READ as READ
from toolgate.tools.api.scopes import SHELL as SHELL
from toolgate.tools.api.scopes import WEB as WEB
from toolgate.tools.api.scopes import WORKFLOW as WORKFLOW

SENTENCES: Mapping[str, str] = {  # what the consent page says each one lets a client do, the gravest last
    READ: "See which tools, prompts and resources there are, look at images and files in your workspace, and read the "
    "output of your background commands.",
    WEB: "Search the web and fetch pages from it.",
    WORKFLOW: "Keep tasks, plans and reminders for you, ask you questions, and load skills.",
    PLUGINS: "Use the extra tools, prompts and resources that the operator of this server has installed.",
    SHELL: "Run any command in a shell on this server, in the background too: read, change and delete files, and start "
    "and stop programs. This is as much as a person at a terminal can do.",
}
SERVED = tuple(SENTENCES)
IMPLIED: Mapping[str, frozenset[str]] = {SHELL: frozenset((READ,))}  # a shell can read the workspace
SCOPE_PATTERN = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}")  # RFC 6749 section 3.3, of a sensible length
NOTHING: frozenset[str] = frozenset()


def has_scopes(granted: frozenset[str] | None, wanted: frozenset[str]) -> bool:
    """Whether the granted scopes allow what needs the wanted ones; None is everything."""
    return granted is None or wanted <= granted or wanted <= expand_scopes(granted)


@lru_cache(maxsize=1_024)
def expand_scopes(granted: frozenset[str]) -> frozenset[str]:
    """The scopes with all that they imply."""
    return granted.union(*(IMPLIED[scope] for scope in granted if scope in IMPLIED))


def usable_scopes(granted: frozenset[str] | None) -> frozenset[str] | None:
    """Return the granted scopes with all that they imply; None is everything."""
    return None if granted is None else expand_scopes(granted)


def list_served_scopes(registry: Registry) -> tuple[str, ...]:
    """The scopes that anything served here needs, in the table's order; then those that plugins name themselves."""
    used = {READ, *(part.scope for part in registry.parts)}
    own = sorted(scope for scope in used if scope not in SENTENCES and SCOPE_PATTERN.fullmatch(scope))
    return (*(scope for scope in SERVED if scope in used), *own)


def format_scopes(scopes: Iterable[str]) -> str:
    """Scopes as a challenge, a token or a form has them: the table's order, single spaces, nothing that could break
    out of a quoted string."""
    wanted = frozenset(scopes)
    own = sorted(scope for scope in wanted if scope not in SENTENCES and SCOPE_PATTERN.fullmatch(scope))
    return " ".join([*(scope for scope in SERVED if scope in wanted), *own])


def parse_scopes(given: object) -> frozenset[str]:
    """The scopes of a claim or a parameter: words with spaces between, or a list. What is neither holds none."""
    listed = given.split(" ") if isinstance(given, str) else given
    if not isinstance(listed, list):
        return NOTHING
    return frozenset(scope for scope in listed if isinstance(scope, str) and SCOPE_PATTERN.fullmatch(scope))


def security_schemes(scope: str) -> list[dict[str, Any]]:
    """The `securitySchemes` of a tool that needs `scope`, as hosts that ask for it spell them."""
    return [{"type": "oauth2", "scopes": [scope]}]
