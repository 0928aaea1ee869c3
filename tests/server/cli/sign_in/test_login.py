"""`toolgate login` against a real server: a person signs in, calls need no token, and access ends everywhere."""

import contextlib
import fcntl
import os
import pty
import re
import socket
import sqlite3
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.clients.raw_client import COMMAND, PATIENCE, eventually
from tests.clients.raw_http_client import Site, site
from tests.needed_features import require_for
from tests.server.auth.http_browser import Person
from tests.server.cli.test_cli import run
from toolgate.server.cli.sign_in.credentials import CredentialStore, SignIn


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("served"), "--auth", "oauth") as listening:
        yield listening


BROWSER = "sh -c 'printf %s \"$0\" > opened'"


def sign_in(
    place: Site, home: Path, decision: str = "approve", *, on_terminal: bool = False, browser: str = BROWSER
) -> tuple[int, str, str]:
    """Run `toolgate login`, and decide as a person would; on a terminal, paste where the browser ends. Return how it
    ended."""
    outer, inner = pty.openpty()
    own = {"HOME": str(home), "PATH": os.environ["PATH"], "BROWSER": browser}
    with subprocess.Popen(
        [COMMAND, "login", f"{place.url}/mcp"],
        cwd=home,
        env=own,
        stdin=inner if on_terminal else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith("  http"))
        back = Person(place).decide(line.strip(), decision)
        if on_terminal:
            os.write(outer, f"{back.replace('state=', 'state=x')}\n{back}\n".encode())
        else:
            with urllib.request.urlopen(back) as page:
                assert b"close this window" in page.read()
        said, told = process.communicate(timeout=PATIENCE)
    os.close(outer)
    os.close(inner)
    return process.returncode, said, told


def stored(place: Site, home: Path) -> tuple[CredentialStore, SignIn]:
    store = CredentialStore(home / ".config" / "toolgate" / "sign-ins")
    found = store.read(f"{place.url}/mcp")
    assert found is not None
    return store, found


def test_a_browser_may_say_where_the_url_stands(place: Site, tmp_path: Path) -> None:
    assert sign_in(place, tmp_path, browser=f"{BROWSER} %s more")[0] == 0
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{22}", (tmp_path / "opened").read_text())


def test_a_person_signs_in_once_and_handles_no_token(place: Site, tmp_path: Path) -> None:
    require_for("doctor --url")
    url = f"{place.url}/mcp"
    before = run(tmp_path, "tools", "--url", url)
    way = f"Not signed in. Run `toolgate login {url}`, or set TOOLGATE_TOKEN."
    assert before.returncode == 1 and way in before.stderr
    assert sign_in(place, tmp_path)[:2] == (0, f"signed in to {url}\n")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{22}", (tmp_path / "opened").read_text())  # others see commands
    assert run(tmp_path, "call", "Bash", "command=echo hi", "--url", url).stdout == "hi\n"
    assert "ListBgTasks" in run(tmp_path, "tools", "--url", place.url).stdout  # /mcp is added
    store, found = stored(place, tmp_path)
    folder = tmp_path / ".config" / "toolgate" / "sign-ins"
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in folder.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600
        assert found.access_token.encode() not in file.read_bytes()
    store.write(msgspec.structs.replace(found, expires_at=0.0))
    assert run(tmp_path, "call", "ListBgTasks", "--url", url).returncode == 0
    renewed = stored(place, tmp_path)[1]
    assert (renewed.access_token, renewed.refresh_token) != (found.access_token, found.refresh_token)
    wins = run(tmp_path, "tools", "--url", url, TOOLGATE_TOKEN="nobody-made-it")
    assert wins.returncode == 1 and "The server refuses the access token" in wins.stderr
    doctor = run(tmp_path, "doctor", "--url", url, "--json")
    checks = {check["name"]: check["verdict"] for check in msgspec.json.decode(doctor.stdout)["checks"]}
    assert (checks["first call"], checks["session"]) == ("ok", "ok")
    out = run(tmp_path, "logout", url)
    assert (out.returncode, out.stdout, out.stderr) == (0, f"signed out of {url}\n", "")
    assert run(tmp_path, "tools", "--url", url).returncode == 1
    assert run(tmp_path, "logout", url).returncode == 1


def test_revoked_access_says_how_to_sign_in_again(place: Site, tmp_path: Path) -> None:
    assert sign_in(place, tmp_path)[0] == 0
    ended = run(tmp_path, "token", "revoke", "all", "--state", str(place.state))
    assert ended.returncode == 0, ended.stderr
    store, found = stored(place, tmp_path)
    store.write(msgspec.structs.replace(found, expires_at=0.0))  # a running server notices within seconds
    told = run(tmp_path, "tools", "--url", f"{place.url}/mcp")
    assert (told.returncode, told.stdout) == (1, "")
    assert f"sign in again: toolgate login {place.url}/mcp" in told.stderr


def count(place: Site, table: str, where: str = "TRUE") -> int:
    """Return how many rows of the server's state match."""
    with contextlib.closing(sqlite3.connect(place.state / "state.db")) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchone()[0])


def grants_and_clients(place: Site) -> tuple[int, int]:
    """Return how many valid grants and how many registered clients the server has."""
    return count(place, "oauth_grant", "revoked_at IS NULL AND used_at IS NOT NULL"), count(place, "oauth_client")


def test_a_second_sign_in_uses_the_same_client_and_ends_the_first(place: Site, tmp_path: Path) -> None:
    assert sign_in(place, tmp_path)[0] == 0
    first = stored(place, tmp_path)[1]
    grants, clients = grants_and_clients(place)
    code, _, told = sign_in(place, tmp_path)
    assert code == 0 and "toolgate: " not in told
    second = stored(place, tmp_path)[1]
    assert (second.client_id, second.redirect_port) == (first.client_id, first.redirect_port)
    assert second.refresh_token != first.refresh_token
    assert grants_and_clients(place) == (grants, clients)
    url = f"{place.url}/mcp"
    assert run(tmp_path, "tools", "--url", url, TOOLGATE_TOKEN=first.access_token).returncode == 1
    assert run(tmp_path, "tools", "--url", url).returncode == 0
    with socket.create_server(("127.0.0.1", first.redirect_port)):  # another program has the port
        assert sign_in(place, tmp_path)[0] == 0
    third = stored(place, tmp_path)[1]
    assert third.client_id != first.client_id and third.redirect_port != first.redirect_port
    assert grants_and_clients(place) == (grants, clients + 1)
    removed = run(tmp_path, "client", "remove", third.client_id, "--state", str(place.state))
    assert removed.returncode == 0, removed.stderr
    assert sign_in(place, tmp_path)[0] == 0  # as a new client: the server has forgotten the other
    assert stored(place, tmp_path)[1].client_id not in (first.client_id, third.client_id)
    assert grants_and_clients(place) == (grants, clients + 1)


def test_two_processes_renew_a_token_once(place: Site, tmp_path: Path) -> None:
    assert sign_in(place, tmp_path)[0] == 0
    store, first = stored(place, tmp_path)
    store.write(msgspec.structs.replace(first, expires_at=0.0))
    (lock,) = (tmp_path / ".config" / "toolgate" / "sign-ins").glob("*.lock")
    issued = f"client = '{first.client_id}'"
    before = count(place, "oauth_access", issued)
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        own = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        command = [COMMAND, "call", "Bash", "command=echo hi", "--url", f"{place.url}/mcp"]
        calls = [subprocess.Popen(command, cwd=tmp_path, env=own, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        assert eventually(lambda: all(has_open(call.pid, lock) for call in calls))  # both want to renew it
    assert [call.communicate(timeout=PATIENCE)[0] for call in calls] == ["hi\n"] * 2
    assert count(place, "oauth_access", issued) == before + 1
    second = stored(place, tmp_path)[1]
    store.write(msgspec.structs.replace(second, expires_at=0.0))
    assert run(tmp_path, "call", "Bash", "command=echo hi", "--url", f"{place.url}/mcp").stdout == "hi\n"


def has_open(pid: int, file: Path) -> bool:
    """Return whether a process has the file open."""
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:  # a file may be closed meanwhile
        return str(file) in [os.readlink(entry.path) for entry in entries]
    return False


def test_the_url_where_a_browser_elsewhere_ends_can_be_pasted(place: Site, tmp_path: Path) -> None:
    code, said, told = sign_in(place, tmp_path, on_terminal=True)
    assert (code, said) == (0, f"signed in to {place.url}/mcp\n"), told
    assert "another sign-in: its state differs" in told


def test_a_person_who_denies_gets_no_token(place: Site, tmp_path: Path) -> None:
    code, said, told = sign_in(place, tmp_path, "deny")
    assert (code, said) == (1, "") and "the server refuses: access_denied" in told
    assert not (tmp_path / ".config").exists()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://example.com", "is not an http or https URL"),
        ("http://example.com/mcp", "must be an https URL"),
        ("http://user:word@127.0.0.1/mcp", "name or password"),
        ("http://127.0.0.1:1/mcp", "connection refused"),
    ],
)
def test_an_address_that_is_none_is_named(tmp_path: Path, url: str, said: str) -> None:
    told = run(tmp_path, "login", url)
    assert (told.returncode in (1, 2) and said in told.stderr.lower()) or said in told.stderr
    assert "Traceback" not in told.stderr
