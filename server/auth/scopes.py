"""What a caller must be allowed for what they ask: the one table of scopes. Knows messages and the registry; knows
nothing of tokens or HTTP.

A part (tool, prompt, resource) says its scope where it is declared; here stand the methods, the URI schemes, which
scope implies which, and what a person is told of each. What is served as 401 and 403 challenges, in the metadata and
in the tools' `securitySchemes`, comes from here.
Source: RFC 6749 section 3.3, RFC 6750 section 3; MCP 2026-07-28 basic/authorization, "Scope Challenge Handling".
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from typing import Any

from toolgate.server.protocol.messages import Inbound, Request
from toolgate.server.protocol.resource_updates import MAX_SUBSCRIPTIONS
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.uri_templates import MAX_URI, parse_scheme

READ, WEB, WORKFLOW, SHELL, PLUGINS = "tools:read", "tools:web", "tools:workflow", "tools:shell", "tools:plugins"

SENTENCES: Mapping[str, str] = {  # what the consent page says each one lets a client do, the gravest last
    READ: "See which tools, prompts and resources there are, look at images and files in your workspace, and read the "
    "output of your background commands.",
    WEB: "Search the web and fetch pages from it.",
    WORKFLOW: "Keep tasks, plans and reminders for you, ask you questions, and load skills.",
    PLUGINS: "Use the extra tools, prompts and resources that whoever runs this server has installed.",
    SHELL: "Run any command in a shell on this server, in the background too: read, change and delete files, and start "
    "and stop programs. This is as much as a person at a terminal can do.",
}
SERVED = tuple(SENTENCES)
IMPLIED: Mapping[str, frozenset[str]] = {SHELL: frozenset((READ,))}  # whoever has a shell can read what a shell can
SCHEMES: Mapping[str, str] = {  # URI scheme → scope; a resource's own scope is needed besides
    "bg": SHELL,
    "callback": WORKFLOW,
    "task": WORKFLOW,
    "plan": WORKFLOW,
    "skill": WORKFLOW,
    "file": READ,
}
WORD = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}")  # RFC 6749 section 3.3, of a sensible length
NOTHING: frozenset[str] = frozenset()

TaskTool = Callable[[str], str | None]  # task id → the name of the tool that runs it; None: no such task


class ScopeRequest:
    """One request being looked at. `task_tool` is None as long as no tasks are served."""

    __slots__ = ("params", "registry", "task_tool")

    def __init__(self, params: Mapping[str, Any], registry: Registry, task_tool: TaskTool | None) -> None:
        self.params = params
        self.registry = registry
        self.task_tool = task_tool


def required_scopes(
    message: Inbound | list[Inbound], registry: Registry, task_tool: TaskTool | None = None
) -> frozenset[str]:
    """All scopes that `message` needs: for a batch what any of its requests needs, so that none hides in it.

    What is no request needs none: notifications and answers start nothing.
    """
    if isinstance(message, Request):
        row = METHODS.get(message.method)
        return row(ScopeRequest(message.params, registry, task_tool)) if row is not None else NOTHING
    if isinstance(message, list):
        return NOTHING.union(
            *(required_scopes(part, registry, task_tool) for part in message if isinstance(part, Request))
        )
    return NOTHING


def has_scopes(granted: frozenset[str] | None, wanted: frozenset[str]) -> bool:
    """Whether whoever was `granted` these may do what needs those; None is everything."""
    return granted is None or wanted <= granted or wanted <= expand_scopes(granted)


@lru_cache(maxsize=1_024)
def expand_scopes(granted: frozenset[str]) -> frozenset[str]:
    """The scopes with all that they imply."""
    return granted.union(*(IMPLIED[scope] for scope in granted if scope in IMPLIED))


def usable_scopes(granted: frozenset[str] | None) -> frozenset[str] | None:
    """All that whoever was granted these may use; None is everything."""
    return None if granted is None else expand_scopes(granted)


def list_served_scopes(registry: Registry) -> tuple[str, ...]:
    """The scopes that anything served here needs, in the table's order; then those that plugins name themselves."""
    used = {READ, *(part.scope for part in registry.parts)}
    own = sorted(scope for scope in used if scope not in SENTENCES and WORD.fullmatch(scope))
    return (*(scope for scope in SERVED if scope in used), *own)


def format_scopes(scopes: Iterable[str]) -> str:
    """Scopes as a challenge, a token or a form has them: the table's order, single spaces, nothing that could break
    out of a quoted string."""
    wanted = frozenset(scopes)
    own = sorted(scope for scope in wanted if scope not in SENTENCES and WORD.fullmatch(scope))
    return " ".join([*(scope for scope in SERVED if scope in wanted), *own])


def parse_scopes(given: object) -> frozenset[str]:
    """The scopes of a claim or a parameter: words with spaces between, or a list. What is neither holds none."""
    listed = given.split(" ") if isinstance(given, str) else given
    if not isinstance(listed, list):
        return NOTHING
    return frozenset(scope for scope in listed if isinstance(scope, str) and WORD.fullmatch(scope))


def security_schemes(scope: str) -> list[dict[str, Any]]:
    """The `securitySchemes` of a tool that needs `scope`, as hosts that ask for it spell them."""
    return [{"type": "oauth2", "scopes": [scope]}]


# -- the rows: what one request needs


@cache
def _alone(scope: str) -> frozenset[str]:
    return frozenset((scope,))


def _nothing(_asked: ScopeRequest) -> frozenset[str]:
    return NOTHING


def _read(_asked: ScopeRequest) -> frozenset[str]:
    return _alone(READ)


def _tool(asked: ScopeRequest) -> frozenset[str]:
    return _of_part(asked.registry.tools, asked.params.get("name"))


def _prompt(asked: ScopeRequest) -> frozenset[str]:
    return _of_part(asked.registry.prompts, asked.params.get("name"))


def _of_part(parts: Mapping[str, Any], name: object) -> frozenset[str]:
    """The part's own scope. To learn that there is no such part takes what listing them takes."""
    part = parts.get(name) if isinstance(name, str) else None
    return _alone(part.scope if part is not None else READ)


def _resource(asked: ScopeRequest) -> frozenset[str]:
    return scopes_of_uri(asked.registry, asked.params.get("uri"))


def scopes_of_uri(registry: Registry, uri: object) -> frozenset[str]:
    """What reading it takes: what the scheme needs and what the resource behind this URI says itself."""
    if not isinstance(uri, str) or len(uri) > MAX_URI:
        return _alone(READ)
    row = SCHEMES.get(parse_scheme(uri).lower())
    wanted = registry.scopes_of(uri) | (_alone(row) if row is not None else NOTHING)
    if uri in registry.templates:  # a completion names a template by its text
        wanted |= _alone(registry.templates[uri].scope)
    return wanted or _alone(READ)


def _completion(asked: ScopeRequest) -> frozenset[str]:
    match asked.params.get("ref"):
        case {"type": "ref/prompt", "name": name}:
            return _of_part(asked.registry.prompts, name)
        case {"type": "ref/resource", "uri": uri}:
            return scopes_of_uri(asked.registry, uri)
        case _:
            return _alone(READ)


def _listen(asked: ScopeRequest) -> frozenset[str]:
    """News of the lists is for who may list; of a resource for who may read it. Longer lists of URIs are refused."""
    wanted = asked.params.get("notifications")
    if not isinstance(wanted, dict):
        return _alone(READ)
    uris = wanted.get("resourceSubscriptions")
    listed = uris[:MAX_SUBSCRIPTIONS] if isinstance(uris, list) else []
    lists = any(value is True for value in wanted.values())
    tasks = wanted.get("taskIds")
    ids = tasks[:MAX_SUBSCRIPTIONS] if isinstance(tasks, list) else []
    return NOTHING.union(
        _alone(READ) if lists else NOTHING,
        *(scopes_of_uri(asked.registry, uri) for uri in listed),
        *(_of_task(asked, id) for id in ids),
    )


def _task(asked: ScopeRequest) -> frozenset[str]:
    return _of_task(asked, asked.params.get("taskId"))


def _skills(_asked: ScopeRequest) -> frozenset[str]:
    return _alone(SCHEMES["skill"])


def _of_task(asked: ScopeRequest, id: object) -> frozenset[str]:
    """A task carries the scope of its tool."""
    name = asked.task_tool(id) if asked.task_tool is not None and isinstance(id, str) else None
    return _of_part(asked.registry.tools, name)


METHODS: Mapping[str, Callable[[ScopeRequest], frozenset[str]]] = {
    "initialize": _nothing,
    "ping": _nothing,
    "server/discover": _nothing,
    "logging/setLevel": _nothing,
    "tools/list": _read,
    "tools/call": _tool,
    "prompts/list": _read,
    "prompts/get": _prompt,
    "resources/list": _read,
    "resources/templates/list": _read,
    "resources/read": _resource,
    "resources/subscribe": _resource,
    "resources/unsubscribe": _resource,
    "completion/complete": _completion,
    "subscriptions/listen": _listen,
    "skills/list": _skills,
    "skills/get": _skills,
    "resources/directory/read": _resource,
    "tasks/get": _task,
    "tasks/update": _task,
    "tasks/cancel": _task,
}
