"""The official Inspector's command line signs in to the real server. It opens a browser only on a terminal, so it gets
one."""

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, eventually
from tests.interop.node import node, package
from tests.interop.official_clients import THIRTEEN, crossed
from tests.interop.sign_in_server import CALLBACK, WAYS_IN, SignInServer, sign_in_server, visit
from tests.servers.reserved_port import kept_port

AUTH_REQUIRED = 3  # its exit code
QUESTION = re.compile(r"https?://[^\s\"\x00-\x1f]*code_challenge=[^\s\"\x00-\x1f]*")
WIDE = struct.pack("HHHH", 50, 4_000, 0, 0)  # rows and columns: no URL is broken


@pytest.mark.brief("modern-dynamic")
@pytest.mark.brief("modern-dynamic", "sse-document")
@pytest.mark.parametrize(("era", "known"), crossed(["legacy", "auto", "modern", "sse"], WAYS_IN, later=["auto"]))
def test_the_inspector_signs_in_once_and_then_uses_its_stored_tokens(tmp_path: Path, era: str, known: str) -> None:
    carrier = "sse" if era == "sse" else "http"
    how = ["--transport", "sse"] if era == "sse" else ["--protocol-era", era]
    with sign_in_server(tmp_path / "gate") as gate:
        url = ["--server-url", gate.url(carrier), *how]
        code, _ = _alone(tmp_path, *url, "--method", "tools/list", "--stored-auth-only")
        assert code == AUTH_REQUIRED
        code, said = _signing_in(tmp_path, gate, known, *url, "--method", "tools/list")
        assert code == 0, said
        assert all(f'"{name}"' in said for name in THIRTEEN), said
        assert len(gate.fetched) == (known == "document")
        call = ("--method", "tools/call", "--tool-name", "Bash", "--tool-arg", "command=echo out; exit 3")
        code, result = _alone(tmp_path, *url, *call, "--stored-auth-only")
        assert code == 0, result
        assert result["result"]["content"] == [{"type": "text", "text": "out\nexit code: 3"}]
        assert len(gate.person.asked) == 1


def _command(*words: str) -> list[str]:
    launcher = package("@modelcontextprotocol/inspector") / "clients" / "launcher" / "build" / "index.js"
    return [node(), str(launcher), "--cli", *words, "--format", "json"]


def _surroundings(folder: Path) -> dict[str, str]:
    own = {"MCP_AUTO_OPEN_ENABLED": "false", "MCP_INSPECTOR_SECRET_STORE": "file"}
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb", **own}


def _alone(folder: Path, *words: str) -> tuple[int, Any]:
    """Return its exit code and decoded output without a terminal."""
    ended = subprocess.run(
        _command(*words, "-q"),
        env=_surroundings(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=2 * PATIENCE,
    )
    return ended.returncode, json.loads(ended.stdout) if ended.stdout.strip() else ended.stderr.decode()


def _signing_in(folder: Path, gate: SignInServer, known: str, *words: str) -> tuple[int, str]:
    """Return its exit code and screen on a terminal, with a person."""
    port = kept_port()
    back = urllib.parse.urlsplit(CALLBACK)._replace(netloc=f"127.0.0.1:{port}").geturl()
    more = ["--callback-url", back, *(["--client-metadata-url", gate.document] if known == "document" else [])]
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, WIDE)
    shown = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # the other side is closed
            while data := os.read(terminal, 65_536):
                shown.extend(data)

    process = subprocess.Popen(
        _command(*words, *more), env=_surroundings(folder), stdin=inside, stdout=inside, stderr=inside
    )
    os.close(inside)
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert eventually(lambda: QUESTION.search(shown.decode()) or process.poll() is not None), shown.decode()
        question = QUESTION.search(shown.decode())
        assert question, shown.decode()
        assert visit(gate.person.decide(question[0])) == 200
        code = process.wait(2 * PATIENCE)
        reader.join(PATIENCE)
        return code, shown.decode()
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
