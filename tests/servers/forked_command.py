"""Start the real command in a fork of a process that has imported it already: importing takes most of a test's time.
Tests about the start itself run the command directly.

Run as a script this is that process: it waits for commands, forks, and reports how each fork ended."""

import atexit
import contextlib
import functools
import gc
import importlib.util
import json
import os
import pickle
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.request import urlopen

ROOT = Path(__file__).parents[2]
COMMAND = str(Path(sys.executable).with_name("toolgate"))
KNOWN = (  # what commands import, and a server that has no clients yet does not
    "toolgate.server.calls.terminal",
    "toolgate.server.cli.commands",
    "toolgate.server.cli.commands.call",
    "toolgate.server.cli.commands.oauth_client",
    "toolgate.server.cli.commands.user",
    "toolgate.server.cli.parsing.command_line",
    "toolgate.server.cli.readiness",
    "toolgate.server.features.mounts.upstream.http_connection",
    "toolgate.server.features.postgres.audit_reader",
    "toolgate.server.features.postgres.database.store",
    "toolgate.server.calls.policy.nonces",
    "toolgate.server.state.migrate",
    "toolgate.server.state.schema",
    "toolgate.server.state.sqlite.snapshot",
    "toolgate.server.features.telemetry.audit.reader",
    "toolgate.server.features.telemetry.metrics.collector",
    "toolgate.tools.reading.search.ddgs_client",
    "toolgate.tools.reading.search.json_engine",
    "toolgate.tools.api.outbound.dns",
    "toolgate.tools.reading.workers.pool",
    "toolgate.tools.workspace.local_workspace",
    "toolgate.transports.http.stateless",
    "toolgate.transports.sse",
    "toolgate.transports.stdio",
    "toolgate.transports.streamable_http",
)
OTHERS = (
    "anyio._backends._asyncio",
    "argon2",
    "certifi",
    "cryptography.hazmat.backends.openssl.backend",
    "cryptography.hazmat.primitives.ciphers.aead",
    "ctypes",
    "difflib",
    "httpx",
    "jinja2",
    "joserfc.jwk",
    "joserfc.jws",
    "jsonschema_rs",
    "prometheus_client",
    "sqlalchemy.dialects.postgresql.asyncpg",
)
ROW_MODULES = ("feature", "options", "commands", "check", "state", "doctor", "isolation")  # `module:NAME` of a feature
PLUGINS = ROOT / "tests" / "plugins"
SERVER = ("-t", "-s", "--auth", "oauth", "--port", "0", "--drain", "0")  # its start is repeated most
MOST = 1 << 20  # bytes of a command and its environment
LEAK = 86  # the code of a command that was about to send a client's token to a mounted server: outbound_search.py

leaks: list[int] = []  # the processes that ended so; tests/conftest.py fails their tests


class Process:
    """A forked command with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int, stdin: IO[bytes] | None, stdout: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = None
        self.returncode: int | None = None
        self._ended = threading.Event()

    def end(self, code: int) -> None:
        if code == LEAK:
            leaks.append(self.pid)
        self.returncode = code
        self._ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("toolgate", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Origin:
    """The forking process, seen from the tests."""

    def __init__(self, *modules: str) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **_preload}
        command = [sys.executable, "-P", str(Path(__file__)), str(its.fileno()), *modules]
        subprocess.run(command, pass_fds=[its.fileno()], env=environment, cwd="/", check=True)
        its.close()
        self._socket = ours
        self._asking = threading.Lock()
        self._answered = threading.Condition()
        self._pid: int | None = None
        self._living: dict[int, Process] = {}
        self._early: dict[int, int] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def start(
        self, words: Sequence[str], cwd: Path, env: Mapping[str, str], streams: Sequence[int], *pipes: IO[bytes] | None
    ) -> Process:
        order = json.dumps([list(words), str(cwd), dict(env)]).encode()
        with self._asking:
            socket.send_fds(self._socket, [order], list(streams))
            with self._answered:
                assert self._answered.wait_for(lambda: self._pid is not None, 60)
                pid, self._pid = self._pid, None
                assert pid is not None
                process = self._living[pid] = Process(pid, *pipes)
                if pid in self._early:
                    self._living.pop(pid).end(self._early.pop(pid))
        return process

    def _listen(self) -> None:
        while told := self._socket.recv(64):
            pid, code = json.loads(told)
            with self._answered:
                if code is None:
                    self._pid = pid
                elif pid in self._living:
                    self._living.pop(pid).end(code)
                else:
                    self._early[pid] = code
                self._answered.notify_all()


_preload: dict[str, str] = {}  # of the forking process alone, so that no command finds it in its environment


def keep_preload() -> None:
    """Leave LD_PRELOAD to the process that forks commands: other programs start without it."""
    if "LD_PRELOAD" in os.environ:
        _preload["LD_PRELOAD"] = os.environ.pop("LD_PRELOAD")


_knowing: list[tuple[str, ...]] = [()]
_origin = functools.cache(Origin)


@contextlib.contextmanager
def knowing(*modules: str) -> Iterator[None]:
    """Fork the commands started in this block from a process that has imported these modules as well."""
    _knowing.append(modules)
    try:
        yield
    finally:
        _knowing.pop()


def changed_command(code: str) -> tuple[str, str, str]:
    """Return the words of a command that is changed in its own process: by code that runs it at its end. `start` takes
    them."""
    return (COMMAND, "-c", code)


def start(words: Sequence[str], *, stdin: Any, stdout: Any, stderr: Any, cwd: Path, env: Mapping[str, str]) -> Any:
    """Start like `subprocess.Popen`. Another command, or an environment that Python itself reads at its start, gets a
    process of its own."""
    if words[0] != COMMAND or any(name.startswith(("PYTHON", "LC_", "LD_")) for name in env):
        return subprocess.Popen(words, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env)
    with contextlib.ExitStack() as its:
        ends: list[IO[bytes] | None] = []
        streams = []
        for given, ours in ((stdin, 1), (stdout, 0)):
            if given == subprocess.PIPE:
                pair = os.pipe()
                ends.append(os.fdopen(pair[ours], "wb" if ours else "rb"))
                streams.append(pair[1 - ours])
                its.callback(os.close, pair[1 - ours])
            elif given == subprocess.DEVNULL:
                ends.append(None)
                streams.append(os.open(os.devnull, os.O_RDWR))
                its.callback(os.close, streams[-1])
            else:
                ends.append(None)
                streams.append(given.fileno())
        return _origin(*_knowing[-1]).start(words, cwd, env, [*streams, stderr.fileno()], *ends)


def run(words: Sequence[str], text: str, *, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run like `subprocess.run` to its end, with `text` as input."""
    with contextlib.ExitStack() as its:
        given, said, complained = (its.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(text.encode())
        given.seek(0)
        process = start(words, stdin=given, stdout=said, stderr=complained, cwd=cwd, env=env)
        code = process.wait(120)
        told = []
        for stream in (said, complained):
            stream.seek(0)
            told.append(stream.read().decode())
    return subprocess.CompletedProcess(list(words), code, *told)


# -- the forking process


def _serve(control: socket.socket, modules: Sequence[str]) -> None:
    _import_modules([*KNOWN, *_list_features(), *OTHERS, *modules])
    _repeat_start()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    wake, woken = os.pipe()
    for end in (wake, woken):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    with selectors.DefaultSelector() as waiting:
        waiting.register(control, selectors.EVENT_READ)
        waiting.register(wake, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fd == wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake, 4096)
                    _tell_ends(control)
                    continue
                order, streams, _, _ = socket.recv_fds(control, MOST, 3)
                if not order:
                    return
                child = os.fork()
                if not child:
                    waiting.close()
                    _become(streams, *json.loads(order))
                for stream in streams:
                    os.close(stream)
                control.send(json.dumps([child, None]).encode())


def _import_modules(names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):  # tests/architecture/test_rooms.py says so, and names it
            importlib.import_module(name)


def _load_beside(name: str) -> Any:
    """Return a module of this folder: `tests` is no package for a command."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _list_features() -> Iterator[str]:
    """Yield the modules of features, which a server imports if it has the feature."""
    from toolgate.server.config.feature_rows import FEATURES, ROOM

    for row in FEATURES:
        places = (getattr(row, name) for name in ROW_MODULES)
        yield from (f"{ROOM}.{place.partition(':')[0]}" for place in places if place)


def _repeat_start() -> None:
    """Make once what each server's start would make again: import its modules, compile its patterns, describe its
    parts. A fork starts a server, and lists the modules and patterns."""
    folder = tempfile.mkdtemp()  # that a context manager would remove, its fork would remove too
    report = Path(folder, "report")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _report_at_exit(report)
        own = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": folder, "TOOLGATE_STATE": f"{folder}/state"}
        _become([os.open(os.devnull, os.O_RDWR), writer, writer], [COMMAND, *SERVER], folder, own)
    os.close(writer)
    with os.fdopen(reader) as log:
        for line in log:
            if served := re.search(r"serving (http://[^/ ]+)", line):
                with contextlib.suppress(OSError):  # without a network
                    urlopen(f"{served[1]}/health", timeout=20).close()  # it has served: it ends as usual
                os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    modules, patterns, trials = pickle.loads(report.read_bytes())
    shutil.rmtree(folder)
    _import_modules(modules)
    from toolgate.server.auth.login import accounts
    from toolgate.server.state import migrate
    from toolgate.tools.api.outbound import vetted_client
    from toolgate.tools.api.plugins import loader
    from toolgate.tools.api.registry import Part
    from toolgate.tools.workspace.sandbox import syscalls

    _load_beside("compiled_pages").compile_pages()
    _load_beside("outbound_search").search_forks(LEAK)
    _load_beside("tried_sandboxes").spare_trials(trials)
    vetted_client.make_tls_context()
    for file in sorted(PLUGINS.glob("*.py")):
        loader.compile_source(file.read_bytes(), str(file))
    migrate.compile_tables("sqlite.pysqlite")
    accounts.COST = {"time_cost": 1, "memory_cost": 64, "parallelism": 1}  # of a password's hash
    modules_of_ours = [module for name, module in sys.modules.items() if name.startswith("toolgate.")]
    values = [value for module in modules_of_ours for value in vars(module).values()]
    for part in {id(value): value for value in values if isinstance(value, Part)}.values():
        part.verify()
    with contextlib.suppress(syscalls.FilterUnavailableError):
        syscalls.program()
    re.purge()  # a full cache forgets the patterns that come first
    for pattern, flags in patterns:
        re.compile(pattern, flags)


def _report_at_exit(report: Path) -> None:
    """Have this process list what it has imported, compiled and tried since now, when it ends."""
    before, leave = {*sys.modules}, os._exit
    trials = _load_beside("tried_sandboxes").note_trials()
    re.purge()

    def tell(code: int) -> None:
        modules = [name for name, module in sys.modules.items() if name not in before and find_origin(module)]
        patterns = [(pattern, flags) for _, pattern, flags in re._cache]  # type: ignore[attr-defined]
        report.write_bytes(pickle.dumps((modules, patterns, trials)))
        leave(code)

    def find_origin(module: Any) -> bool:
        return getattr(module, "__spec__", None) is not None

    os._exit = tell


def _tell_ends(control: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            control.send(json.dumps([ended[0], os.waitstatus_to_exitcode(ended[1])]).encode())


def _become(streams: Sequence[int], words: list[str], cwd: str, env: dict[str, str]) -> None:
    """Become the command. Never returns."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 1024)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode, buffering = ("w" if number else "r"), (1 if number == 2 else -1)
        stream = open(number, mode, buffering, encoding="utf-8", closefd=False)  # noqa: SIM115  # as Python does
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)
    try:
        code = _run_command(words)
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        code = end.code
    _leave(code)


def _run_command(words: list[str]) -> int:
    if words[1:2] == ["-c"]:
        sys.argv = words[1:2] + words[3:]
        exec(words[2], {"__name__": "__main__"})
        return 0
    sys.argv = words
    from toolgate.server.__main__ import main

    return main()


def _leave(code: int) -> None:
    """End as Python does, without its slow teardown of modules."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.path[:0] = [str(Path(COMMAND).parent)]  # as for the command itself
    if os.fork():
        os._exit(0)  # no parent waits: tests count their own children
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
