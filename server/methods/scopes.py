"""Return the scopes that a request needs, by its method and the part it names.

A part (tool, prompt, resource, event) declares its own scope. A request for an unknown part needs the scope of listing.
Source: MCP 2026-07-28 basic/authorization, "Scope Challenge Handling".
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

from toolgate.server.calls.tasks import tool_of
from toolgate.server.protocol.dispatcher import NO_SCOPES, ScopesOf
from toolgate.server.protocol.resource_updates import MAX_SUBSCRIPTIONS
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.scopes import READ


@cache
def only(scope: str) -> frozenset[str]:
    """Return the set of this one scope, the same object each time."""
    return frozenset((scope,))


def fixed_scopes(*scopes: str) -> ScopesOf:
    """Return the rule for a method whose requests all need the same scopes."""
    wanted = frozenset(scopes)
    return lambda params, principal: wanted


class Serving(Protocol):
    def registry_of(self, principal: str) -> Registry:
        """Return what any client of a principal may be shown."""
        ...


class ScopeRules:
    """The rules for methods whose scopes depend on parameters. What other people alone are shown is unknown here, too:
    a refusal would tell of it."""

    def __init__(self, server: Serving) -> None:
        self._server = server

    def tool(self, params: Mapping[str, Any], principal: str) -> frozenset[str]:
        return scopes_of(self._server.registry_of(principal).tools, params.get("name"))

    def prompt(self, params: Mapping[str, Any], principal: str) -> frozenset[str]:
        return scopes_of(self._server.registry_of(principal).prompts, params.get("name"))

    def resource(self, params: Mapping[str, Any], principal: str) -> frozenset[str]:
        return self._of_uri(params.get("uri"), principal)

    def task(self, params: Mapping[str, Any], principal: str) -> frozenset[str]:
        return self._of_task(params.get("taskId"), principal)

    def completion(self, params: Mapping[str, Any], principal: str) -> frozenset[str]:
        match params.get("ref"):
            case {"type": "ref/prompt", "name": name}:
                return scopes_of(self._server.registry_of(principal).prompts, name)
            case {"type": "ref/resource", "uri": uri}:
                return self._of_uri(uri, principal)
            case _:
                return only(READ)

    def subscription(self, params: Mapping[str, Any], principal: str) -> frozenset[str]:
        """Return the scopes of listing for lists, of reading for resources. Lists too long fail later."""
        wanted = params.get("notifications")
        if not isinstance(wanted, dict):
            return only(READ)
        lists = any(value is True for value in wanted.values())
        uris, ids = wanted.get("resourceSubscriptions"), wanted.get("taskIds")
        return NO_SCOPES.union(
            only(READ) if lists else NO_SCOPES,
            *(self._of_uri(uri, principal) for uri in (uris[:MAX_SUBSCRIPTIONS] if isinstance(uris, list) else ())),
            *(self._of_task(id, principal) for id in (ids[:MAX_SUBSCRIPTIONS] if isinstance(ids, list) else ())),
        )

    def _of_uri(self, uri: object, principal: str) -> frozenset[str]:
        return self._server.registry_of(principal).scopes_of(uri) if isinstance(uri, str) else only(READ)

    def _of_task(self, id: object, principal: str) -> frozenset[str]:
        """Return the scope of the task's tool."""
        return scopes_of(self._server.registry_of(principal).tools, tool_of(id) if isinstance(id, str) else None)


def scopes_of(parts: Mapping[str, Any], name: object) -> frozenset[str]:
    """Return the scope of the part with this name, or that of listing if there is none."""
    part = parts.get(name) if isinstance(name, str) else None
    return only(part.scope if part is not None else READ)
