"""The official TypeScript client has its person sign in at a mounted server, and its call goes on."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS
from tests.interop.node import FOLDER, node, package
from tests.server.auth.minted_tokens import signed_site
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.app import SignInScene, disconnect
from tests.server.features.mounts.sign_in.far_sign_in import far_sign_in
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, Scene


@pytest.mark.brief("2026-07-28-2026-07-28")
@pytest.mark.parametrize(("mode", "revision"), [("legacy", "2025-11-25"), (STATELESS, STATELESS)])
def test_the_typescript_client_opens_the_link_and_its_call_goes_on(tmp_path: Path, mode: str, revision: str) -> None:
    package("@modelcontextprotocol/client")
    with far_sign_in() as far:
        options = write_config(tmp_path, url_mount(f"{far.origin}/mcp", "far", *AUTH))
        with signed_site(tmp_path / "server", *options) as signed:
            said, opened = talk(Scene(signed, far), mode)
            link = f"{signed.site.url}/mounts/connect?name=far"
    assert said["revision"] == revision
    assert [result["content"][0]["text"] for result in said["results"]] == ["ada-there"] * 2
    assert [each["url"] for each in opened] == [link]
    assert said["completed"] == (said["ids"] if mode == "legacy" else [])


def talk(
    scene: SignInScene, mode: str, tool: str = "far__whoami", **arguments: Any
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return what the client says at its end, and the links that its person opened."""
    scene.connect(scene.ada)
    program = [node(), str(FOLDER / "link_client.mjs")]
    words = [*program, mode, f"{scene.ada.url}/mcp", scene.ada.token, tool, json.dumps(arguments)]
    opened: list[dict[str, str]] = []
    environment = {"PATH": os.environ["PATH"]}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as client:
        assert client.stdin is not None and client.stdout is not None
        for line in client.stdout:
            told = json.loads(line)
            if "said" in told:
                return told["said"], opened
            if "listed" in told:
                disconnect(scene.ada)
            else:
                opened.append(told["open"])
                scene.connect(scene.ada)
            print("accept", file=client.stdin, flush=True)
    raise AssertionError("the client ended without a word")
