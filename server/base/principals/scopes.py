"""List the scopes of this server, with what each implies and what the consent page says about it.

A part (tool, prompt, resource) declares its scope, and a method in its row of the method table. The 401 and 403
challenges, the metadata and the tools' `securitySchemes` are built from here. Source: RFC 6749 section 3.3, RFC 6750
section 3; MCP 2026-07-28 basic/authorization, "Scope Challenge Handling".
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

SENTENCES: Mapping[str, str] = {  # for the consent page
    READ: "See which tools, prompts and resources there are, look at images and files in your workspace, and read the "
    "output of your background commands.",
    WEB: "Search the web and fetch pages from it.",
    WORKFLOW: "Keep tasks, plans and reminders for you, ask you questions, and load skills.",
    PLUGINS: "Use the extra tools, prompts and resources that the operator of this server has installed.",
    SHELL: "Run any command in a shell on this server, in the background too: read, change and delete files, and start "
    "and stop programs. This is as much as a person at a terminal can do.",
}
OFFLINE = "offline_access"  # asks for a refresh token (OpenID Connect Core section 11)
STAY_SIGNED_IN = "Stay signed in until you revoke it"
WORK = "read, change and delete all files in {where}, start and stop programs{reach}."
SHELL_SENTENCES: Mapping[str, str] = {  # by the level of the sandbox
    "bwrap": "Run any shell command in a sandbox on this server, in the background too: "
    + WORK
    + " It can’t open the server’s own files{others}.",
    "uid": "Run any shell command on this server as a system user of your own, in the background too: "
    + WORK
    + " It can’t open other people’s files here, but sees what every local user of this machine sees.",
}
REACH: Mapping[str, str] = {  # by the network of sandboxed commands
    "none": ". It has no network",
    "public": ", and use the public internet",
    "all": ", and use every network that this server can reach",
}
SERVED = tuple(SENTENCES)
IMPLIED: Mapping[str, frozenset[str]] = {SHELL: frozenset((READ,))}  # a shell can read the workspace
SCOPE_PATTERN = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}")  # RFC 6749 section 3.3, with a limit
NOTHING: frozenset[str] = frozenset()


def describe_for_people(sandbox: str, network: str | None, *, is_shared: bool) -> Mapping[str, str]:
    """Return SENTENCES as they hold for a sandbox of this level and network. `network` None: the level's default.
    `is_shared`: all have one workspace."""
    if sandbox not in SHELL_SENTENCES:
        return SENTENCES
    where = "the workspace, which all people of this server share" if is_shared else "your own workspace"
    reach = REACH[network or ("public" if sandbox == "bwrap" else "none")]
    others = "" if is_shared else " or those of other people"
    return {**SENTENCES, SHELL: SHELL_SENTENCES[sandbox].format(where=where, others=others, reach=reach)}


def has_scopes(granted: frozenset[str] | None, wanted: frozenset[str]) -> bool:
    """Return whether the granted scopes allow what needs the wanted ones; None allows everything."""
    return granted is None or wanted <= granted or wanted <= expand_scopes(granted)


@lru_cache(maxsize=1_024)
def expand_scopes(granted: frozenset[str]) -> frozenset[str]:
    """Return the scopes with all implied ones."""
    return granted.union(*(IMPLIED[scope] for scope in granted if scope in IMPLIED))


def usable_scopes(granted: frozenset[str] | None) -> frozenset[str] | None:
    """Return the granted scopes with all implied ones; None: everything."""
    return None if granted is None else expand_scopes(granted)


def name_scope(scope: str) -> str:
    """Return a scope as people read it: its own name, or what `offline_access` means."""
    return STAY_SIGNED_IN if scope == OFFLINE else scope


def list_served_scopes(registry: Registry) -> tuple[str, ...]:
    """Return the scopes of everything served here, in the table's order, then those that plugins declare."""
    used = {READ, *(part.scope for part in registry.parts)}
    own = sorted(scope for scope in used if scope not in SENTENCES and SCOPE_PATTERN.fullmatch(scope))
    return (*(scope for scope in SERVED if scope in used), *own)


def needed_scopes(registry: Registry) -> frozenset[str]:
    """Return every scope that some request for what is served here needs: each part's, and those of methods."""
    return frozenset((READ, WORKFLOW, *(part.scope for part in registry.parts)))


def format_scopes(scopes: Iterable[str]) -> str:
    """Return scopes as one string for challenges, tokens and forms: in the table's order, safe within quotes."""
    wanted = frozenset(scopes)
    own = sorted(scope for scope in wanted if scope not in SENTENCES and SCOPE_PATTERN.fullmatch(scope))
    return " ".join([*(scope for scope in SERVED if scope in wanted), *own])


def parse_scopes(given: object) -> frozenset[str]:
    """Return the scopes of a claim or a parameter: words separated by spaces, or a list; anything else has none."""
    listed = given.split(" ") if isinstance(given, str) else given
    if not isinstance(listed, list):
        return NOTHING
    return frozenset(scope for scope in listed if isinstance(scope, str) and SCOPE_PATTERN.fullmatch(scope))


def security_schemes(scope: str) -> list[dict[str, Any]]:
    """Return the `securitySchemes` of a tool that needs `scope`."""
    return [{"type": "oauth2", "scopes": [scope]}]
