"""The official Inspector's command line against the real server process. Its exit codes: 0 success, 5 an error of the
tool, 6 a schema that some client rejects."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import COMMAND, PATIENCE
from tests.clients.raw_http_client import site
from tests.interop.node import node, package
from tests.interop.official_clients import THIRTEEN

eras = pytest.mark.parametrize("era", ["legacy", "modern"])


def inspect(folder: Path, era: str, *arguments: str) -> tuple[int, Any, str]:
    """Return the Inspector's exit code, its decoded output, and its errors."""
    launcher = package("@modelcontextprotocol/inspector") / "clients" / "launcher" / "build" / "index.js"
    options = ["--protocol-era", era, *arguments, "--format", "json"]
    ended = subprocess.run(
        [node(), str(launcher), "--cli", *options, "--", COMMAND, "--state", str(folder / "state")],
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=2 * PATIENCE,
    )
    said = ended.stdout.strip()
    return ended.returncode, json.loads(said) if said else None, ended.stderr.decode()


@eras
def test_the_inspector_lists_the_thirteen_and_finds_no_fault_with_their_schemas(tmp_path: Path, era: str) -> None:
    code, said, besides = inspect(tmp_path, era, "--method", "tools/list", "--strict")
    assert code == 0, besides
    assert [tool["name"] for tool in said["result"]["tools"]] == THIRTEEN
    assert besides == ""  # not even a warning


@pytest.mark.brief("modern")
@eras
def test_the_inspector_calls_a_tool(tmp_path: Path, era: str) -> None:
    call = ("--method", "tools/call", "--tool-name", "Bash", "--tool-arg", "command=echo out; exit 3")
    code, said, besides = inspect(tmp_path, era, *call)
    assert code == 0, besides
    assert said["result"]["content"] == [{"type": "text", "text": "out\nexit code: 3"}]
    assert "structuredContent" not in said["result"]


@pytest.mark.brief("legacy")
@eras
def test_the_inspector_reports_an_error_of_a_tool(tmp_path: Path, era: str) -> None:
    call = ("--method", "tools/call", "--tool-name", "ReadImage", "--tool-arg", "file_path=not/absolute.png")
    code, said, besides = inspect(tmp_path, era, *call)
    assert code == 5, besides
    assert said["result"]["isError"] is True


def inspect_url(folder: Path, url: str, *arguments: str) -> tuple[int, Any, str]:
    """Return the same for a server that listens."""
    launcher = package("@modelcontextprotocol/inspector") / "clients" / "launcher" / "build" / "index.js"
    ended = subprocess.run(
        [node(), str(launcher), "--cli", "--server-url", url, *arguments, "--format", "json"],
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=2 * PATIENCE,
    )
    said = ended.stdout.strip()
    return ended.returncode, json.loads(said) if said else None, ended.stderr.decode()


@pytest.mark.brief("modern")
@pytest.mark.parametrize("way", ["legacy", "auto", "modern", "sse"])
def test_the_inspector_lists_and_calls_over_http(tmp_path: Path, way: str) -> None:
    how = ("--transport", "sse") if way == "sse" else ("--protocol-era", way)
    with site(tmp_path) as listening:
        url = listening.url + ("/sse" if way == "sse" else "/mcp")
        code, said, besides = inspect_url(tmp_path, url, *how, "--method", "tools/list", "--strict")
        assert code == 0, besides
        assert [tool["name"] for tool in said["result"]["tools"]] == THIRTEEN
        call = ("--method", "tools/call", "--tool-name", "Bash", "--tool-arg", "command=echo out; sleep 1.2; exit 3")
        code, said, besides = inspect_url(tmp_path, url, *how, *call)
        assert code == 0, besides
        assert said["result"]["content"] == [{"type": "text", "text": "out\nexit code: 3"}]
