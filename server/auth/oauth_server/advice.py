"""Advise a person whose app's metadata document can't be used. Fixed sentences, by the clients the server takes."""

from collections.abc import Collection
from dataclasses import dataclass

AGAIN = "Connect again from the app in a minute: it may then register itself."
ANEW = "Remove this server in the app, add it anew and connect: the app then registers itself."
LET_REGISTER = ("The operator of this server can let apps register themselves", "--registration dynamic")
ADD = ("The operator of this server can add the app", "toolgate client add")
CODEX = ("Codex", "codex mcp login NAME --oauth-client-registration dcr")
CLAUDE_CODE = (
    "Claude Code, with the ID that “toolgate client add” prints",
    "claude mcp add --transport http --client-id ID --callback-port 3118 NAME URL",
)


@dataclass(frozen=True, slots=True)
class Advice:
    """`commands` are options and commands, each behind the words that say whose."""

    sentences: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]


def advise(kinds: Collection[str], *, unreached: bool) -> Advice:
    """What to do on a server that takes clients of these `kinds`; `unreached`: it can't reach the document."""
    if "dynamic" not in kinds:
        return Advice((), (ADD, LET_REGISTER, CLAUDE_CODE))
    if "document" not in kinds:
        return Advice((ANEW,), (CODEX, CLAUDE_CODE))
    return Advice((AGAIN,) if unreached else (), (LET_REGISTER, CODEX, CLAUDE_CODE))
