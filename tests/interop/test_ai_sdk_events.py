"""The AI SDK's client (npm's `@ai-sdk/mcp`) subscribes by webhook to the real server with sign-in, and its receiver
verifies what is delivered."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.interop.node import FOLDER, node, package
from tests.server.auth.minted_tokens import asked
from tests.server.auth.test_revocation_watch import account, granted
from tests.server.features.events.test_webhooks import trusting_site
from tests.server.features.events.webhooks.fake_authority import FakeAuthority

MOST = 50  # lines of the client until one that is waited for


class EventClient:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def do(self, step: str) -> Any:
        """Take a step, and return its result."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{step}\n")
        self._process.stdin.flush()
        return self.wait(step)

    def wait(self, name: str) -> Any:
        """Return the value of the client's next line of this name."""
        assert self._process.stdout is not None
        for _ in range(MOST):
            line = json.loads(self._process.stdout.readline())
            assert not {"failed", "error"} & line.keys(), line
            if name in line:
                return line[name]
        raise AssertionError(f"{name} did not come")


@pytest.mark.brief("discover")
@pytest.mark.parametrize("era", ["discover", "initialize"])
def test_the_ai_sdk_is_woken_when_a_build_ends(tmp_path: Path, era: str) -> None:
    package("@ai-sdk/mcp")
    authority = FakeAuthority(tmp_path)
    authority.issue("localhost")
    with trusting_site(tmp_path / "server", authority) as signed:
        person = account(signed, "ada")
        granted(signed, person, "one")
        token = signed.token(person, "one", noted=False)
        words = [f"{signed.site.url}/mcp", token, str(tmp_path / "localhost.pem"), era]
        with subprocess.Popen(
            [node(), str(FOLDER / "event_client.mjs"), *words],
            env={"PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                client = EventClient(process)
                listed = client.do("list")
                types = listed["events"] if isinstance(listed, dict) else listed
                assert "command.ended" in {type["name"] for type in types}
                made = client.do("subscribe")
                build = {"name": "BackgroundBash", "arguments": {"command": "echo built; exit 2"}}
                asked(signed, token, "tools/call", build)
                event = client.wait("event")
                assert (event["name"], event["data"]["exit_code"]) == ("command.ended", 2)
                assert client.wait("answered") == 204
                assert client.do("refresh")["id"] == made["id"]
                asked(signed, token, "tools/call", build)
                assert client.wait("event")["data"]["id"] == 2
                asked(signed, token, "toolgate/events/test", {"name": "command.ended"})
                assert client.wait("event")["data"]["is_test"] is True
                assert client.wait("answered") == 204
                assert client.do("unsubscribe") == 0
            finally:
                process.kill()
