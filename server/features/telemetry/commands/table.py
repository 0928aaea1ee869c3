"""List the commands of the audit log."""

from toolgate.server.cli.parsing.command import Command, FeatureCommands, pick_options
from toolgate.server.config.option import Option
from toolgate.server.config.types import parse_bool

WORDS = {  # filter → its words
    "decision": (
        *("allowed", "approved", "approved_session", "approved_always", "denied", "declined", "cancelled"),
        *("unanswered", "asked", "cannot_ask", "plan", "limited", "scope", "held", "switched_off", "closed"),
    ),
    "outcome": ("ok", "error", "refused", "cancelled", "fault", "task", "asked"),
}
KEYS_TOO = pick_options("state", opens=("state", "keys"))


def _list_words(name: str) -> str:
    *words, last = WORDS[name]
    return f"{', '.join(words)} or {last}"


FILTERS = (
    Option("last", "how many calls to show (default 50; 0: all)", metavar="N"),
    Option("principal", "calls of one person: a name, or the principal in the audit log", metavar="WHO"),
    Option("tool", "calls of one tool, or of all that match a pattern such as git_*", metavar="NAME"),
    Option("since", "calls since 2026-01-31T12:00, today, yesterday, or 90m, 12h, 7d ago", metavar="WHEN"),
    Option("until", "calls until a time", metavar="WHEN"),
    Option("decision", f"calls with this decision: {_list_words('decision')}", metavar="WORD"),
    Option("outcome", f"calls that ended as {_list_words('outcome')}", metavar="WORD"),
    Option("json", "print the lines of the audit log as JSON", parse_bool),
    Option("follow", "keep printing new calls", parse_bool),
)

COMMANDS = FeatureCommands(
    commands=(
        Command(
            "audit",
            "show the newest calls in the audit log",
            "features.telemetry.commands.audit:show",
            KEYS_TOO,
            "",
            FILTERS,
            example="toolgate audit --tool Bash --since 1d",
        ),
        Command(
            "audit verify",
            "check that the audit log is complete and unchanged",
            "features.telemetry.commands.audit:verify",
            KEYS_TOO,
            example="toolgate audit verify",
        ),
    ),
    overview={"audit": "show or verify the audit log"},
)
