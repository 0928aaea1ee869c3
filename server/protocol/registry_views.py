"""Define what each client is served, where that differs: other servers' lists depend on the client and the person."""

from typing import Any, Protocol

import msgspec

from toolgate.server.protocol.session import Session
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.registry import Part, Registry
from toolgate.tools.api.resource import Resource


class WithheldPart(msgspec.Struct, frozen=True):
    """A part that the server of this mount lists, and that is not served: `error` says why, and `decision` is the word
    of the audit log."""

    mount: str
    part: Part
    error: ToolError
    decision: str


class RegistryViews(Protocol):
    """What is served differs between clients: other servers' lists depend on what a client can do."""

    async def prepare(self, session: Session) -> None:
        """Have what this client's lists show, or give up soon."""
        ...

    def view(self, session: Session, registry: Registry) -> Registry:
        """Return what of `registry` this client is shown: the same object until that changes."""
        ...

    def list_served_uris(self, uri: str) -> list[str]:
        """Return what a URI is served as, if several servers have it."""
        ...

    def list_skills(self, session: Session) -> list[dict[str, Any]]:
        """Return the entries of the other servers' skills, which are read under the URIs that they name."""
        ...

    def find_withheld(self, session: Session, registry: Registry, kind: str, key: str) -> WithheldPart | None:
        """Return a part that another server lists for this client and that is not served, or None. `kind`: "tools",
        "prompts" or "resources"; `key`: its name or URI."""
        ...

    def list_own(self, principal: str, registry: Registry) -> Registry:
        """Return `registry` without what other people alone are shown: the same object until that changes."""
        ...

    def hides(self, principal: str, part: Part) -> bool:
        """Return whether a principal has switched off a part of `registry`."""
        ...

    def withholds(self, principal: str, template: Resource, uri: str) -> bool:
        """Return whether a URI that matches a template is that of a part that is listed for a principal and not
        served."""
        ...

    def end_session(self, session: Session) -> None:
        """End what was kept for this session alone."""
        ...

    def instructions(self, session: Session) -> str:
        """Return what this client's model reads of the other servers, or ""."""
        ...
