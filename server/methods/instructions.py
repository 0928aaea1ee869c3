"""What a model is told of this server before it looks at any tool: `instructions` of initialize and server/discover.

Clients that load tools on demand show little else: it says what the server is for, and when to prefer it to what the
client has of its own. Only tools that are served are named.
"""

from collections.abc import Collection

FAMILIES = (  # what the tools are for → the tools
    ("commands", ("Bash", "BackgroundBash")),
    ("the web", ("ReadDocs", "WebSearch")),
    ("pictures", ("ReadImage",)),
    ("to-do lists and plans", ("TaskManager", "PlanMode")),
    ("skills", ("InvokeSkill",)),
    ("questions to the person", ("AskUserQuestion",)),
)
PREFERENCES = (  # tool → when it is the one to take
    (
        "BackgroundBash",
        "Prefer BackgroundBash to your own shell for servers, builds and what should go on while you work.",
    ),
    ("SetCallback", "SetCallback brings a message back to you later."),
)


def instructions(served: Collection[str]) -> str | None:
    """The text for a server with these tools; None where none of the built-in ones is served."""
    families = [
        f"{purpose} ({', '.join(names)})"
        for purpose, among in FAMILIES
        if (names := [name for name in among if name in served])
    ]
    sentences = [f"Tools on the machine of this server: {', '.join(families)}."] if families else []
    return " ".join([*sentences, *(text for name, text in PREFERENCES if name in served)]) or None
