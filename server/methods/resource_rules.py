"""Hold resources to the rules about the tools that give the same (`Resource.tool`).

A resource can't wait for a person's approval: what a tool gives only with approval, it does not give at all.
"""

from toolgate.server.protocol.session import Session
from toolgate.server.server import Server


async def find_refusal(server: Server, session: Session, uri: str) -> str | None:
    """Return why this caller may not read the resource, or None."""
    scheme = uri.partition(":")[0].lower()
    if not server.policy.rules or scheme not in server.registry.scheme_owners:
        return None
    return await _refuse(server, session, scheme)


async def hidden_schemes(server: Server, session: Session) -> frozenset[str]:
    """Return the schemes whose resources this caller may not see."""
    if not server.policy.rules:
        return frozenset()
    schemes = server.registry.scheme_owners
    return frozenset([scheme for scheme in schemes if await _refuse(server, session, scheme) is not None])


async def _refuse(server: Server, session: Session, scheme: str) -> str | None:
    tool = server.registry.tools.get(server.registry.scheme_owners[scheme].tool or "")
    if tool is None:
        return None
    verdict, rule = await server.policy.verdict(session, tool, {})
    if verdict == "allowed":
        return None
    if verdict == "denied":
        return f"this is refused here, as {tool.name} is, by the rule --deny {rule}"
    return f"this takes a person's approval here (--approve {rule}): call {tool.name}, which asks for it"
