"""A real PostgreSQL in a temporary folder, for one module of tests. It ends with the process that started it."""

import asyncio
import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.clients.raw_client import eventually
from tests.servers.reserved_port import reserved_port
from toolgate.server.app import features
from toolgate.server.config import load

ADMIN = "operator"
PASSWORD = "tea@five"
# No fsync: a test survives no power cut. Few connections wait in memory of this size
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "autovacuum": "off",
    "listen_addresses": "127.0.0.1",
}


def find_program(name: str) -> str:
    """Return the path of a program of PostgreSQL, which Debian has beside PATH."""
    beside = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    found = str(beside[-1]) if beside else shutil.which(name)
    assert found, f"{name} is missing: apt-get install postgresql"
    return found


@dataclass
class Postgres:
    """A running PostgreSQL. `stop` and `start` restart it."""

    folder: Path
    port: int
    user: list[str]  # the words before a command that run it as another user than root
    process: "subprocess.Popen[bytes] | None" = None
    made: int = 0
    model: str = ""  # the name of a database with tables, which others are copies of

    def start(self) -> None:
        words = [
            find_program("postgres"),
            "-D",
            str(self.folder / "data"),
            "-k",
            str(self.folder),
            "-p",
            str(self.port),
        ]
        words += [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*self.user, *words], stdout=log, stderr=log, cwd="/")
        assert eventually(self.is_ready), (self.folder / "log").read_text()

    def is_ready(self) -> bool:
        """Return whether it answers. Its file says so, as to pg_ctl: a program for each look takes a second."""
        assert self.process is not None and self.process.poll() is None, (self.folder / "log").read_text()
        file = self.folder / "data" / "postmaster.pid"
        lines = file.read_text().split() if file.exists() else []
        return lines[:1] == [str(self.process.pid)] and lines[-1] == "ready"

    def stop(self) -> None:
        """End it as a killed machine would: without a word to its clients."""
        if self.process is not None:
            self.process.send_signal(3)
            self.process.wait(20)
            self.process = None

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop all of its processes for a while: connections stay open, new ones are made, and nothing answers."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)  # first: it starts the others
        pids = [self.process.pid, *_list_children(self.process.pid)]
        for pid in pids[1:]:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def run_sql(self, *statements: str, database: str = "postgres") -> str:
        """Run statements, and return what they print."""
        words = [find_program("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", str(self.folder), "-p", str(self.port)]
        words += ["-U", ADMIN, *(word for each in statements for word in ("-c", each)), database]
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    @contextlib.contextmanager
    def blocking(self, table: str, url: str) -> Iterator[Callable[[], bool]]:
        """Let no transaction change a table. Yield a function that returns whether one waits to do so."""
        database = _parse_name(url)
        words = [find_program("psql"), "-XAtq", "-h", str(self.folder), "-p", str(self.port), "-U", ADMIN, database]
        blocked = f"SELECT count(*) FROM pg_locks WHERE relation = '{table}'::regclass AND NOT granted"
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdin and holder.stdout
            holder.stdin.write(f"BEGIN; LOCK TABLE {table} IN SHARE MODE; SELECT 'locked';\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "locked\n"
            yield lambda: self.run_sql(blocked, database=database) != "0"

    def create_database(self, model: str = "template1") -> str:
        """Return the URL of a new database, by the socket: a copy of `model`."""
        self.made += 1
        name = f"toolgate_{self.made}"
        self.run_sql(f"CREATE DATABASE {name} TEMPLATE {model}")
        return f"postgresql://{ADMIN}@/{name}?host={self.folder}&port={self.port}"

    def create_filled_database(self) -> str:
        """Return the URL of a new database that has the tables: to make them takes twice as long as to copy them."""
        if not self.model:
            url = self.create_database()
            with ThreadPoolExecutor() as thread:  # the loop of a browser's driver may run in this one
                thread.submit(asyncio.run, _make_tables(self.folder / "state", url)).result()
            self.model = _parse_name(url)
        return self.create_database(self.model)

    def to_tcp(self, url: str, password: str = PASSWORD) -> str:
        """Return the URL of the same database by TCP, where the password counts."""
        return f"postgresql://{ADMIN}:{password.replace('@', '%40')}@127.0.0.1:{self.port}/{_parse_name(url)}"


async def _make_tables(folder: Path, url: str) -> None:
    store = features.open_store(load.load({"http": "true", "state": str(folder), "database": url}, {}))
    try:
        await store.prepare()
    finally:
        await store.aclose()


def _list_children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def _copy(folder: Path, target: Path) -> None:
    """Copy a folder into another one, with its owner and rights."""
    subprocess.run(["cp", "-a", str(folder), str(target)], check=True, timeout=60)


def _parse_name(url: str) -> str:
    name = re.search(r"/(\w+)\?", url)
    assert name is not None
    return name[1]


@contextlib.contextmanager
def running_postgres(model: Path | None = None) -> Iterator[Postgres]:
    """Yield a new server. Its files are copied from the folder `model`, to which the first one copies them: making them
    takes most of a start's processor time."""
    # short: a socket's path has 107 characters
    with reserved_port() as port, tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "password").write_text(PASSWORD)
        user: list[str] = []
        if os.geteuid() == 0:  # which PostgreSQL refuses
            owner = pwd.getpwnam("postgres")
            user = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
            for path in (folder, folder / "password"):
                os.chown(path, owner.pw_uid, owner.pw_gid)
            folder.chmod(0o755)
        words = ["--username", ADMIN, "--pwfile", str(folder / "password"), "--locale=C.UTF-8", "--encoding=UTF8"]
        words += ["--auth-local=trust", "--auth-host=scram-sha-256", "--no-sync", "-D", str(folder / "data")]
        if model is not None and (model / "data").exists():
            _copy(model / "data", folder)
        else:
            subprocess.run(
                [*user, find_program("initdb"), *words], check=True, capture_output=True, timeout=60, cwd="/"
            )
            if model is not None:
                _copy(folder / "data", model)
        # a killed pytest leaves none behind
        server = Postgres(folder, port, [*(user or ["setpriv"]), "--pdeathsig=QUIT"])
        server.start()
        try:
            yield server
        finally:
            server.stop()
