"""Hold resources to the rules about the tools that give the same (`Resource.tool`).

A resource can't wait for a person's approval: what a tool gives only with approval, it does not give at all.
"""

from toolgate.server.policy.rules import RuleCaller
from toolgate.server.protocol.session import Session
from toolgate.server.server import Server


async def find_refusal(server: Server, session: Session, uri: str) -> str | None:
    """Why this caller may not read the resource; None where no rule is against it."""
    scheme = uri.partition(":")[0].lower()
    if not server.rules or scheme not in server.registry.scheme_owners:
        return None
    return _find_refusal(server, await _caller(server, session), scheme)


async def hidden_schemes(server: Server, session: Session) -> frozenset[str]:
    """The schemes of which this caller is to see nothing."""
    if not server.rules:
        return frozenset()
    caller = await _caller(server, session)
    return frozenset(
        scheme for scheme in server.registry.scheme_owners if _find_refusal(server, caller, scheme) is not None
    )


async def _caller(server: Server, session: Session) -> RuleCaller:
    return RuleCaller(await server.principal_names(session.principal), session)


def _find_refusal(server: Server, caller: RuleCaller, scheme: str) -> str | None:
    tool = server.registry.tools.get(server.registry.scheme_owners[scheme].tool or "")
    if tool is None:
        return None
    verdict, rule = server.rules.verdict(tool, {}, caller)
    if verdict == "allowed":
        return None
    if verdict == "denied":
        return f"this is refused here, as {tool.name} is, by the rule --deny {rule}"
    return f"this takes a person's approval here (--approve {rule}): call {tool.name}, which asks for it"
