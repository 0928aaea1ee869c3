"""Ten mounts, seven of them with faults: a first list comes at once with the good ones, and the rest as they come."""

import contextlib
import http.server
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import Server, eventually
from tests.server.features.mounts.mounted import command_mount, url_mount, write_config
from toolgate.server.cli import main

FAULTY = Path(__file__).with_name("faulty_server.py")
GOOD = ("one", "two", "three")
CHANGED = "notifications/tools/list_changed"


class _Broken(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(500)

    def log_message(self, *words: Any) -> None: ...


@contextlib.contextmanager
def broken_site() -> Iterator[str]:
    """Yield the URL of a server that answers each request with status 500."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Broken) as listening:
        threading.Thread(target=listening.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}/mcp"
        finally:
            listening.shutdown()


@contextlib.contextmanager
def full_port() -> Iterator[str]:
    """Yield a URL to which no connection can be made: nobody accepts those that wait already."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"


def faulty_mount(fault: str) -> str:
    return f'[mounts.{fault}]\ncommand = "{sys.executable}"\nargs = ["{FAULTY}", "{fault}"]\n'


@pytest.mark.soak  # its bounds are seconds, which a machine with other tests does not keep
def test_seven_faults_hold_up_no_first_list(
    start: Callable[..., Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with broken_site() as broken, full_port() as full:
        tables = [command_mount("both", name) for name in GOOD]
        tables += [faulty_mount(fault) for fault in ("silent", "listless", "rubbish", "late")]
        tables += [url_mount(broken, "broken"), url_mount(full, "full"), url_mount(closed_port(), "closed")]
        options = write_config(tmp_path, *tables)
        server = start(*options)
        begun = time.monotonic()
        listed = server.request("tools/list")["tools"]
        assert time.monotonic() - begun < 2.0
        assert {_mount_of(tool) for tool in listed} - {""} == set(GOOD)
        server.wait(lambda message: message.get("method") == CHANGED)
        assert eventually(lambda: "late" in {_mount_of(tool) for tool in server.request("tools/list")["tools"]})

        def list_mounts() -> str:
            assert main.run(("mount", "list", *options, "--state", str(server.state))) == 0
            return capsys.readouterr().out

        codes = {
            "listless": "LIST_FAILED",
            "broken": "HTTP_STATUS",
            "full": "CONNECT_FAILED",
            "closed": "CONNECT_FAILED",
            "silent": "INITIALIZE_TIMEOUT",
            "rubbish": "INITIALIZE_TIMEOUT",
        }
        for name, code in codes.items():
            assert eventually(lambda name=name, code=code: f"{name} {code}" in _join(list_mounts()), 100), name
        assert all(f"{name} running" in _join(list_mounts()) for name in (*GOOD, "late"))
        assert server.text("one__echo")


def _mount_of(tool: dict[str, Any]) -> str:
    return str(tool["name"]).rpartition("__")[0]


def _join(table: str) -> str:
    return " ".join(table.split())
