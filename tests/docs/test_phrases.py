"""Phrases that new users did not understand, and what is said instead: none comes back."""

import re

import pytest

from tests.architecture import rooms
from tests.clients.raw_client import ROOT

PHRASES = {  # what puzzled → what is said, and where
    "What goes wrong is said": ("Errors are explained", "server/cli/commands/demo.py"),
    "What is called off ends": ("Cancelling a command", "server/cli/commands/demo.py"),
    "the first thing to mend is": ("Fix this first", "server/cli/doctor/report.py"),
    "ReadDocs does without": ("optional: ReadDocs works without a browser", "server/cli/doctor/tools.py"),
    "an object a line": ("one object per line", "server/config/options.py"),
    "a folder a person in the state": ("one folder per user", "server/config/options.py"),
    "whom oidc, github and header let in": ("who may sign in through", "server/config/options.py"),
    "takes work: exit code": ("exit 0 if the local server is ready", "server/cli/parsing/commands.py"),
    "it can't be given": ("has no effect with --url", "server/cli/parsing/command_line.py"),
    "belongs here, and nothing else": ("{missing} is missing", "server/cli/parsing/command_line.py"),
    "none of its words": ("unknown command", "server/cli/parsing/command_line.py"),
    "about no tool there is": ("there is no {kind}", "server/calls/policy/rule_check.py"),
    "commands are not kept apart": (
        "no sandbox: commands have all",
        "tools/workspace/sandbox/levels.py",
    ),
    "it must be said under which": ("the https URL that clients use", "server/app/http_checks.py"),
    "keeps them from nothing": ("commands have all the server's permissions", "server/app/http_checks.py"),
    "don't belong together": ("Wrong name or password.", "transports/web/login.py"),
    "that the server's log shows last": ("That code is wrong or has expired.", "transports/web/login.py"),
    "Each does without the other": ("You can enable either or both", "docs/overview.md"),
    "sets out to kill the processes": ("deliberately kills its", "docs/quickstart-local.md"),
    "that it takes work": ("while it accepts requests", "docs/overview.md"),
    "Whose is what": ("Per-user data.", "docs/overview.md"),
    "Others who vouch": ("External sign-in.", "docs/overview.md"),
    "A person's word": ("**Approvals.**", "docs/overview.md"),
    "Put away": ("**Cleanup.**", "docs/overview.md"),
    "that is the program": ("has the full map", "README.md"),
    "has all that this process has": ("Run any command in a shell on this server", "server/base/principals/scopes.py"),
    "an answer of yours": ("Notify me when something waits", "transports/web/pages/home.html"),
    "Who can write at this address": (
        "The name comes from this address; check that you trust it.",
        "transports/web/pages/consent.html",
    ),
    "It runs and takes calls": ("The server accepts calls.", "transports/web/pages/home_parts.html"),
    "the middle is dropped": ("is cut in the middle; the result names a file", "tools/builtin/shell.py"),
    "Take back": ('"Revoke"', "transports/web/pages/account.html"),
    "Make the first account": ("Create the first account", "transports/web/pages/pairing.html"),
    "Who may come no more": ("Removing access", "docs/oauth.md"),
    "when not every client shall be able to ask": ("accepted clients", "docs/oauth.md"),
    "Who wants the end of it": ("To follow the end of it", "docs/tools.md"),
    "anew": ("approve it again", "transports/web/pages/account.html"),
    "mend": ("Fix this first", "server/cli/doctor/report.py"),
    "mends": ("fixes a line", "docs/comparison.md"),
}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Return what people read: the program, its pages and the docs, by path."""
    files = [ROOT / path for path in rooms.sources()]
    files += [*(ROOT / "transports/web/pages").iterdir(), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    return {str(file.relative_to(ROOT)): file.read_text() for file in files}


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_that_puzzled_does_not_come_back(phrase: str, texts: dict[str, str]) -> None:
    pattern = re.compile(rf"\b{re.escape(phrase)}\b")
    assert [path for path, text in texts.items() if phrase in text and pattern.search(text)] == []
    instead, path = PHRASES[phrase]
    assert instead in texts[path]
