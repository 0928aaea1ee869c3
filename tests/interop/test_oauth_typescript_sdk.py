"""The official TypeScript client signs in to the real server, calls, and continues after its token has ended."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from tests.interop.node import FOLDER, node, package
from tests.interop.official_clients import AUTO, OVER_HTTP, THIRTEEN, Negotiation, crossed
from tests.interop.sign_in_server import WAYS_IN, SignInServer, sign_in_server
from toolgate.server.base.principals.scopes import READ, SHELL, WEB, WORKFLOW


@pytest.mark.brief("http 2026-07-28-dynamic")
@pytest.mark.brief("http 2026-07-28-dynamic", "sse legacy-document")
@pytest.mark.parametrize(("way", "known"), crossed(OVER_HTTP, WAYS_IN, later=AUTO))
def test_the_typescript_client_signs_in_calls_and_outlives_its_token(
    tmp_path: Path, way: Negotiation, known: str
) -> None:
    with sign_in_server(tmp_path, short_tokens=True) as gate:
        said = _carried_out(gate, way, known)
        assert said["tools"] == THIRTEEN
        assert said["revision"] == ("2025-11-25" if way.mode == "legacy" else "2026-07-28")
        assert said["first"]["content"] == [{"type": "text", "text": "one\n"}]
        assert said["second"]["content"] == [{"type": "text", "text": "two\n"}]
        assert said["visits"] == len(gate.person.asked) == 1  # no second question
        first, last = said["issued"][0], said["issued"][-1]
        assert first["access"] != last["access"]
        assert first["refresh"] != last["refresh"]
        for issued in (first, last):
            assert {READ, WEB, WORKFLOW, SHELL} <= set(issued["scope"].split())
        assert (said["client"]["client_id"] == gate.document) is (known == "document")
        assert len(gate.fetched) == (known == "document")


def _carried_out(gate: SignInServer, way: Negotiation, known: str) -> dict[str, Any]:
    """Return the client's output; the person follows its URL."""
    package("@modelcontextprotocol/client")
    words = [way.mode, gate.url(way.carrier), *([gate.document] if known == "document" else [])]
    with subprocess.Popen(
        [node(), str(FOLDER / "oauth_client.mjs"), *words],
        env={"PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            for line in process.stdout:
                told = json.loads(line)
                if "said" in told:
                    assert process.wait(PATIENCE) == 0
                    return dict(told["said"])
                answer = gate.person.decide(told["visit"]) if "visit" in told else ""
                if "token" in told:
                    gate.outlive(told["token"])
                process.stdin.write(answer + "\n")
                process.stdin.flush()
            raise AssertionError(process.stderr.read())
        finally:
            process.kill()
