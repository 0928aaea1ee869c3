"""Backups of the state and their restoration: beside a running server, from hostile archives, into folders in use."""

import asyncio
import contextlib
import gzip
import hashlib
import io
import json
import os
import pty
import signal
import sqlite3
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import COMMAND
from tests.clients.raw_http_client import Site, site
from tests.server.cli.commands.test_user_and_client import (
    HELLO,
    PASSWORD,
    command,
    granted,
    is_let_in,
    refreshed,
    registered,
)
from tests.server.cli.test_cli import run
from tests.server.state.sqlite.test_upgrade import made, of_the_next_version, rows, tasks, version
from toolgate.server.base.errors import StateError
from toolgate.server.base.progress import TerminalProgress
from toolgate.server.cli.commands import backup
from toolgate.server.config import load
from toolgate.server.features.telemetry.state_part import TelemetryState
from toolgate.server.state import lock
from toolgate.server.state.backup import manifest as contents
from toolgate.server.state.backup import read, restore, write
from toolgate.server.state.backup.manifest import BackupError
from toolgate.server.state.backup.state_transfer import FileTransfer
from toolgate.server.state.sqlite import snapshot
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.tables import VERSION
from toolgate.server.workspaces import archive as packing

SILENT = TerminalProgress(None)
LIST = {"action": "list", "query": ""}
LATER = {"action": "set", "message": "later", "delay_seconds": 3600}
ADA = "u-" + "ad" * 20


def of_state(folder: Path) -> load.Config:
    return load.load({"state": str(folder)}, {})


def lasting(database: Path) -> dict[str, Any]:
    """Return everything a backup keeps of a database: all but sessions."""
    return {name: held for name, held in rows(database).items() if name not in ("session", "session_message")}


def called(at: Site, token: str, session: str, name: str, arguments: dict[str, Any]) -> tuple[int, str]:
    message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    bearer = {"authorization": f"Bearer {token}", "mcp_session_id": session}
    response, body, _ = at.ask("POST", "/mcp", message, **bearer)
    return response.status, body.decode()


def opened(at: Site, token: str) -> str:
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    response, _, _ = at.ask("POST", "/mcp", message, authorization=f"Bearer {token}")
    session = str(response.getheader("mcp-session-id"))
    at.ask(
        "POST",
        "/mcp",
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        authorization=f"Bearer {token}",
        mcp_session_id=session,
    )
    return session


def test_a_backup_beside_a_running_server_restores_all_people_elsewhere(tmp_path: Path) -> None:
    file, moved = tmp_path / "b.tar.gz", tmp_path / "moved"
    with site(tmp_path, "--auth", "oauth") as at:
        assert command(tmp_path, "user", "add", "ada", stdin=PASSWORD).returncode == 0
        client = registered(at)
        tokens = granted(at, client)
        token, port = tokens["access_token"], str(at.port)
        session = opened(at, token)
        wanted = {"action": "create", "query": "write the report"}
        assert "write the report" in called(at, token, session, "TaskManager", wanted)[1]
        assert called(at, token, session, "SetCallback", LATER)[0] == 200
        told = command(tmp_path, "backup", str(file))
        assert told.returncode == 0 and f"database version {VERSION}, without workspaces" in told.stdout, told
        assert "this file holds the server's keys" in told.stderr and "\r" not in told.stderr
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        for words in (("backup", "c.tar.gz", "--with-workspaces"), ("restore", str(file), "--replace")):
            told = command(tmp_path, *words)
            assert (told.returncode, told.stdout) == (
                1,
                "",
            ) and "a server or node uses it: stop that first" in told.stderr
        assert called(at, token, session, "TaskManager", {"action": "create", "query": "too late"})[0] == 200
    assert [path.name for path in tmp_path.glob("*.tar.gz*")] == ["b.tar.gz"]
    moved.mkdir()
    told = command(moved, "restore", str(file))
    assert told.returncode == 0 and "token revoke all" in told.stderr, told
    found = [moved / "state", *(moved / "state").rglob("*")]
    assert [path for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    assert command(moved, "audit", "verify").returncode == 0
    with site(moved, "--auth", "oauth", "--port", port) as at:
        assert called(at, token, session, "TaskManager", LIST)[0] == 404, "sessions are in no backup"
        status, text = called(at, token, opened(at, token), "TaskManager", LIST)
        assert status == 200 and "write the report" in text and "too late" not in text
        assert "later" in called(at, token, opened(at, token), "SetCallback", {"action": "list"})[1]
        status, renewed = refreshed(at, client, tokens)
        assert status == 200 and is_let_in(at, renewed["access_token"])
        told = command(moved, "token", "revoke", "all")
        assert told.stdout == "1 grant ended; everybody is signed out\n"
        assert refreshed(at, client, renewed)[0] == 400


def state(folder: Path) -> Path:
    """Return a state folder with everything it may have."""
    database = made(folder)
    held = database.parent
    for name, text in (
        ("keys/signing", "k" * 32),
        ("flags/plan", ""),
        ("audit/audit.jsonl", "{}\n"),
        ("audit/head", "head"),
        (f"uses/{ADA}", ""),
        (f"archive/{ADA}-20260101T000000Z.tar.gz", "an archive"),
        (f"workspaces/{ADA}/deep/er/note", "hers"),
        (f"spool/{ADA}/1/output", "what a command said"),
        ("spool/.users", "no name of ours"),
        ("cache/skills.json", "{}"),
    ):
        (held / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (held / name).write_text(text)
    work = held / "workspaces" / ADA
    (work / "link").symlink_to("/etc/passwd")
    os.link(work / "deep" / "er" / "note", work / "again")
    os.mkfifo(work / "pipe")
    (work / "closed").write_text("to its owner too")
    (work / "closed").chmod(0)
    (work / "deep" / "er").chmod(0o500)
    return held


def backed_up(of: Path, *, workspaces: bool = True) -> bytes:
    room, raw = of.parent / "room", io.BytesIO()
    room.mkdir()
    with lock.hold_exclusive(of):
        snapshots = TelemetryState().list_snapshots(of)
        write.write_backup(of, FileTransfer(of), snapshots, raw, room, workspaces=workspaces, progress=SILENT)
    room.rmdir()  # nothing is left there
    return raw.getvalue()


def restored(data: bytes, to: Path, *, replace: bool = False) -> Path | None:
    with restore.staging_folder(to, replace=replace) as room:
        read.extract_backup(io.BytesIO(data), room / "come", SILENT)
        return restore.replace_state(room / "come", to)


def tree(folder: Path) -> dict[str, Any]:
    """Return the contents of a folder: text of files, target of links, None for the rest."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = path.read_bytes()
        elif not path.is_dir():
            found[name] = None
    return found


def test_all_of_a_state_comes_back_as_it_was_and_what_was_there_is_moved_aside(tmp_path: Path) -> None:
    of_all = state(tmp_path / "one")
    os.utime(of_all / "uses" / ADA, (1_700_000_000, 1_700_000_000))
    data = backed_up(of_all)
    kept = {name: text for name, text in tree(of_all).items() if not name.startswith(("cache", "state.db"))}
    del kept["spool/.users"]
    assert restored(data, tmp_path / "new" / "state") is None
    assert {name: text for name, text in tree(tmp_path / "new" / "state").items() if name in kept} == kept
    assert (tmp_path / "new" / "state" / "uses" / ADA).stat().st_mtime == 1_700_000_000, "when she called last"
    assert lasting(tmp_path / "new" / "state" / "state.db") == lasting(of_all / "state.db")
    assert sorted(os.listdir(tmp_path / "new" / "state")) == sorted(
        ["archive", "audit", "flags", "keys", "spool", "state.db", "uses", "workspaces"]
    )
    work = tmp_path / "new" / "state" / "workspaces" / ADA
    for packed in (work, of_all / "workspaces" / ADA):
        assert stat.S_IMODE((packed / "closed").stat().st_mode) == 0
    assert stat.S_IMODE((of_all / "workspaces" / ADA / "deep" / "er").stat().st_mode) == 0o500
    assert (work / "again").stat().st_ino == (work / "deep" / "er" / "note").stat().st_ino

    without = backed_up(of_all, workspaces=False)
    (of_all / restore.STAGE).mkdir()  # of one that was killed
    with pytest.raises(BackupError, match="is not empty, it has archive: --replace"):
        restored(without, of_all)
    before = tree(of_all)
    aside = restored(without, of_all, replace=True)
    assert aside is not None and aside.parent == of_all
    moved, stays = ("state.db", "keys/", "flags/", "audit/", "uses/"), ("workspaces/", "archive/", "spool/", "cache/")
    assert tree(aside) == {name: text for name, text in before.items() if name.startswith(moved)}
    now = tree(of_all)
    for name, text in before.items():
        assert not name.startswith(stays) or now[name] == text, "what the backup does not have stays in place"
    assert (of_all / "keys" / "signing").read_bytes() == b"k" * 32
    assert not (of_all / restore.STAGE).exists()


@pytest.mark.parametrize("error", [OSError("the disk fails"), KeyboardInterrupt("the disk fails")])
def test_what_can_be_put_in_place_by_half_only_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    held = state(tmp_path)
    data, before, rename = backed_up(held, workspaces=False), tree(held), Path.rename

    def failing(path: Path, to: Path) -> Path:
        if path.parent.name == "come" and path.name == contents.DATABASE:
            raise error
        return rename(path, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        with pytest.raises((BackupError, KeyboardInterrupt), match="the disk fails"):
            restored(data, held, replace=True)
    assert tree(held) == before and not any(held.glob(f"{restore.REPLACED}*"))


def test_what_has_come_is_on_the_disk_before_it_is_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = backed_up(made(tmp_path).parent)
    found: list[list[str]] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "sync", lambda: found.append(os.listdir(tmp_path / "new")))
        restored(data, tmp_path / "new")
    assert [[name[: len(restore.STAGE)] for name in names] for names in found] == [[restore.STAGE]]


def test_what_cant_be_taken_back_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = state(tmp_path)
    data, before, rename = backed_up(held, workspaces=False), tree(held), Path.rename

    def failing(path: Path, to: Path) -> Path:
        if path.parent.name == "come" or to.parent.name == "come":
            raise OSError("the disk fails")
        if path.parent.name.startswith(restore.REPLACED):
            raise OSError("the disk fails again")
        return rename(path, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        with pytest.raises(BackupError, match="the disk fails again; the previous contents are in ") as caught:
            restored(data, held, replace=True)
    (aside,) = held.glob(f"{restore.REPLACED}*")
    assert f"{aside}; try toolgate restore --undo" in str(caught.value)
    assert tree(aside).items() <= before.items() and "state.db" in tree(aside)
    with pytest.raises(lock.StateInUseError, match="was interrupted: run that again, with --replace, or run"):
        lock.acquire_shared(held)
    assert restore.undo_unfinished(held) and tree(held) == before


def test_a_signal_during_the_replacement_of_a_state_takes_effect_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = state(tmp_path)
    (tmp_path / "b").write_bytes(backed_up(held, workspaces=False))
    done: list[object] = []
    monkeypatch.setattr(restore, "sync_folder", lambda _: done.append(os.kill(os.getpid(), signal.SIGTERM)))
    monkeypatch.setattr(backup, "_report_restore", lambda *told: done.extend(told[2:]))
    with pytest.raises(KeyboardInterrupt):
        backup.restore(load.load({"state": str(held)}, {}), file=str(tmp_path / "b"), replace=True)
    (aside,) = held.glob(f"{restore.REPLACED}*")
    assert done == [None, aside] and lasting(held / contents.DATABASE) == lasting(aside / contents.DATABASE)


def unfolded(folder: Path) -> tuple[Path, bytes]:
    """Return a database with its last row only in its log, as after `kill -9`, and that log."""
    database = made(folder)
    copies = [database.with_name(database.name + end) for end in ("", "-wal")]
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("DELETE FROM plan")
        connection.commit()
        held = [path.read_bytes() for path in copies]
    for path, data in zip(copies, held, strict=True):
        path.write_bytes(data)
    return database, held[1]


def test_a_database_that_is_replaced_is_folded_into_one_file_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, (database, log) = backed_up(made(tmp_path).parent), unfolded(tmp_path / "killed")
    moved: list[str] = []
    rename = Path.rename

    def told(path: Path, to: Path) -> Path:
        moved.append(path.name)
        return rename(path, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", told)
        aside = restored(data, database.parent, replace=True)
    assert log and moved[:2] == ["state.db", "state.db"]
    assert aside is not None and rows(aside / database.name)["plan"] == [] != rows(database)["plan"]
    database.write_bytes(b"nonsense" * 4096)
    aside = restored(data, database.parent, replace=True)
    assert aside is not None and (aside / database.name).read_bytes() == b"nonsense" * 4096


def test_a_new_database_reads_no_log_of_another(tmp_path: Path) -> None:
    database, log = unfolded(tmp_path)
    database.unlink()
    store = SqliteStore(database.parent)
    try:
        told = asyncio.run(store.transact(lambda held: held.exec_driver_sql("PRAGMA quick_check").scalar_one()))
    finally:
        store.close()
    assert told == "ok" and rows(database)["plan"] == []
    (left,) = database.parent.glob("state.db-wal.left-*")
    assert left.read_bytes() == log


def test_a_backup_of_an_older_version_is_upgraded_by_its_server_and_a_newer_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = made(tmp_path / "old")
    restored(backed_up(database.parent), tmp_path / "state")
    assert version(tmp_path / "state" / "state.db") == VERSION
    with monkeypatch.context() as patch:
        of_the_next_version(tmp_path, "", patch)
        assert tasks(tmp_path) == ["write the report", "tidy up"]
    assert version(tmp_path / "state" / "state.db") == VERSION + 1
    assert (tmp_path / "state" / f"state.db.before-{VERSION + 1}").exists()
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(BackupError, match=r"newer Toolgate \([\w.]+; its database has version 99"):
        restored(backed_up(database.parent), tmp_path / "newer")
    assert not (tmp_path / "newer").exists()


def test_the_database_is_copied_as_it_was_in_one_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = made(tmp_path)
    before, copy = rows(database), snapshot._copy

    def late(source: sqlite3.Connection, to: Path) -> None:
        with contextlib.closing(sqlite3.connect(database)) as other, other:
            other.execute("DELETE FROM plan")
        copy(source, to)

    def moment() -> str:
        with contextlib.closing(sqlite3.connect(database, timeout=0)) as other, pytest.raises(sqlite3.OperationalError):
            other.execute("DELETE FROM plan")
        return "then"

    monkeypatch.setattr(snapshot, "_copy", late)
    assert snapshot.copy_with(database, tmp_path / "copy", moment) == (VERSION, "then")
    assert rows(tmp_path / "copy") == before and rows(database)["plan"] == []
    database.write_bytes(b"nonsense" * 4096)
    with pytest.raises(StateError, match="damaged"):
        snapshot.copy_with(database, tmp_path / "another", moment)
    assert not (tmp_path / "another").exists()


# Archives that nobody made with `toolgate backup`


def digest(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def archive(held: dict[str, bytes], /, *odd: tarfile.TarInfo, **said: Any) -> bytes:
    """Return files as in a backup, then odd entries, then the manifest, in which `said` replaces members."""
    told = {name: digest(data) for name, data in held.items()}
    manifest: dict[str, Any] = {"format": 1, "toolgate": "0", "made": "", "schema": None, "workspaces": True}
    text = json.dumps({**manifest, "files": told, **said}).encode()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz", format=tarfile.GNU_FORMAT) as tar:
        for name, data in held.items():
            tar.addfile(entry(name, len(data)), io.BytesIO(data))
        for info in odd:
            put(tar, info)
        tar.addfile(entry(contents.MANIFEST, len(text)), io.BytesIO(text))
    return raw.getvalue()


def entry(name: str, size: int = 1, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname, info.mode = size, kind, link, 0o4777
    return info


def put(tar: tarfile.TarFile, info: tarfile.TarInfo) -> None:
    """Add an entry's header and one block of data: since 3.13 `addfile` takes no size without that much data."""
    assert tar.fileobj is not None
    head = info.tobuf(tar.format or tarfile.GNU_FORMAT)
    tar.fileobj.write(head + (b"x" * 512 if info.size else b""))
    tar.offset += len(head)


def packed(*entries: tarfile.TarInfo) -> bytes:
    """Return a principal's folder as packed in a backup."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for info in entries:
            put(tar, info)
    return raw.getvalue()


def holed(name: str) -> bytes:
    """Return a tar of one file that is a hole of 8 EiB."""
    info = tarfile.TarInfo(name)
    info.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "0,0",
        "GNU.sparse.size": str(2**62),
    }
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info)
    return raw.getvalue()


KEYS = {"keys/signing": b"k" * 32}
THEIRS = f"workspaces/{ADA}.tar.gz"
ODD = [
    ("/etc/cron.d/x", {}),
    ("../outside", {}),
    ("keys/../../outside", {}),
    ("keys/.hidden", {}),
    ("keys/", {"kind": tarfile.DIRTYPE, "size": 0}),
    ("keys/link", {"kind": tarfile.SYMTYPE, "link": "/etc/passwd", "size": 0}),
    ("keys/hard", {"kind": tarfile.LNKTYPE, "link": "keys/signing", "size": 0}),
    ("keys/device", {"kind": tarfile.CHRTYPE, "size": 0}),
    ("keys/pipe", {"kind": tarfile.FIFOTYPE, "size": 0}),
    ("keys/what", {"kind": b"Z"}),
    ("keys/hole", {"kind": tarfile.GNUTYPE_SPARSE}),
    ("keys/signing", {}),
    ("plugins/evil.py", {}),
    ("workspaces/plain", {}),
    ("keys/" + "x" * 150, {}),
]


@pytest.mark.parametrize(("name", "how"), ODD)
def test_what_no_backup_has_is_refused_and_nothing_comes_of_it(tmp_path: Path, name: str, how: dict[str, Any]) -> None:
    with pytest.raises(BackupError):
        restored(archive(KEYS, entry(name, **how)), tmp_path / "state")
    assert os.listdir(tmp_path) == []


def shortened(data: bytes, by: int) -> bytes:
    return data[:-by]


BROKEN: dict[str, tuple[bytes, str]] = {
    "no archive": (b"hello" * 1000, "damaged, or is not a backup"),
    "nothing": (b"", "damaged, or is not a backup"),
    "torn": (shortened(archive(KEYS), 60), "damaged, or is not a backup"),
    "without its end": (packed(), "its end is missing"),
    "changed": (archive(KEYS, files={"keys/signing": digest(b"l" * 32)}), "signing.* differs from its manifest"),
    "lacking": (archive({}, files={"keys/signing": digest(b"")}), "signing.* differs from its manifest"),
    "unannounced": (archive(KEYS, files={}), "signing.* differs from its manifest"),
    "of another format": (archive(KEYS, format=2), "the backup has an unknown format"),
    "of a manifest that is none": (archive(KEYS, files=[]), "the manifest of the backup is damaged"),
    "more behind the end": (archive(KEYS, entry(contents.MANIFEST)), "twice, or after its manifest"),
    "without end": (archive({"state.db": b""}, entry("keys/big", 2**60)), "too large"),
    "larger than the disk": (archive({}, entry("keys/big", 2**37)), "no room"),
    "of a size below nothing": (archive({}, entry("keys/big", -512)), "damaged|does not belong in a backup"),
    "a hole": (holed("keys/big"), "a header in it is too long|does not belong in a backup"),
    "a database that is none": (archive({"state.db": b"SQLite format 3\0" * 99}), "in the backup, the state database"),
    "theirs is none": (archive({THEIRS: b"none"}), "can't be unpacked"),
    "theirs leads out": (archive({THEIRS: packed(entry("../../../outside"))}), "a name in it leads out"),
    "theirs is absolute": (archive({THEIRS: packed(entry("/tmp/outside"))}), "a name in it leads out"),
    "theirs is a device": (archive({THEIRS: packed(entry("disk", 0, tarfile.BLKTYPE))}), "never packed"),
    "theirs is a hole": (archive({THEIRS: holed("big")}), "never packed"),
    "theirs is without end": (archive({THEIRS: packed(entry("big", 2**40))}), "too large|damaged"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_archive_that_is_not_whole_is_refused_and_nothing_comes_of_it(tmp_path: Path, what: str) -> None:
    data, said = BROKEN[what]
    before = {"workspaces": b"", "keys": b""}
    for name in before:
        (tmp_path / "state" / name).mkdir(parents=True)
    with pytest.raises(BackupError, match=said):
        restored(data, tmp_path / "state")
    assert (sorted(os.listdir(tmp_path)), tree(tmp_path / "state")) == (["state"], {})


DEEP = b"[" * 100_000, b'{"format": 1, "files": ' + b'{"a":' * 100_000


@pytest.mark.parametrize("text", [b"", b"[1", b"\xff", *DEEP], ids=["empty", "torn", "no text", "deep", "deep inside"])
def test_a_manifest_that_is_none_is_damaged(text: bytes) -> None:
    with pytest.raises(BackupError, match="the manifest of the backup is damaged"):
        contents.parse_manifest(text)


def test_a_link_in_a_workspace_is_never_gone_through(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    link = entry("out", 0, tarfile.SYMTYPE, str(tmp_path / "outside"))
    with pytest.raises((BackupError, OSError)):
        restored(archive({THEIRS: packed(link, entry("out/file"))}), tmp_path / "state")
    assert os.listdir(tmp_path / "outside") == [] and not (tmp_path / "state").exists()


def test_of_a_spool_only_files_and_folders_come_back(tmp_path: Path) -> None:
    odd = [
        entry("1", 0, tarfile.DIRTYPE),
        entry("1/task.json", 0, tarfile.FIFOTYPE),
        entry("1/output"),
        entry("places", 0, tarfile.SYMTYPE, "/tmp"),
        entry("last-id", 0, tarfile.FIFOTYPE),
        entry("ended.lock", 0, tarfile.LNKTYPE, "1/output"),
    ]
    restored(archive({f"spool/{ADA}.tar.gz": packed(*odd)}), tmp_path / "state")
    found = tmp_path / "state" / "spool" / ADA
    assert sorted(str(path.relative_to(found)) for path in found.rglob("*")) == ["1", "1/output"]


def test_a_server_serves_and_ends_whatever_a_spool_was_restored_from(tmp_path: Path) -> None:
    odd = [entry("1", 0, tarfile.DIRTYPE)]
    odd += [entry(name, 0, tarfile.FIFOTYPE) for name in ("1/task.json", "1/output", "last-id", "ended.lock")]
    restored(archive({"spool/local.tar.gz": packed(*odd)}), tmp_path / "state")
    with site(tmp_path) as at:
        session = opened(at, "")
        assert '"isError":false' in called(at, "", session, "ListBgTasks", {})[1].replace(" ", "")
        assert "it runs" in called(at, "", session, "Bash", {"command": "echo it runs"})[1]


@pytest.mark.parametrize("place", ["leaving/workspace", "leaving/rest"])
def test_no_folder_of_the_servers_own_comes_back_as_a_link(tmp_path: Path, place: str) -> None:
    folder, name = place.split("/")
    link = packed(entry(name, 0, tarfile.SYMTYPE, "/tmp"))
    with pytest.raises(BackupError, match=f"{folder}/{ADA}/{name} in the backup is not a folder"):
        restored(archive({f"{folder}/{ADA}.tar.gz": link}), tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_headers_that_would_fill_the_memory_are_not_read(tmp_path: Path) -> None:
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1) as out:
        out.write(entry("././@LongLink", 2**33, tarfile.GNUTYPE_LONGNAME).tobuf(tarfile.GNU_FORMAT))
    for data in (raw.getvalue(), archive({THEIRS: raw.getvalue()})):
        with pytest.raises(BackupError, match="a header in it is too long"):
            restored(data, tmp_path / "state")


# The command


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a state that the commands below only read."""
    folder = tmp_path_factory.mktemp("small")
    state(folder)
    return folder


def test_a_backup_goes_through_a_pipe_and_tells_a_terminal_how_far_it_is(small: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    line = f"{COMMAND} --state {small}/state backup - --with-workspaces | {COMMAND} --state {tmp_path}/state restore -"
    try:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], stderr=theirs, stdout=subprocess.PIPE, text=True, timeout=60
        )
        os.write(theirs, b"\x04")  # the system passes on what was written when it comes to that
        said = ""
        while not said.endswith("\x04"):
            said += os.read(ours, 65_536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0, said
    assert done.stdout.startswith(f"restored to {tmp_path}/state: ")
    assert "\rthe database" in said and "\rworkspaces … 1 of 1" in said
    assert lasting(tmp_path / "state" / "state.db") == lasting(small / "state" / "state.db")


def test_a_full_disk_is_told_and_leaves_nothing_behind(small: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    words = f"{COMMAND} --state {small}/state backup {tmp_path}/disk/b.tar.gz; echo $?; ls -A {tmp_path}/disk"
    mounts = ["--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--size", "150000", "--tmpfs", str(tmp_path / "disk")]
    done = subprocess.run(["bwrap", *mounts, "bash", "-c", words], capture_output=True, text=True, timeout=60)
    assert done.stdout == "1\n", done
    assert "the disk is full" in done.stderr or "can't grow" in done.stderr, done.stderr


def test_a_state_and_a_folder_for_backups_may_be_links(small: Path, tmp_path: Path) -> None:
    for name in ("state", "backups"):
        (tmp_path / name).mkdir()
        (tmp_path / f"to-{name}").symlink_to(name)
    backup._to_file(of_state(small / "state"), str(tmp_path / "to-backups" / "b"), False, SILENT)
    backup._restore_from(of_state(tmp_path / "to-state"), str(tmp_path / "backups" / "b"), False, SILENT)
    assert lasting(tmp_path / "state" / "state.db") == lasting(small / "state" / "state.db")


def test_what_cant_be_done_is_a_sentence(small: Path, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "empty").mkdir()
    at = ("--state", str(small / "state"))
    for words, code, said in (
        (("backup",), 2, "backup: FILE is missing"),
        (("backup", "a", "b"), 2, "backup: takes FILE and nothing else"),
        (("backup", "there", *at), 1, "there already exists"),
        (("backup", "no/such/b.tar.gz", *at), 1, "no/such"),
        (("backup", "b", "--state", "nowhere"), 2, "there is no folder"),
        (("backup", "b", "--state", "empty"), 1, "has nothing to back up"),
        (("backup", "b", "--replace"), 2, "it belongs to restore, node certificate"),
        (("restore", "b", "--with-workspaces"), 2, "it belongs to backup"),
        (("restore", "no-such", "--state", "new"), 1, "no-such"),
        (("restore", "there", "--state", "there"), 2, "is not a folder"),
        (("restore", "there", "--state", "new"), 1, "damaged, or is not a backup"),
    ):
        told = run(tmp_path, *words)
        assert (told.returncode, told.stdout) == (code, "") and said in told.stderr, (words, told)
    assert sorted(os.listdir(tmp_path)) == ["empty", "there"]
    assert (tmp_path / "there").read_text() == "mine"


def test_a_damaged_database_gets_no_backup_that_a_restore_would_refuse(tmp_path: Path) -> None:
    database = made(tmp_path)
    page = 4096
    for damage, said in (
        (b"\xff" * 8 * page, "the state database is damaged: move it away, or put back a copy"),
        (None, "the state database was not made by Toolgate, or is damaged"),
    ):
        with database.open("r+b") as file:
            file.seek(page)
            file.write(damage or b"")
            file.truncate(None if damage else 0)
        told = run(tmp_path, "backup", "b", "--state", str(database.parent))
        assert (told.returncode, told.stderr) == (1, f"toolgate: {said}\n")
        assert not (tmp_path / "b").exists()


def test_a_workspace_that_cant_be_packed_is_named_and_the_rest_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = state(tmp_path / "one")
    big = "u-" + "b" * 40
    (held / "workspaces" / big).mkdir()
    (held / "workspaces" / big / "data").write_bytes(b"data" * 2**14)
    monkeypatch.setattr(packing, "MAX_BYTES", 2**15)
    with pytest.raises(BackupError, match=rf"except for workspaces/{big} \(the folder is too large"):
        backup._to_file(of_state(held), str(tmp_path / "b"), True, SILENT)
    backup._restore_from(of_state(tmp_path / "new"), str(tmp_path / "b"), False, SILENT)
    assert os.listdir(tmp_path / "new" / "workspaces") == [ADA]
    assert f"missing, since it could not be packed: workspaces/{big}" in capsys.readouterr().err


def test_what_a_backup_leaves_out_is_told(tmp_path: Path) -> None:
    held = state(tmp_path / "it")
    for name in ("one", "two"):
        os.mknod(held / "workspaces" / ADA / name, stat.S_IFSOCK | 0o600)
    told = run(tmp_path, "backup", "b", "--with-workspaces", "--state", str(held))
    assert told.returncode == 0, told
    assert f"workspaces/{ADA} is in it without 2 entries (sockets, devices, files of others)\n" in told.stderr
    assert run(tmp_path, "restore", "b", "--state", "new").returncode == 0


def test_no_backup_is_made_of_a_state_that_is_being_replaced(small: Path, tmp_path: Path) -> None:
    with lock.hold_exclusive(small / "state"), pytest.raises(lock.StateInUseError, match="it is being restored"):
        backup._to_file(of_state(small / "state"), str(tmp_path / "b"), False, SILENT)
    assert os.listdir(tmp_path) == []
    with lock.hold_shared(small / "state"):
        backup._to_file(of_state(small / "state"), str(tmp_path / "b"), False, SILENT)


@pytest.mark.parametrize(("mode", "told"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_backup_into_a_file_that_others_can_read_says_so(
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mode: int,
    told: bool,
) -> None:
    path = tmp_path / "b"
    path.touch()
    path.chmod(mode)
    with path.open("w") as file, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", file)
        backup._to_stream(of_state(small / "state"), "-", False, SILENT)
    assert ("other users can read the output file" in capsys.readouterr().err) == told
    assert restored(path.read_bytes(), tmp_path / "new") is None


def test_a_server_that_starts_during_a_replacement_of_the_state_is_refused(small: Path, tmp_path: Path) -> None:
    at = ("--state", str(small / "state"))
    with lock.hold_exclusive(small / "state"):
        for words, code in ((("-t", "--port", "0", "--auth", "none", *at), 2), (("user", "list", *at), 1)):
            told = run(tmp_path, *words)
            assert told.returncode == code and "it is being restored, or backed up" in told.stderr, told
    assert run(tmp_path, "user", "list", *at).returncode == 0
