"""Commands for people, clients, grants and keys, beside a running server and without one."""

import asyncio
import contextlib
import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import COMMAND, eventually
from tests.clients.raw_http_client import Site, site
from tests.server.auth.authorization_in_process import VERIFIER, challenge
from tests.server.auth.http_browser import Person
from tests.server.cli.test_cli import run
from toolgate.server.base.principals.principal import derive_subject
from toolgate.server.config import load
from toolgate.server.config.options import OPTIONS
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.sqlite.store import SqliteStore

PASSWORD = "correct horse"
BACK = "http://127.0.0.1:5000/back"
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def command(folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run(folder, "--state", str(folder / "state"), *words, stdin=stdin)


def posted(at: Site, path: str, form: dict[str, str]) -> tuple[int, Any]:
    body = urllib.parse.urlencode(form)
    response, _, told = at.ask("POST", path, body, content_type="application/x-www-form-urlencoded")
    return response.status, told


def registered(at: Site) -> str:
    asked = {"client_name": "Fern", "redirect_uris": [BACK], "token_endpoint_auth_method": "none"}
    return str(at.ask("POST", "/register", asked)[2]["client_id"])


def granted(at: Site, client: str, **secret: str) -> dict[str, str]:
    """Return a client's tokens after ada's approval."""
    query = {
        "client_id": client,
        "redirect_uri": BACK,
        "response_type": "code",
        "code_challenge": challenge(),
        "code_challenge_method": "S256",
    }
    answer = Person(at).answer(f"{at.url}/authorize?{urllib.parse.urlencode(query)}")
    form = {"grant_type": "authorization_code", "client_id": client, "code": answer["code"], "redirect_uri": BACK}
    status, told = posted(at, "/token", {**form, "code_verifier": VERIFIER, **secret})
    assert status == 200, told
    tokens: dict[str, str] = told
    return tokens


def is_let_in(at: Site, token: str) -> bool:
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    return at.ask("POST", "/mcp", message, authorization=f"Bearer {token}")[0].status == 200


def refreshed(at: Site, client: str, tokens: dict[str, str]) -> tuple[int, Any]:
    form = {"grant_type": "refresh_token", "client_id": client, "refresh_token": tokens["refresh_token"]}
    return posted(at, "/token", form)


def test_an_account_is_added_listed_given_a_new_password_and_removed_offline(tmp_path: Path) -> None:
    added = command(tmp_path, "user", "add", "Ada", stdin=f"{PASSWORD}\n{PASSWORD}\n")
    where = tmp_path / "state"  # a mistyped --state is seen
    assert (added.returncode, added.stdout) == (0, f"Created ada (state: {where}).\n")
    assert command(tmp_path, "user", "list").stdout.splitlines()[1].split()[0] == "ada"
    changed = command(tmp_path, "user", "passwd", "ada", stdin="another horse")
    assert changed.returncode == 0 and "new password" in changed.stdout
    removed = command(tmp_path, "user", "remove", "ADA")
    assert removed.returncode == 0 and "0 grants ended" in removed.stdout
    assert command(tmp_path, "user", "list").stdout == ""


@pytest.fixture(scope="module")
def knows_ada(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a state that has one account, for commands that change nothing."""
    folder = tmp_path_factory.mktemp("ada")
    assert command(folder, "user", "add", "ada", stdin=PASSWORD).returncode == 0
    return folder


@pytest.mark.parametrize(
    ("words", "stdin", "code", "said"),
    [
        (["user"], "", 2, "add, list, remove, passwd"),
        (["user", "rename", "ada"], "", 2, "add, list, remove, passwd"),
        (["user", "add"], "", 2, "NAME"),
        (["user", "add", "bob", "a-password"], "a-password", 2, "NAME"),
        (["user", "list", "ada"], "", 2, "ada"),
        (["user", "add", "ada"], "whatever it is\n", 1, "already"),
        (["user", "add", "a b"], "whatever it is\n", 1, "letters"),
        (["user", "add", "bob"], "", 1, "no password"),
        (["user", "add", "bob"], "short\n", 1, "at least 8"),
        (["user", "add", "bob"], "iloveyou1\n", 1, "several random words"),
        (["user", "add", "bob"], "12345678\n", 1, "several random words"),
        (["user", "passwd", "ada"], "ada-ada-ada\n", 1, "differ from the name"),
        (["user", "add", "Ada Lovelace"], "whatever it is\n", 1, "'Ada Lovelace' can't be a name"),
        (["user", "add", "bob"], "one password\nanother one\n", 1, "differ"),
        (["user", "add", "bob"], "one password\n\n", 1, "differ"),
        (["user", "add", "bob"], "x" * 12_000 + "\n", 1, "at most 1024"),
        (["user", "add", "bob"], "with a \0 in it\n", 1, "NUL"),
        (["user", "passwd", "bob"], "one password\n", 1, "no account 'bob'"),
        (["user", "remove", "bob"], "", 1, "no account 'bob'"),
        (["client"], "", 2, "list, add, remove"),
        (["client", "add", "Fern"], "", 2, "REDIRECT… is missing"),
        (["client", "add", "Fern", "javascript:alert(1)"], "", 2, "a redirect URI must be https"),
        (["client", "add", "Fern", "nowhere"], "", 2, "platforms are"),
        (["client", "remove", "nobody"], "", 1, "no client 'nobody'"),
        (["client", "list", "--confidential"], "", 2, "--confidential"),
        (["tools", "--confidential"], "", 2, "--confidential"),
        (["token", "revoke", "ada"], "", 2, "user, client, grant, all"),
        (["token", "revoke", "user", "bob"], "", 1, "no user 'bob'"),
        (["token", "revoke", "grant", "nothing"], "", 1, "no active grant 'nothing'"),
        (["token", "revoke", "client", "nobody"], "", 1, "no client 'nobody'"),
        (["key"], "", 2, "rotate"),
        (["key", "rotate", "now"], "", 2, "now"),
        (["client", "list", "--drop-old"], "", 2, "--drop-old"),
    ],
)
def test_what_cant_be_done_is_a_sentence_and_an_exit_code(
    knows_ada: Path, words: list[str], stdin: str, code: int, said: str
) -> None:
    told = command(knows_ada, *words, stdin=stdin)
    assert (told.returncode, told.stdout) == (code, ""), told
    assert said in told.stderr and "Traceback" not in told.stderr
    if stdin.strip():
        assert stdin.splitlines()[0] not in told.stderr


def test_to_look_at_nothing_makes_nothing(tmp_path: Path) -> None:
    for words in (["user", "list"], ["client", "list"], ["token", "list"], ["user", "remove", "ada"]):
        command(tmp_path, *words)
    assert not (tmp_path / "state").exists()


def test_a_state_that_is_no_folder_is_a_wrong_command_line(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    told = command(tmp_path, "user", "list")
    assert (told.returncode, told.stdout) == (2, "") and "not a folder" in told.stderr


def known_elsewhere(folder: Path, *rows: tuple[str, str, str]) -> None:
    """Store people of external issuers: issuer, subject there, name. Each has a grant."""

    def put(connection: Any) -> None:
        for issuer, known_as, name in rows:
            subject, now = derive_subject(issuer, known_as), time.time()
            grant_rows.save_person(connection, subject, issuer=issuer, known_as=known_as, name=name, seen_at=now)
            row = {"client": "fern", "subject": subject, "scope": "tools:read", "resource": "r", "redirect_uri": "u"}
            grant_rows.mark_grant_used(connection, grant_rows.add_grant(connection, now, 900, **row), now)

    store = SqliteStore(folder / "state")
    asyncio.run(store.transact(put))
    store.close()


def test_a_provider_person_with_an_accounts_name_is_told_from_it(tmp_path: Path) -> None:
    assert command(tmp_path, "user", "add", "ada", stdin=PASSWORD).returncode == 0
    idp, hub = "https://login.example", "https://github.com"
    known_elsewhere(tmp_path, (idp, "248289", "ada"), (hub, "583231", "octo"), ("toolgate:header", "eve", "eve"))
    listed = command(tmp_path, "user", "list").stdout
    assert [line.split()[0] for line in listed.splitlines()] == ["NAME", "ada", "octo", "ada", "eve"]
    for said in ("account:ada", f"{idp}  oidc:248289", "github:583231", "header:eve"):
        assert said in listed
    held = command(tmp_path, "token", "list").stdout.splitlines()
    assert held[0].split()[:4] == ["GRANT", "USER", "ISSUER", "CLIENT"]
    assert {line.split()[2] for line in held[1:]} == {idp, hub, "toolgate:header"}
    refused = command(tmp_path, "token", "revoke", "user", "ada")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "account:ada (here), oidc:248289 (https://login.example)" in refused.stderr
    for named, ended in (("account:ada", 0), ("oidc:248289", 1), ("octo", 1), ("header:eve", 1)):
        told = command(tmp_path, "token", "revoke", "user", named)
        assert told.returncode == 0 and told.stdout.startswith(f"{ended} grant"), told
    assert command(tmp_path, "token", "list").stdout == ""


def test_bytes_that_are_no_text_are_no_password_on_a_terminal(tmp_path: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
        os.execve(COMMAND, [COMMAND, "--state", str(tmp_path / "state"), "user", "add", "ada"], environment)
    shown = b""
    while b"Password for ada: " not in shown:
        shown += os.read(terminal, 1024)
    os.write(terminal, b"\xff\xfe password\n")
    try:
        while more := os.read(terminal, 1024):
            shown += more
            if b"again" in more:
                os.write(terminal, b"\xff\xfe password\n")
    except OSError:  # the other end is closed
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    os.close(terminal)
    assert b"UTF-8" in shown and b"Traceback" not in shown


def test_on_a_terminal_the_password_is_asked_twice_and_never_shown(tmp_path: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        os.execve(COMMAND, [COMMAND, "--state", str(tmp_path / "state"), "user", "add", "ada"], environment)
    shown = b""
    for prompt in (b"Password for ada: ", b"The same again: "):
        while prompt not in shown:
            shown += os.read(terminal, 1024)
        os.write(terminal, PASSWORD.encode() + b"\n")
    try:
        while more := os.read(terminal, 1024):
            shown += more
    except OSError:  # the other end is closed
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(terminal)
    assert b"Created " in shown and PASSWORD.encode() not in shown


def test_removing_a_user_ends_their_grants_in_a_server_that_runs(tmp_path: Path) -> None:
    with site(tmp_path, "--auth", "oauth") as at:
        assert command(tmp_path, "user", "add", "ada", stdin=PASSWORD).returncode == 0
        client = registered(at)
        tokens = granted(at, client)
        assert is_let_in(at, tokens["access_token"])
        removed = command(tmp_path, "user", "remove", "ada")
        assert "1 grant ended" in removed.stdout, removed.stderr
        assert eventually(lambda: not is_let_in(at, tokens["access_token"]))
        assert refreshed(at, client, tokens)[1]["error"] == "invalid_grant"
        with contextlib.closing(sqlite3.connect(tmp_path / "state" / "state.db")) as database:
            assert database.execute("SELECT count(*) FROM login").fetchone() == (0,)


@pytest.mark.parametrize("whose", ["user", *(pytest.param(one, marks=pytest.mark.soak) for one in ("client", "grant"))])
def test_revoking_by_user_client_or_grant_ends_the_tokens(tmp_path: Path, whose: str) -> None:
    with site(tmp_path, "--auth", "oauth") as at:
        assert command(tmp_path, "user", "add", "ada", stdin=PASSWORD).returncode == 0
        client = registered(at)
        tokens = granted(at, client)
        head, row = command(tmp_path, "token", "list").stdout.splitlines()
        assert head.split()[:3] == ["GRANT", "USER", "CLIENT"] and row.split()[1:3] == ["ada", "Fern"]
        named = {"user": "ada", "client": client, "grant": row.split()[0]}[whose]
        told = command(tmp_path, "token", "revoke", "--", whose, named)  # an id may begin with a dash
        assert told.returncode == 0 and "ended" in told.stdout, told.stderr
        assert refreshed(at, client, tokens)[1]["error"] == "invalid_grant"
        assert eventually(lambda: not is_let_in(at, tokens["access_token"]))
        assert command(tmp_path, "token", "list").stdout == ""


def test_a_confidential_client_is_added_shows_its_secret_once_works_and_goes(tmp_path: Path) -> None:
    with site(tmp_path, "--auth", "oauth", "--registration", "closed") as at:
        assert command(tmp_path, "user", "add", "ada", stdin=PASSWORD).returncode == 0
        added = command(tmp_path, "client", "add", "Fern", BACK, "cursor", "--confidential")
        id, secret = (line.partition(":")[2].strip() for line in added.stdout.splitlines())
        tokens = granted(at, id, client_secret=secret)
        assert is_let_in(at, tokens["access_token"])
        listed = command(tmp_path, "client", "list").stdout
        assert id in listed and "Fern" in listed and secret not in listed
        assert secret.encode() not in (tmp_path / "state" / "state.db").read_bytes() and secret not in at.log()
        assert command(tmp_path, "client", "remove", id).returncode == 0
        assert eventually(lambda: not is_let_in(at, tokens["access_token"]))
        form = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
        status, told = posted(at, "/token", {**form, "client_id": id, "client_secret": secret})
        assert (status, told["error"]) == (401, "invalid_client")


def test_a_client_the_operator_added_is_not_swept_away_unused(tmp_path: Path) -> None:
    added = command(tmp_path, "client", "add", "Fern", BACK)
    (id,) = re.findall(r"client id: +(\S+)", added.stdout)
    with contextlib.closing(sqlite3.connect(tmp_path / "state" / "state.db")) as database, database:
        database.execute("UPDATE oauth_client SET made_at = ?", (time.time() - 365 * 86_400,))
    with site(tmp_path, "--auth", "oauth") as at:
        registered(at)  # the first request sweeps
        assert id in command(tmp_path, "client", "list").stdout


def test_a_client_of_the_file_is_listed_and_removed_there(tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    file.write_text(f'[[client]]\nid = "gemini"\nname = "Gemini"\nredirect_uris = ["{BACK}"]\n')
    assert "gemini" in command(tmp_path, "client", "list", "--clients", str(file)).stdout
    told = command(tmp_path, "client", "remove", "gemini", "--clients", str(file))
    assert told.returncode == 1 and str(file) in told.stderr


def test_a_server_that_runs_announces_a_rotated_key_and_forgets_dropped_ones(tmp_path: Path) -> None:
    with site(tmp_path, "--auth", "oauth") as at:
        assert command(tmp_path, "user", "add", "ada", stdin=PASSWORD).returncode == 0
        client = registered(at)
        tokens = granted(at, client)
        kid = command(tmp_path, "key", "rotate").stdout.split()[0]
        assert eventually(lambda: [key["kid"] for key in at.ask("GET", "/jwks")[2]["keys"]][1:] == [kid])
        assert is_let_in(at, tokens["access_token"])
        seal = (tmp_path / "state" / "keys" / "signing").read_bytes()
        last = command(tmp_path, "key", "rotate", "--drop-old").stdout.split()[0]
        assert (tmp_path / "state" / "keys" / "signing").read_bytes() != seal  # who had that can't open the new one
        assert eventually(lambda: not is_let_in(at, tokens["access_token"]))
        assert [key["kid"] for key in at.ask("GET", "/jwks")[2]["keys"]] == [last]
        status, renewed = refreshed(at, client, tokens)
        assert status == 200 and is_let_in(at, renewed["access_token"])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--login", "magic"], "--login"),
        (["--login", "oidc=provider.example"], "--login"),
        (["--login", "oidc=http://provider.example"], "--login"),
        (["--login", "header=X Name"], "--login"),
        (["--login", "github"], "--login"),
        (["--login", "header=X-User"], "--trusted-proxies"),
        (["--login", "password", "--login", "password"], "--login"),
        (["--trusted-proxies", "somewhere"], "--trusted-proxies"),
        (["--allow-users", "ada"], "accounts"),
        (["--login", "header=X-User", "--trusted-proxies", "127.0.0.1"], "--allow-users"),
        (["--client-hosts", "https://app.example"], "--client-hosts"),
        (["--public-url", "https://gate.example/mcp"], "must not end in /mcp"),
        (["--public-url", "https://gate.example/%2e%2e/"], "--public-url"),
        (["--github-client", "/no/such/file"], "--github-client"),
        (["--clients", "/no/such/file"], "--clients"),
        (["--enterprise-issuers", "idp.example"], "--enterprise-issuers"),
        (["--registration", "sometimes"], "--registration"),
        (["--openai-challenge", "two words"], "--openai-challenge"),
    ],
)
def test_wrong_values_of_signing_in_are_refused_before_the_port_is_bound(
    tmp_path: Path, options: list[str], named: str
) -> None:
    told = run(tmp_path, "-t", "--port", "0", *options)
    assert told.returncode == 2 and named in told.stderr
    assert "serving" not in told.stderr and "Traceback" not in told.stderr


def test_an_enterprise_issuer_is_announced(tmp_path: Path) -> None:
    with site(tmp_path, "--auth", "oauth", "--enterprise-issuers", "https://idp.example") as at:
        _, _, told = at.ask("GET", "/.well-known/oauth-authorization-server")
        assert "urn:ietf:params:oauth:grant-type:jwt-bearer" in told["grant_types_supported"]


@pytest.mark.parametrize(
    ("name", "word", "items"),
    [
        ("plugins", "/a:/b", ["/a", "/b"]),
        ("engines", "duckduckgo:arxiv", ["duckduckgo", "arxiv"]),
        ("login", "oidc=https://a.example", ["oidc=https://a.example"]),
        (
            "login",
            "password:oidc=https://a.example:8443/realm:header=X-User",
            ["password", "oidc=https://a.example:8443/realm", "header=X-User"],
        ),
        ("login", "password, oidc=https://a.example/odd:path", ["password", "oidc=https://a.example/odd:path"]),
        ("allow-users", "github:1:@a.example:ada@b.example", ["github:1", "@a.example", "ada@b.example"]),
        ("allow-private", "fd00::/8:10.0.0.0/8:localhost:::1", ["fd00::/8", "10.0.0.0/8", "localhost", "::1"]),
        ("trusted-proxies", "::1 127.0.0.1", ["::1", "127.0.0.1"]),
        ("allowed-hosts", "a.example:8080:[::1]:80:b.example", ["a.example:8080", "[::1]:80", "b.example"]),
        ("allowed-origins", "https://a.example:http://[::1]:80", ["https://a.example", "http://[::1]:80"]),
        ("enterprise-issuers", "https://a.example:https://b.example/x", ["https://a.example", "https://b.example/x"]),
    ],
)
def test_lists_from_the_environment_keep_what_has_colons_whole(name: str, word: str, items: list[str]) -> None:
    (option,) = (option for option in OPTIONS if option.name == name)
    read = load.load({}, {option.variable: word, "HOME": "/nowhere"})
    assert [str(item) for item in getattr(read, option.key)] == items


def test_the_commands_start_quickly_and_write_nothing_secret_into_the_log(tmp_path: Path) -> None:
    told = command(tmp_path, "user", "add", "ada", "-v", stdin=PASSWORD)
    assert PASSWORD not in told.stdout + told.stderr
    loaded = "import sys, toolgate.server.cli.main; print([name for name in sys.modules if 'sqlalchemy' in name])"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout.replace("'", '"')) == []
