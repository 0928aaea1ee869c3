"""Workspaces of people who are gone or long idle, archived and removed by a server with sign-in and by the operator."""

import asyncio
import os
import stat
import subprocess
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, eventually, processes_with
from tests.server.auth.minted_tokens import Signed, asked, signed_site
from tests.server.cli.test_cli import run
from toolgate.server.app.app import App
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.principals.principal import Principal, derive_subject
from toolgate.server.config import load
from toolgate.server.protocol.session import Session
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows.people import BUILT_IN
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.workspaces import archive as packing
from toolgate.server.workspaces.folders import PrincipalFolders
from toolgate.server.workspaces.last_used import LastUsed
from toolgate.server.workspaces.retention import RetentionPolicy, WorkspaceCleaner

DAY = 86_400
NEVER = RetentionPolicy()
ADA, BOB, EVE = (Principal(OWN_ISSUER, name, "").name for name in ("ada", "bob", "eve"))


def text(signed: Signed, token: str, command: str) -> str:
    """Return a command's output without its decoration."""
    said = asked(signed, token, "tools/call", {"name": "Bash", "arguments": {"command": command}})[2]
    assert not said["result"]["isError"], said
    return "\n".join(block["text"] for block in said["result"]["content"])


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "--state", str(folder / "state"), *words)


def idle(state: Path, name: str, days: float, ending: str = "") -> None:
    """Set the last call of `name` so many days back."""
    then = time.time() - days * DAY
    os.utime(state / "uses" / (name + ending), (then, then))


def archives(state: Path) -> list[str]:
    return sorted(os.listdir(state / "archive")) if (state / "archive").exists() else []


def filled(state: Path, *names: str) -> None:
    for name in names:
        for folder in ("workspaces", "spool"):
            (state / folder / name).mkdir(parents=True)
            (state / folder / name / "note").write_text(name)


def look(cleaner: WorkspaceCleaner) -> None:
    async def once() -> None:
        async with asyncio.timeout(PATIENCE):
            await cleaner.clean()

    asyncio.run(once())


class TimedCleaner:
    """A cleaner with its own state and a fake clock."""

    def __init__(self, state: Path, idle: RetentionPolicy, gone: RetentionPolicy = NEVER) -> None:
        state.mkdir(exist_ok=True)
        self.state = state
        self.days = 0.0
        self.gone: Collection[str] | None = ()
        self.ended: list[str] = []
        self.cleaner = WorkspaceCleaner(state, idle=idle, gone=gone, list_gone=self._gone, end=self._end, now=self._now)

    def look(self) -> None:
        look(self.cleaner)

    async def _gone(self) -> Collection[str] | None:
        return self.gone

    async def _end(self, name: str) -> None:
        self.ended.append(name)

    def _now(self) -> float:
        return 1_800_000_000 + self.days * DAY


# -- by the server


def test_a_returning_principal_gets_a_new_workspace_and_one_message_about_the_old_one(tmp_path: Path) -> None:
    with signed_site(tmp_path, workspace=False) as signed:
        ada, bob = signed.token("ada", "one"), signed.token("bob", "one")
        text(signed, ada, "echo hers > note; ln -s /etc/passwd link")
        text(signed, bob, "echo his > note")
        state = signed.site.state
    idle(state, ADA, 91)
    options = ("--idle-workspaces", "archive", "--idle-after", "90d", "--state", str(state))
    with signed_site(tmp_path, *options, workspace=False) as signed:
        signed.site.state = state
        assert eventually((state / "uses" / f"{ADA}.word").exists)
        assert not (state / "workspaces" / ADA).exists()
        (archive,) = archives(state)
        assert archive.startswith(ADA) and stat.S_IMODE((state / "archive" / archive).stat().st_mode) == 0o600
        assert not (state / "spool" / ADA).exists()
        again = Signed(signed.site)
        said = text(again, again.token("ada", "two", jti="again", noted=False), "ls")
        assert "note" not in said.splitlines()[0]
        assert f"your workspace was archived after 91 days without a call, and you have a new one: {archive}" in said
        said = text(again, again.token("ada", "two", jti="again", noted=False), "ls -A")
        assert "archived" not in said
        assert "his" in text(again, again.token("bob", "one", jti="again", noted=False), "cat note")
    told = command(tmp_path, "workspace", "restore", archive)
    assert (told.returncode, told.stderr) == (0, "") and str(state / "workspaces" / ADA) in told.stdout
    assert (state / "workspaces" / ADA / "note").read_text() == "hers\n"
    assert (state / "workspaces" / ADA / "link").is_symlink()


def test_by_default_no_principals_folder_is_touched(tmp_path: Path) -> None:
    with signed_site(tmp_path, workspace=False) as signed:
        text(signed, signed.token("ada", "one"), "echo hers > note")
        state = signed.site.state
    idle(state, ADA, 3_650)
    with signed_site(tmp_path, "--state", str(state), workspace=False) as signed:
        signed.site.state = state
        assert eventually(lambda: (state / "leaving" / ".lock").exists())  # it has looked
        again = Signed(signed.site)
        assert "hers" in text(again, again.token("ada", "one", jti="again", noted=False), "cat note")
    assert archives(state) == []


def test_the_workspace_of_a_removed_account_is_archived(tmp_path: Path) -> None:
    """The removed account's commands have ended; after a month its folders are removed."""
    state = tmp_path / "state"
    name = Principal(OWN_ISSUER, derive_subject(BUILT_IN, "a1"), "").name

    def put(connection: Any) -> None:
        row = {"issuer": BUILT_IN, "known_as": "a1", "name": "ada", "seen_at": time.time()}
        grant_rows.save_person(connection, derive_subject(BUILT_IN, "a1"), **row)

    store = SqliteStore(state)
    asyncio.run(store.transact(put))
    store.close()
    filled(state, name)
    (state / "uses").mkdir()
    (state / "uses" / f"{name}.gone").touch()
    idle(state, name, 31, ".gone")
    listed = command(tmp_path, "workspace", "list").stdout.splitlines()
    assert listed[0].split() == ["NAME", "WORKSPACE", "SIZE", "LAST", "CALL"]
    assert listed[1].split()[:2] == ["ada", name] and "unknown" in listed[1]
    with signed_site(tmp_path, "--state", str(state), workspace=False):
        assert eventually((state / "uses" / f"{name}.word").exists)
        assert len(archives(state)) == 1 and not (state / "workspaces" / name).exists()
    assert "archived" in command(tmp_path, "workspace", "list").stdout


def test_a_workspace_that_was_given_is_never_touched(tmp_path: Path) -> None:
    options = ("--idle-workspaces", "delete", "--idle-after", "1h")
    with signed_site(tmp_path, *options) as signed:
        text(signed, signed.token("ada", "one"), "echo everybodys > note")
        assert not (signed.site.state / "uses").exists()
        assert not list((signed.site.state / "workspaces").iterdir())


@pytest.mark.parametrize("words", [("--idle-after", "5m"), ("--gone-after", "x"), ("--idle-workspaces", "burn")])
def test_a_policy_that_is_a_slip_is_refused(tmp_path: Path, words: tuple[str, str]) -> None:
    told = command(tmp_path, "-t", *words)
    assert told.returncode == 2 and words[0] in told.stderr


def test_the_commands_of_an_idle_principal_end_and_its_next_call_gets_a_new_workspace(tmp_path: Path) -> None:
    given = {"http": "true", "auth": "none", "state": str(tmp_path / "state"), "idle_workspaces": "archive"}

    async def scenario() -> None:
        app = App(load.load(given, {"PATH": os.environ["PATH"]}))
        assert app.host.cleaner() is not None
        try:
            session = Session(ADA, stateless=True)
            before = app.host.server().services.of_session(session).workspace
            run = await before.start("touch mine; echo done; sleep 61.5417", background=True)
            assert await before.wait_output(run, 0, PATIENCE)
            assert app.host.cleaner().note_call(ADA) is None
            app.host.cleaner()._now = lambda: time.time() + 100 * DAY
            await app.host.cleaner().clean()
            assert not processes_with("61.5417")
            after = app.host.server().services.of_session(session).workspace
            assert after is not before and after.root == before.root
            run = await after.start("ls -A; echo new > note")
            assert await after.wait(run, PATIENCE) and (await after.take(run, 1_000)).text == ""
            assert app.host.server().note_use is not None
            app.host.server().note_use(ADA)
            (notice,) = app.host.server().services.notices(ADA).take().values()
            assert "archived after 100 days" in notice.text
        finally:
            await app.close()

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await scenario()

    asyncio.run(bounded())


# -- the policy


def test_no_principal_is_idle_too_early_and_an_unknown_one_counts_from_the_first_look(tmp_path: Path) -> None:
    sign_in_server = TimedCleaner(tmp_path / "state", RetentionPolicy("delete", 90 * DAY))
    filled(sign_in_server.state, ADA, BOB)
    sign_in_server.look()
    for sign_in_server.days in (50, 89):
        sign_in_server.cleaner.note_call(BOB)
        sign_in_server.look()
        assert sign_in_server.cleaner.folders.list_names() == sorted((ADA, BOB))
    sign_in_server.days = 90
    sign_in_server.look()
    assert sign_in_server.cleaner.folders.list_names() == [BOB] and sign_in_server.ended == [ADA]
    assert archives(sign_in_server.state) == [] and sign_in_server.cleaner.folders.list_leaving() == []
    assert "removed after 90 days" in str(sign_in_server.cleaner.note_call(ADA))
    assert sign_in_server.cleaner.note_call(ADA) is None


def test_a_gone_principal_has_its_own_policy_until_it_comes_back(tmp_path: Path) -> None:
    sign_in_server = TimedCleaner(tmp_path / "state", RetentionPolicy(), RetentionPolicy("archive", 30 * DAY))
    filled(sign_in_server.state, ADA, BOB)
    sign_in_server.gone = (ADA, BOB)
    sign_in_server.look()
    sign_in_server.days, sign_in_server.gone = 20, (ADA,)
    sign_in_server.look()
    sign_in_server.days, sign_in_server.gone = 31, (ADA, BOB)
    sign_in_server.look()
    assert [name[:42] for name in archives(sign_in_server.state)] == [ADA]
    sign_in_server.days = 45
    sign_in_server.gone = None  # nobody knows: nobody is judged
    sign_in_server.look()
    sign_in_server.gone = (ADA, BOB)
    sign_in_server.look()
    assert sign_in_server.cleaner.folders.list_names() == [BOB]
    sign_in_server.days = 62
    sign_in_server.look()
    assert sign_in_server.cleaner.folders.list_names() == []


def test_only_folders_of_people_are_looked_at(tmp_path: Path) -> None:
    sign_in_server = TimedCleaner(tmp_path / "state", RetentionPolicy("delete", 0), RetentionPolicy("delete", 0))
    filled(sign_in_server.state, "local", "u-x", "other", ADA)
    sign_in_server.days = 1_000
    sign_in_server.look()
    assert sorted(os.listdir(sign_in_server.state / "workspaces")) == ["local", "other", "u-x"]


def test_one_call_is_noted_a_minute(tmp_path: Path) -> None:
    now = [1_000.0]
    (tmp_path / "state").mkdir()
    uses = LastUsed(tmp_path / "state" / "uses", lambda: now[0])
    uses.note_call(ADA)
    marker = tmp_path / "state" / "uses" / ADA
    now[0] += 59
    uses.note_call(ADA)
    assert marker.stat().st_mtime == 1_000
    now[0] += 2
    uses.note_call(ADA)
    assert marker.stat().st_mtime == 1_061
    uses.note_call("local")
    uses.note_call("../../x")
    assert os.listdir(marker.parent) == [ADA]


def test_a_workspace_that_cant_be_packed_is_put_back_and_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sign_in_server = TimedCleaner(tmp_path / "state", RetentionPolicy("archive", 0))
    filled(sign_in_server.state, ADA, BOB)
    (sign_in_server.state / "workspaces" / ADA / "data").write_bytes(b"data" * 2**14)
    monkeypatch.setattr(packing, "MAX_BYTES", 2**15)
    sign_in_server.look()
    assert sign_in_server.cleaner.folders.list_names() == [ADA]
    assert (sign_in_server.state / "workspaces" / ADA / "note").read_text() == ADA
    assert [name[:42] for name in archives(sign_in_server.state)] == [BOB]
    assert "too large" in caplog.text and "next try" in caplog.text
    monkeypatch.setattr(packing, "MAX_BYTES", 1)
    (sign_in_server.state / "workspaces" / ADA / "data").unlink()
    sign_in_server.look()
    assert (sign_in_server.state / "workspaces" / ADA / "note").exists()
    monkeypatch.undo()
    sign_in_server.look()
    assert sign_in_server.cleaner.folders.list_names() == [] and len(archives(sign_in_server.state)) == 2
    assert sign_in_server.cleaner.folders.list_leaving() == []


def test_a_removal_interrupted_by_a_crash_is_continued(tmp_path: Path) -> None:
    sign_in_server = TimedCleaner(tmp_path / "state", RetentionPolicy())
    filled(sign_in_server.state, ADA, BOB)
    folders = sign_in_server.cleaner.folders
    folders.set_aside(ADA)  # and then the end: it was to be archived
    folders.mark_for_removal(folders.set_aside(BOB))  # that was done already
    sign_in_server.look()
    assert [name[:42] for name in archives(sign_in_server.state)] == [ADA]
    assert folders.list_leaving() == []


def test_one_at_a_time_puts_away(tmp_path: Path) -> None:
    sign_in_server = TimedCleaner(tmp_path / "state", RetentionPolicy("delete", 0))
    filled(sign_in_server.state, ADA)
    with PrincipalFolders(sign_in_server.state).hold_lock(), pytest.raises(OSError, match="another process"):
        sign_in_server.look()
    assert sign_in_server.cleaner.folders.list_names() == [ADA]


# -- by the operator


def test_the_operator_archives_restores_and_removes(tmp_path: Path) -> None:
    state = tmp_path / "state"
    filled(state, ADA)
    assert command(tmp_path, "workspace", "archive", ADA).returncode == 0
    (archive,) = archives(state)
    assert command(tmp_path, "workspace", "list").stdout.split()[5:7] == ["?", archive]
    assert LastUsed(state / "uses").note_call(ADA) == (
        f"your workspace was archived by the operator, and you have a new one: {archive} has its contents"
    )
    assert command(tmp_path, "workspace", "restore", ADA).returncode == 0
    assert (state / "workspaces" / ADA / "note").read_text() == ADA
    again = command(tmp_path, "workspace", "restore", ADA)
    assert again.returncode == 1 and "is not empty" in again.stderr
    assert command(tmp_path, "workspace", "remove", ADA).returncode == 0
    assert command(tmp_path, "workspace", "remove", archive).returncode == 0
    assert archives(state) == [] and len(command(tmp_path, "workspace", "list").stdout.splitlines()) == 1
    assert os.listdir(state / "leaving") == [".lock"]


def test_the_omissions_of_an_archive_are_reported(tmp_path: Path) -> None:
    state = tmp_path / "state"
    filled(state, ADA)
    os.mknod(state / "workspaces" / ADA / "socket", stat.S_IFSOCK | 0o600)
    told = command(tmp_path, "workspace", "archive", ADA)
    without = "without 1 entry (sockets, devices, files of others)"
    assert told.returncode == 0 and told.stdout.endswith(f".tar.gz, {without}\n"), told
    (archive,) = archives(state)
    assert (LastUsed(state / "uses").note_call(ADA) or "").endswith(f": {archive}, {without}, has its contents")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "list, archive, restore, remove"),
        (["list", "ada"], 2, "ada"),
        (["archive"], 2, "WHO is missing"),
        (["archive", "ada"], 1, "there is no person 'ada'"),
        (["archive", "../../etc"], 1, "there is no person"),
        (["remove", "local"], 1, "local has no workspace"),
        (["remove", BOB], 1, "has no workspace"),
        (["restore", BOB], 1, "no archive"),
        (["restore", "../archive/x.tar.gz"], 1, "there is no person"),
    ],
)
def test_what_the_operator_cant_have_is_a_sentence(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    told = command(tmp_path, "workspace", *words)
    assert (told.returncode, told.stdout) == (code, "") and said in told.stderr, told
    assert not (tmp_path / "state").exists()


def test_a_workspace_in_use_by_a_server_is_not_archived(tmp_path: Path) -> None:
    with signed_site(tmp_path, workspace=False) as signed:
        ada = signed.token("ada", "one")
        text(signed, ada, "echo hers > note; (sleep 61.4813 &) ")
        for action in ("archive", "remove"):
            told = command(tmp_path, "workspace", action, ADA)
            assert told.returncode == 1 and "a running server or node uses" in told.stderr, told
        assert processes_with("61.4813")
        assert "hers" in text(signed, ada, "cat note")
    assert command(tmp_path, "workspace", "archive", ADA).returncode == 0
