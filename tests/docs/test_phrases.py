"""Phrases that new users did not understand, and what is said instead: none comes back."""

import pytest

from tests.architecture import rooms
from tests.clients.raw_client import ROOT

PHRASES = {  # what puzzled → what is said, and where
    "What goes wrong is said": ("Errors are explained", "server/cli/demo.py"),
    "What is called off ends": ("Cancelling a command", "server/cli/demo.py"),
    "the first thing to mend is": ("Fix this first", "server/cli/doctor/report.py"),
    "ReadDocs does without": ("optional: ReadDocs works without a browser", "server/cli/doctor/tools.py"),
    "an object a line": ("one object per line", "server/config/options.py"),
    "a folder a person in the state": ("one folder per user", "server/config/options.py"),
    "whom oidc, github and header let in": ("who may sign in through", "server/config/options.py"),
    "takes work: exit code": ("exit 0 if the local server is ready", "server/cli/commands.py"),
    "it can't be given": ("has no effect with --url", "server/cli/command_line.py"),
    "belongs here, and nothing else": ("and nothing else", "server/cli/command_line.py"),
    "none of its words": ("unknown command", "server/cli/command_line.py"),
    "about no tool there is": ("there is no {kind}", "server/policy/rule_check.py"),
    "commands are not kept apart": (
        "no sandbox: commands have all",
        "tools/sandbox/levels.py",
    ),
    "it must be said under which": ("the https URL that clients use", "server/http_app.py"),
    "keeps them from nothing": ("commands have all the server's permissions", "server/http_app.py"),
    "don't belong together": ("Wrong name or password.", "transports/web/login.py"),
    "that the server's log shows last": ("That code is wrong or has expired.", "transports/web/login.py"),
    **dict.fromkeys(
        (
            *(
                "Each does without the other",
                "that it takes work",
                "Whose is what",
                "Others who vouch",
                "A person's word",
            ),
            *("Put away", "has all that this process has", "an answer of yours", "Who can write at this address"),
            *("It runs and takes calls", "the middle is dropped", "Take back", "Make the first account"),
        )
    ),
}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Return what people read: the program, its pages and the docs, by path."""
    files = [ROOT / path for path in rooms.sources()]
    files += [*(ROOT / "transports/web/pages").iterdir(), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    return {str(file.relative_to(ROOT)): file.read_text() for file in files}


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_that_puzzled_does_not_come_back(phrase: str, texts: dict[str, str]) -> None:
    assert [path for path, text in texts.items() if phrase in text] == []
    instead = PHRASES[phrase]
    if instead is not None:
        assert instead[0] in texts[instead[1]]
