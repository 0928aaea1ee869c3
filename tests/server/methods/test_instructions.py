"""The instructions that a model reads before it looks at any tool."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import REVISIONS, STATELESS, Server
from tests.tools.builtin.test_contract import CONTRACT

pytestmark = pytest.mark.pairs

Start = Callable[..., Server]


def told(server: Server) -> str | None:
    hello: dict[str, Any] = server.request("server/discover") if server.revision == STATELESS else server.hello
    return hello.get("instructions")


@pytest.mark.parametrize("revision", REVISIONS)
def test_two_or_three_sentences_say_what_the_server_is_for_and_when_to_prefer_it(connect: Start, revision: str) -> None:
    text = told(connect(revision=revision))
    assert text is not None and len(text) <= 400
    assert 2 <= text.count(". ") + 1 <= 3 and text.endswith(".")
    assert "Prefer BackgroundBash to your own shell" in text and "SetCallback brings a message back" in text


def named(text: str) -> set[str]:
    return CONTRACT.keys() & set(re.findall(r"\w+", text))


@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
def test_a_tool_that_is_hidden_or_denied_is_not_advertised(start: Start, tmp_path: Path, revision: str) -> None:
    (tmp_path / "work").mkdir()
    hidden = "TOOL_BACKGROUNDBASH=0\nTOOL_SETCALLBACK=0\nTOOL_READDOCS=0\n"
    (tmp_path / "work" / "scorpiox-env.txt").write_text(hidden)
    server = start("--deny", "WebSearch", revision=revision)
    text = told(server)
    assert text is not None
    served = {tool["name"] for tool in server.request("tools/list")["tools"]}
    assert named(text) <= served
    assert {"Bash", "ReadImage", "TaskManager"} <= named(text)
    assert "Prefer" not in text and "web" not in text


@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
def test_a_server_of_plugins_alone_says_nothing_of_what_it_has_not_got(
    start: Start, tmp_path: Path, revision: str
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "scorpiox-env.txt").write_text("TOOLS=false\n")
    assert told(start(revision=revision)) is None
