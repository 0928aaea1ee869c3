"""The official conformance suite for authorization servers against the real server: metadata, and the code grant of
listed clients."""

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, eventually
from tests.interop.node import node, package
from tests.interop.official_clients import crossed
from tests.interop.sign_in_server import SignInServer, sign_in_server, visit
from tests.servers.reserved_port import kept_port

SECRET = "twenty-six-letters-of-secret"
QUESTION = re.compile(r"^https?://\S+code_challenge\S+$", re.MULTILINE)
REVISIONS = ["2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
SCENARIOS = {"authorization-server-metadata-endpoint", "authorization-code-grant"}
NO_DOCUMENTS = [("authorization-server-metadata-cimd", "WARNING")]  # as intended: only listed clients are allowed
OPTIONS = {"public": (), "confidential": ("--registration", "closed")}
CLIENT = """
[[client]]
id = "{0}"
redirect_uris = ["http://127.0.0.1/callback"]
"""
CLIENTS = {
    "public": CLIENT.format("public"),
    "confidential": CLIENT.format("confidential") + f'secret = "{SECRET}"\n',
}


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SignInServer]]:
    """Yield a server for each kind of client. The suite uses no secret if the metadata allows that, so the one for
    confidential clients allows no others."""
    with contextlib.ExitStack() as stack:
        made: dict[str, SignInServer] = {}
        for client, options in OPTIONS.items():
            folder = tmp_path_factory.mktemp(client)
            (folder / "clients.toml").write_text(CLIENTS[client])
            listed = ("--clients", str(folder / "clients.toml"))
            made[client] = stack.enter_context(sign_in_server(folder / "site", *listed, *options))
        yield made


@pytest.mark.brief("2025-11-25-/sse-confidential", "2026-07-28--public")
@pytest.mark.brief(
    "2025-06-18-/mcp-public", "2025-11-25-/sse-confidential", "2026-07-28--public", "2026-07-28--confidential"
)
@pytest.mark.parametrize("client", list(OPTIONS))
@pytest.mark.parametrize(("revision", "resource"), crossed(REVISIONS, ["", "/mcp", "/sse"]))
def test_the_suite_finds_nothing_wrong_with_the_authorization_server(
    tmp_path: Path, gates: dict[str, SignInServer], revision: str, client: str, resource: str
) -> None:
    gate = gates[client]
    options = ["--client-id", client, "--spec-version", revision]
    options += ["--client-secret", SECRET] if client == "confidential" else []
    options += ["--resource", gate.site.url + resource] if resource else []
    code, said = carry_out(tmp_path, gate, *options)
    assert code == 0, said
    found = dict(_found(tmp_path))
    assert found.keys() == SCENARIOS
    for scenario, checks in found.items():
        assert checks
        faults = [check for check in checks if check[1] not in ("SUCCESS", "INFO")]
        assert faults in ([], NO_DOCUMENTS if client == "confidential" else []), scenario
        assert any(status == "SUCCESS" for _, status in checks)


def carry_out(folder: Path, gate: SignInServer, *options: str) -> tuple[int, str]:
    """Return the suite's exit code and output; the person follows its URLs."""
    program = package("conformance-0.2") / "dist" / "index.js"
    port = kept_port()
    log = folder / "said.log"
    with (
        log.open("wb") as said,
        subprocess.Popen(
            [
                node(),
                str(program),
                "authorization",
                "--url",
                gate.site.url,
                "-p",
                str(port),
                "-o",
                str(folder),
                *options,
            ],
            env={"PATH": os.environ["PATH"], "HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        ) as process,
    ):
        try:
            assert eventually(lambda: QUESTION.search(log.read_text()) or process.poll() is not None), log.read_text()
            question = QUESTION.search(log.read_text())
            assert question, log.read_text()
            visit(gate.person.decide(question[0]))
            return process.wait(PATIENCE), log.read_text()
        finally:
            process.kill()


def _found(folder: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    for file in folder.glob("**/checks.json"):
        checks: list[Any] = json.loads(file.read_text())
        name = re.sub(r"^authorization-server-(?=auth)|-\d{4}-\d\d-\d\dT.*$", "", file.parent.name)
        yield name, [(check["id"], check["status"]) for check in checks]
