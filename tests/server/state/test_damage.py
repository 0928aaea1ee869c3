"""Each file of a used state, damaged in each way: the server starts or refuses with the mend, and nothing hangs.

The files are those that a used server leaves, so a new kind of file is damaged here from its first day.
"""

import asyncio
import hashlib
import os
import re
import shutil
import signal
import socket
import sqlite3
import stat
from base64 import b64encode
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.clients.raw_client import COMMAND, eventually
from tests.clients.raw_http_client import Site, site
from tests.server.cli.commands.test_user_and_client import HELLO
from tests.server.cli.test_cli import run
from toolgate.server.base.errors import UsageError
from toolgate.server.cli.doctor.state_files import find_damage
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.control import FOLDER as MOUNTS
from toolgate.server.features.mounts.control import MountControl
from toolgate.server.features.mounts.lists.list_store import ListStore, MountLists
from toolgate.server.features.mounts.mount.mount_standing import MountState
from toolgate.server.features.mounts.mount.profile import NOTHING
from toolgate.server.features.nodes.node.databases import DATABASES_FILE, KnownDatabases
from toolgate.server.features.nodes.node.name import find_or_choose_name
from toolgate.server.state.keys.file import load_or_create_key
from toolgate.server.state.keys.token_file import ensure_token
from toolgate.server.workspaces.folders import PrincipalFolders

NEEDED_KEYS = ("keys/signing", "keys/event-secrets", "keys/mount-secrets", "keys/audit")
REFUSED = (*NEEDED_KEYS, "keys/metrics", "audit/head")  # at the start
DATABASE = ("state.db", "state.db-wal", "state.db-shm")
SECRET = "secret-0123456789abcdef"
SCOPES = "tools:read tools:shell tools:workflow"
FEW_CAPABILITIES = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", COMMAND)  # root reads what it may
CALLS: dict[str, dict[str, Any]] = {
    "Bash": {"command": "echo hi"},
    "ListBgTasks": {},
    "ReadBgOutput": {"task_id": "1"},
    "TaskManager": {"action": "list", "query": ""},
    "SetCallback": {"action": "list"},
    "PlanMode": {"action": "status"},
}


def change_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return damage


def put_in_place(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


def make_socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(before)


BYTES: dict[str, Callable[[Path], None]] = {
    "not UTF-8": change_bytes(lambda data: data[: len(data) // 2] + b"\xff" + data[len(data) // 2 + 1 :]),
    "one byte that is not UTF-8": change_bytes(lambda _: b"\xff"),
    "half": change_bytes(lambda data: data[: len(data) // 2]),
    "empty": change_bytes(lambda data: b""),
}
KINDS: dict[str, Callable[[Path], None]] = {
    "FIFO": put_in_place(os.mkfifo),
    "folder": put_in_place(Path.mkdir),
    "socket": put_in_place(make_socket),
    "link to nothing": put_in_place(lambda path: path.symlink_to("/nowhere/at/all")),
    "device": put_in_place(lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))),  # /dev/zero never ends
    "unreadable": lambda path: path.chmod(0),
}
DAMAGES = BYTES | KINDS
# They may hold any bytes, or each server writes them again
FREE = r"flags/.*|uses/u-.*|processes/.*|.*\.lock|.*\.editor|.*/output|state\.db\.before-.*|audit/.*"
UNHARMED = {
    "not UTF-8": rf"{FREE}|keys/.*",  # a key is any 32 bytes: what it sealed can't be opened
    "one byte that is not UTF-8": FREE,
    "half": rf"{FREE}|node\.name|.*/last-id",
    "empty": rf"{FREE}|uses/databases|.*/last-id|1/task\.json",  # with an empty output: its server died at once
}


@pytest.fixture(scope="session")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the state of a server that two people used, and which was killed."""
    folder = tmp_path_factory.mktemp("used")
    (folder / "skills" / "one").mkdir(parents=True)
    (folder / "skills" / "one" / "SKILL.md").write_text("---\nname: one\ndescription: >\n  folded\n---\nDo it.\n")
    clients = "".join(
        f'[[client]]\nid = "{name}"\nsecret_sha256 = "{hashlib.sha256(SECRET.encode()).hexdigest()}"\n'
        f'grant_types = ["client_credentials"]\nscope = "{SCOPES}"\n'
        for name in ("ada", "bob")
    )
    (folder / "clients.toml").write_text(clients)
    (folder / "clients.toml").chmod(0o600)
    with serving(folder) as at:
        for name in ("ada", "bob"):
            person = Person(at, name)
            person.call("TaskManager", {"action": "create", "query": "", "text": "precious"})
            person.call("SetCallback", {"action": "set", "message": "later", "delay_seconds": 3600})
            person.call("BackgroundBash", {"command": "echo precious"})
            person.call("PlanMode", {"action": "enter"})
            person.call("PlanMode", {"action": "exit"})
            with (folder / "sessions").open("a") as ids:
                ids.write(f"{person.session}\n")
        assert eventually(lambda: len(list(at.state.glob("spool/*/1/output"))) == 2)
        at.stop(signal.SIGKILL)
    for name in ("questions", "request-state", "event-cursor", "event-secrets", "mount-secrets", "database"):
        load_or_create_key(folder / "state" / "keys" / name)
    ensure_token(folder / "state" / "keys" / "metrics")
    find_or_choose_name(folder / "state", "one")
    databases = KnownDatabases(folder / "state" / DATABASES_FILE)
    databases.note("ab" * 16)
    asyncio.run(databases.keep())
    (folder / "state" / "cache").mkdir(exist_ok=True)
    keep_mount_files(folder / "state")
    (folder / "state" / "cache" / "skills.json").write_text("{}")  # that of a server has no skills of the last seconds
    with PrincipalFolders(folder / "state").hold_lock():
        pass
    (folder / "state" / "state.db.before-11").write_bytes(b"a copy")
    return folder


def keep_mount_files(state: Path) -> None:
    """Write what a server with a mount had kept when it was killed."""
    lists = ListStore(state / MOUNTS, MountConfig(name="far", command="far"))
    lists.put(NOTHING, MountLists(instructions="ask far"))
    lists.save()
    control = MountControl(state)
    control.begin()
    control.publish({"far": MountState("known", 1.0)})


@contextmanager
def serving(folder: Path, *command: str) -> Generator[Site]:
    options = ("--auth", "oauth", "--clients", str(folder / "clients.toml"), "--skills", str(folder / "skills"))
    sandbox = ("--sandbox", "none", "--accept-unsandboxed")
    how = {"command": command} if command else {}
    with site(folder, *options, *sandbox, workspace=False, **how) as at:
        yield at


class Person:
    """A client of the server that signs in with its secret."""

    def __init__(self, at: Site, name: str) -> None:
        self._at = at
        basic = b64encode(f"{name}:{SECRET}".encode()).decode()
        form = urlencode({"grant_type": "client_credentials", "scope": SCOPES, "resource": f"{at.url}/mcp"}).encode()
        kind = "application/x-www-form-urlencoded"
        _, _, told = at.ask("POST", "/token", form, content_type=kind, authorization=f"Basic {basic}")
        self._headers = {"authorization": f"Bearer {told['access_token']}"}
        response, _, _ = self._post("initialize", HELLO)
        self._headers["mcp_session_id"] = str(response.getheader("mcp-session-id"))

    @property
    def session(self) -> str:
        return self._headers["mcp_session_id"]

    def resume(self, id: str) -> int:
        """Return the status of a request in an earlier session."""
        message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        return self._at.ask("POST", "/mcp", message, **{**self._headers, "mcp_session_id": id})[0].status

    def _post(self, method: str, params: dict[str, Any]) -> Any:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return self._at.ask("POST", "/mcp", message, **self._headers)

    def ask(self, method: str, params: dict[str, Any]) -> str:
        return str(self._post(method, params)[1].decode())

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        return self.ask("tools/call", {"name": tool, "arguments": arguments})


def list_files(state: Path) -> list[str]:
    """Return the files of a state but for people's own: those in their workspaces and archives."""
    files = [str(path.relative_to(state)) for path in state.rglob("*") if path.is_file() and not path.is_symlink()]
    return sorted(name for name in files if not name.startswith(("workspaces/u-", "archive/")))


def damage(folder: Path, used: Path, how: str, names: Callable[[str], bool]) -> list[str]:
    """Copy the used state to `folder`, damage its files of those names, and return them."""
    shutil.copytree(used, folder, symlinks=True, dirs_exist_ok=True)
    files = [name for name in list_files(folder / "state") if names(name)]
    for name in files:
        DAMAGES[how](folder / "state" / name)
    assert files
    return files


def doctor(folder: Path) -> str:
    words = ("doctor", "--browser", "none", "--sandbox", "none", "--state", str(folder / "state"), "-t", "--port", "0")
    done = run(folder, *words, "--skills", str(folder / "skills"))
    assert "Traceback" not in done.stderr, done
    return done.stdout


@pytest.mark.brief("not UTF-8", "empty", "FIFO", "link to nothing", "unreadable")
@pytest.mark.parametrize("how", DAMAGES)
def test_a_server_serves_with_all_files_damaged_that_it_can_do_without(tmp_path: Path, used: Path, how: str) -> None:
    files = damage(tmp_path, used, how, lambda name: name not in (*REFUSED, *DATABASE))
    before = {str(found.path.relative_to(tmp_path / "state")) for found in find_damage(tmp_path / "state")}
    unharmed = {name for name in files if how in BYTES and re.fullmatch(UNHARMED[how], name)}
    if how != "unreadable" or os.geteuid() != 0:
        assert before >= set(files) - unharmed, "doctor sees each"
    doctor(tmp_path)
    command = FEW_CAPABILITIES if how == "unreadable" and os.geteuid() == 0 else ()
    with serving(tmp_path, *command) as at:
        for name in ("ada", "bob"):
            person = Person(at, name)
            for tool, arguments in CALLS.items():
                answer = person.call(tool, arguments)
                assert "internal error" not in answer and "error" not in answer, (tool, answer, at.log())
            assert "precious" in person.call("TaskManager", CALLS["TaskManager"])
        assert at.stop() == 0
        log = at.log()
    assert "Traceback" not in log, log
    for name in ("cache/skills.json", "keys/questions", "keys/request-state", "keys/event-cursor", "1/task.json"):
        assert name in log or re.fullmatch(UNHARMED.get(how, ""), name), (name, log)


@pytest.mark.brief(
    *("half-keys/signing", "empty-keys/audit", "FIFO-keys/event-secrets"),
    *("link to nothing-keys/mount-secrets", "unreadable-keys/signing"),
)
@pytest.mark.parametrize("name", NEEDED_KEYS)
@pytest.mark.parametrize("how", [how for how in DAMAGES if how != "not UTF-8"])
def test_a_server_refuses_at_once_with_the_mend_what_it_cant_do_without(
    tmp_path: Path, used: Path, how: str, name: str
) -> None:
    damage(tmp_path, used, how, lambda each: each == name)
    assert name in doctor(tmp_path) or how == "unreadable"
    said = refuse(tmp_path, how)
    assert f"{name}" in said and "Traceback" not in said, said
    assert "and a new" in said, "the mend"


@pytest.mark.parametrize("how", [how for how in DAMAGES if how not in ("half", "unreadable")])
def test_a_damaged_token_of_the_metrics_is_refused_with_the_mend(tmp_path: Path, how: str) -> None:
    ensure_token(tmp_path / "metrics")
    DAMAGES[how](tmp_path / "metrics")
    with pytest.raises(UsageError, match=r"metrics.*remove it, and a new one is made"):
        ensure_token(tmp_path / "metrics")


def refuse(folder: Path, how: str) -> str:
    """Return what a server says that does not start."""
    command = FEW_CAPABILITIES if how == "unreadable" and os.geteuid() == 0 else ()
    with pytest.raises(AssertionError), serving(folder, *command):
        pass
    return (folder / "stderr.log").read_text()


def test_a_session_with_bad_bytes_is_gone_and_its_client_begins_a_new_one(tmp_path: Path, used: Path) -> None:
    shutil.copytree(used, tmp_path, symlinks=True, dirs_exist_ok=True)
    with closing(sqlite3.connect(tmp_path / "state" / "state.db")) as database, database:
        damaged = database.execute("UPDATE session SET details = ?", (b'{"name": "\xff"}',)).rowcount
    assert damaged == 2
    ids = (tmp_path / "sessions").read_text().split()
    with serving(tmp_path) as at:
        for name, id in zip(("ada", "bob"), ids, strict=True):
            person = Person(at, name)
            assert "precious" in person.call("TaskManager", CALLS["TaskManager"])
            assert person.resume(id) == 404
        assert at.stop() == 0
    with closing(sqlite3.connect(tmp_path / "state" / "state.db")) as database:
        rows = [row[0] for row in database.execute("SELECT details FROM session")]
    assert not any(b"\xff" in (row if isinstance(row, bytes) else row.encode()) for row in rows)


@pytest.mark.brief(
    *("not UTF-8-state.db", "half-state.db", "empty-state.db", "FIFO-state.db-wal", "folder-state.db"),
    *("link to nothing-state.db", "unreadable-state.db-shm"),
)
@pytest.mark.parametrize("name", DATABASE)
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_database_hangs_nothing(tmp_path: Path, used: Path, how: str, name: str) -> None:
    damage(tmp_path, used, how, lambda each: each == name)
    doctor(tmp_path)
    command = FEW_CAPABILITIES if how == "unreadable" and os.geteuid() == 0 else ()
    try:
        with serving(tmp_path, *command) as at:
            at.ask("POST", "/token", {})
            assert at.stop() == 0
    except AssertionError:
        said = (tmp_path / "stderr.log").read_text()
        assert "Traceback" not in said and "the state database" in said, said
