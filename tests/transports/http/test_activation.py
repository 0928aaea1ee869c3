"""A service manager's sockets, passed as systemd does: a connection made while no server runs is answered by the next
one, and the manager is told when the server is ready."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import COMMAND, PATIENCE, eventually, surroundings

# systemd's steps between fork and exec: the socket is descriptor 3, and the variables name this process
HAND_OVER = """
import os, sys
count, command = sys.argv[1], sys.argv[2:]
os.environ.update(LISTEN_FDS=count, LISTEN_FDNAMES="toolgate.socket")
os.environ.setdefault("LISTEN_PID", str(os.getpid()))
os.execv(command[0], command)
"""


class FakeServiceManager:
    """A fake service manager: holds the socket, and starts servers on it."""

    def __init__(self, folder: Path, held: socket.socket) -> None:
        self.held = held
        self.port = held.getsockname()[1] if held.family != socket.AF_UNIX else 0
        self.log = folder / "log"
        self._work, self._environment = surroundings(folder, folder / "state", None)

    def start(self, *options: str, count: str = "1", **more: str) -> "subprocess.Popen[bytes]":
        words = [COMMAND, "-t", "--auth", "none", "--sandbox", "none", "--workspace", str(self._work), *options]
        held = self.held.fileno()

        def as_third() -> None:
            os.dup2(held, 3)

        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", HAND_OVER, count, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._environment, **more},
                pass_fds=(3,),
                preexec_fn=as_third,
                cwd=self._work,
            )

    def ask(self) -> socket.socket:
        """Return a connection that has sent a request."""
        asking = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        asking.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return asking


@contextlib.contextmanager
def running(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def answer(asking: socket.socket) -> bytes:
    with asking:
        return asking.makefile("rb").read()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[FakeServiceManager]:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as held:
        yield FakeServiceManager(tmp_path, held)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_connection_made_while_no_server_runs_is_answered_by_the_next_one(
    manager: FakeServiceManager, number: int
) -> None:
    port = str(manager.port)
    before = manager.ask()
    with running(manager.start("--port", port)) as first:
        assert b"200 OK" in answer(before)
        assert f"http://127.0.0.1:{port}/mcp, on the socket that was handed over" in manager.log.read_text()
        first.send_signal(number)
        first.wait(PATIENCE)
        between = [manager.ask() for _ in range(20)]
        with running(manager.start("--port", "0")):
            assert all(b"200 OK" in answer(asking) for asking in between)


def test_no_request_on_a_kept_connection_is_lost_as_the_server_ends(manager: FakeServiceManager) -> None:
    """Each request is answered, and the last answer closes the connection."""
    kept = socket.create_connection(("127.0.0.1", manager.port), PATIENCE)
    with running(manager.start("--port", str(manager.port))) as process, kept:

        def ask() -> bytes:
            kept.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            return kept.recv(4096)

        assert b"200 OK" in ask()
        process.send_signal(signal.SIGTERM)
        answers = [ask()]
        while b"connection: close" not in answers[-1].lower():
            answers.append(ask())
        assert all(b"200 OK" in each for each in answers)
        assert kept.recv(1) == b""
        assert process.wait(PATIENCE) == 0


def test_commands_inherit_neither_the_socket_nor_its_variables(manager: FakeServiceManager, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    told = tmp_path / "told"
    (plugin / "look.py").write_text(
        "import subprocess\n"
        f"subprocess.run(['sh', '-c', 'env; ls -l /proc/self/fd'], stdout=open({str(told)!r}, 'w'), close_fds=False)\n"
    )
    asking = manager.ask()
    with running(manager.start("--port", str(manager.port), "-p", str(plugin))):
        assert b"200 OK" in answer(asking)
        assert eventually(told.exists)
        assert eventually(lambda: "fd" in told.read_text() or "->" in told.read_text())
    assert "LISTEN_" not in told.read_text()
    assert "socket:" not in told.read_text()


@pytest.mark.brief("2-more0-2 sockets were handed over: use one ListenStream=", "1-more3-must be numbers")
@pytest.mark.parametrize(
    ("count", "more", "said"),
    [
        ("2", {}, "2 sockets were handed over: use one ListenStream="),
        ("x", {}, "must be numbers"),
        ("", {}, "must be numbers"),
        ("1", {"LISTEN_PID": "me"}, "must be numbers"),
        ("9" * 5_000, {}, "must be numbers"),
    ],
)
def test_malformed_socket_variables_are_a_usage_error(
    manager: FakeServiceManager, count: str, more: dict[str, str], said: str
) -> None:
    with running(manager.start("--port", str(manager.port), count=count, **more)) as process:
        assert process.wait(PATIENCE) == 2
    assert said in manager.log.read_text() and len(manager.log.read_text()) < 500


def test_a_socket_elsewhere_than_the_options_say_is_refused(manager: FakeServiceManager) -> None:
    for options in (("--port", "1"), ("--host", "127.0.0.2", "--port", str(manager.port))):
        with running(manager.start(*options)) as process:
            assert process.wait(PATIENCE) == 2
    assert manager.log.read_text().count("the socket that was handed over") == 2


def test_without_signing_in_no_socket_off_loopback_is_served(tmp_path: Path) -> None:
    with contextlib.closing(socket.create_server(("0.0.0.0", 0))) as held:
        manager = FakeServiceManager(tmp_path, held)
        for host in ("127.0.0.1", "0.0.0.0"):
            with running(manager.start("--host", host, "--port", str(manager.port))) as process:
                assert process.wait(PATIENCE) == 2


@pytest.mark.brief("unix", "connected")
@pytest.mark.parametrize("kind", ["unix", "connected", "udp", "file"])
def test_a_descriptor_that_is_no_listening_tcp_socket_is_refused(tmp_path: Path, kind: str) -> None:
    with contextlib.ExitStack() as stack:
        if kind == "unix":
            held = socket.socket(socket.AF_UNIX)
            held.bind(str(tmp_path / "s"))
            held.listen()
        elif kind == "udp":
            held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        elif kind == "connected":
            held = socket.socket()
        else:
            held = socket.socket()
            file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
            os.dup2(file, held.fileno())
        stack.callback(held.close)
        manager = FakeServiceManager.__new__(FakeServiceManager)
        manager.held, manager.port, manager.log = held, 0, tmp_path / "log"
        manager._work, manager._environment = surroundings(tmp_path, tmp_path / "state", None)
        with running(manager.start("--port", "0")) as process:
            assert process.wait(PATIENCE) == 2
        assert "LISTEN_FDS: " in manager.log.read_text()


def test_a_socket_for_another_process_is_ignored(manager: FakeServiceManager) -> None:
    with running(manager.start("--port", "0", LISTEN_PID="1")) as process:
        assert eventually(lambda: "serving http" in manager.log.read_text())
        assert "handed over" not in manager.log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_service_manager_is_told_once_that_the_server_is_ready(
    manager: FakeServiceManager, tmp_path: Path, kind: str
) -> None:
    name = str(tmp_path / "notify") if kind == "path" else f"@toolgate-tests-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hearing:
        hearing.bind(name if kind == "path" else f"\0{name[1:]}")
        hearing.settimeout(PATIENCE)
        with running(manager.start("--port", "0", NOTIFY_SOCKET=name)) as process:
            said = hearing.recv(4096).decode()
            assert "serving http" in manager.log.read_text(), "the log has all that a person needs by then"
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        hearing.setblocking(False)
        with pytest.raises(BlockingIOError):
            hearing.recv(4096)
    assert said == f"READY=1\nSTATUS=serving http://127.0.0.1:{manager.port}"


@pytest.mark.brief("/nowhere/notify")
@pytest.mark.parametrize("name", ["/nowhere/notify", "@" + "x" * 200, "relative"])
def test_a_service_manager_that_does_not_listen_is_no_obstacle(manager: FakeServiceManager, name: str) -> None:
    with running(manager.start("--port", "0", NOTIFY_SOCKET=name)) as process:
        assert b"200 OK" in answer(manager.ask())
        assert "NOTIFY_SOCKET: the service manager can't be told that the server is ready: " in manager.log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
