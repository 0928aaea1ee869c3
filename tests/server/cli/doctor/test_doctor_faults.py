"""Make each fault that `toolgate doctor` must find, and check that it names the fault and the remedy."""

import asyncio
import json
import os
import re
import resource
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.clients.raw_client import COMMAND
from tests.clients.raw_http_client import site
from tests.interop.sign_in_server import published
from tests.server.cli.commands.test_user_and_client import granted, registered
from tests.server.cli.doctor.test_doctor import LOCAL
from tests.server.cli.test_cli import run
from tests.server.features.replicas.test_doctor import REDIS
from tests.servers.faulty_proxy import (
    PREFIX,
    SOUND,
    Answer,
    Fault,
    Front,
    Headers,
    answered_with,
    answered_without,
    asked_with,
    closed_port,
    front,
    instead,
    pages_for,
    respelled,
    slow,
    verdicts,
    without,
)
from tests.tools.reading.web.test_fetch import certificate
from toolgate.server.auth.clients import document_copies
from toolgate.server.auth.clients.document_copies import DocumentCopy
from toolgate.server.cli.doctor import machine, main, remote
from toolgate.server.cli.doctor.remote import calls, target
from toolgate.server.cli.doctor.remote import connection as reaching
from toolgate.server.cli.doctor.report import run_checks
from toolgate.server.config import load
from toolgate.server.workspaces import free_space

# -- on the way


class Walking:
    """A server behind a proxy, a person's token for it, and a run of doctor against it."""

    def __init__(self, proxy: Front, secured: Front, token: str, certificate: Path) -> None:
        self.certificate = certificate
        self.proxy = proxy
        self.secured = secured
        self._token = token

    def to(self, url: str, until: str | None = None) -> int:
        """Run the checks up to `until`."""
        links = list(remote.REMOTE_CHECKS)
        rows = remote.remote_checks(url, self._token)
        return asyncio.run(run_checks(rows[: links.index(until) + 1 if until else None]))


@pytest.fixture(scope="module")
def walking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walking]:
    folder = tmp_path_factory.mktemp("walking")
    server, _ = certificate(folder, "localhost")
    with (
        front() as proxy,
        front(proxy, server) as secured,
        site(folder, "--auth", "oauth", "--public-url", proxy.url + PREFIX) as at,
    ):
        proxy.behind = at.port
        run(folder, "user", "add", "ada", "--state", "state", stdin="correct horse")
        yield Walking(proxy, secured, granted(at, registered(at))["access_token"], folder / "server.pem")


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "FIRST_EVENT_TIMEOUT", 0.5)
    monkeypatch.setattr(target, "TIMEOUT", 2.0)
    monkeypatch.setattr(calls, "QUIET_TIME", 0.6)


def moved(_method: str, path: str, _headers: Headers) -> Answer | None:
    return (308, {"location": path + "/"}, b"") if path == f"{PREFIX}/mcp" else None


def unrouted(_method: str, path: str, _headers: Headers) -> Answer | None:
    return None if path.startswith(PREFIX) else (404, {"content-type": "text/html"}, b"no")


def with_null(path: str, answer: Answer) -> Answer:
    status, headers, body = answer
    return (status, headers, body.replace(b"{", b'{"client_uri":null,', 1)) if path.endswith("/register") else answer


def of_old(_path: str, answer: Answer) -> Answer:
    status, headers, body = answer
    return status, headers, body.replace(b'"protocolVersion":"2025-11-25"', b'"protocolVersion":"2024-11-05"')


def undiscovered(_method: str, path: str, _headers: Headers) -> Answer | None:
    is_asked = "oauth-authorization-server" in path or "openid-configuration" in path
    return (404, {"content-type": "text/html"}, b"no") if is_asked else None


def reissued(_path: str, answer: Answer) -> Answer:
    status, headers, body = answer
    return status, headers, re.sub(rb'("issuer":\s*"[^"]*)"', rb'\1/"', body)


LATE = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() - 7200))
ON_THE_WAY: dict[str, tuple[Fault, str, str]] = {  # the fault → the link that finds it, and what it says
    "slow proxy": (Fault(slow(3)), "no redirect", "no answer in"),
    "redirecting slash": (Fault(moved), "no redirect", "redirects to"),
    "wrong clock": (Fault(answered=answered_with(date=LATE)), "clock", "behind ours"),
    "wrong Host": (Fault(asked_with(host="upstream.internal")), "challenge", "answers 421"),
    "no server behind": (Fault(instead(502)), "challenge", "answers 502"),
    "bot protection": (Fault(instead(403)), "challenge", "answers 403"),
    "rate limit": (Fault(instead(429)), "challenge", "answers 429"),
    "server of before": (Fault(instead(405, method="POST")), "challenge", "answers 405"),
    "path that leads nowhere": (Fault(instead(404, "/mcp")), "challenge", "answers 404"),
    "another site": (Fault(instead(200, page="<h1>welcome</h1>")), "challenge", "no MCP server"),
    "stripped WWW-Authenticate": (Fault(answered=answered_without("www-authenticate")), "challenge", "its 401 has no"),
    "pages for errors": (Fault(answered=pages_for(401)), "errors", "a page of the proxy's own"),
    "stripped Authorization": (Fault(without("authorization")), "made-up token", "Authorization does not arrive"),
    "no well-known documents": (Fault(unrouted), "resource metadata", "oauth-protected-resource"),
    "metadata of another resource": (
        Fault(answered=respelled(b'/mcp"', b'/else"')),
        "resource",
        "it calls itself",
    ),
    "no metadata of the issuer": (Fault(undiscovered), "server metadata", "oauth-authorization-server"),
    "metadata of another issuer": (Fault(answered=reissued), "issuer", "the metadata of"),
    "no PKCE": (Fault(answered=respelled(b'"S256"', b'"plain"')), "abilities", "PKCE"),
    "keys that can't be had": (Fault(instead(404, "/jwks")), "keys", "/jwks answers 404"),
    "stripped CORS headers": (Fault(answered=answered_without("access-control-allow-origin")), "CORS", "web pages"),
    "registration with null": (Fault(answered=with_null), "registration", "is null"),
    "no sign-in page": (Fault(instead(502, "/login")), "sign-in page", "answers 502"),
    "stripped cookies": (Fault(answered=answered_without("set-cookie")), "sign-in page", "the cookie of"),
    "pages for errors of OAuth": (Fault(answered=pages_for(400, 401, where="/token")), "token endpoint", "belongs"),
    "stripped Mcp-Session-Id of answers": (
        Fault(answered=answered_without("mcp-session-id")),
        "session",
        "has lost its",
    ),
    "stripped Mcp-Session-Id": (Fault(without("mcp-session-id")), "session", "Mcp-Session-Id does not arrive"),
    "changed Mcp-Session-Id": (Fault(asked_with(mcp_session_id="another")), "session", "not known when it comes back"),
    "stripped MCP-Protocol-Version": (
        Fault(without("mcp-protocol-version")),
        "protocol version",
        "MCP-Protocol-Version does not arrive",
    ),
    "stripped Mcp-Method": (Fault(without("mcp-method")), "newest revision", "a header does not arrive"),
    "body limit": (Fault(most=2**20), "large message", "too large for the proxy"),
    "buffering": (Fault(held="head"), "event streams", "held back by a buffer"),
    "buffering of bodies": (Fault(held="body"), "event streams", "held back by a buffer"),
    "compression": (Fault(answered=answered_with(content_encoding="gzip")), "event streams", "they are compressed"),
    "impatience": (Fault(patience=0.2), "quiet stream", "a quiet stream is cut"),
    "DELETE refused": (Fault(instead(403, method="DELETE")), "session's end", "DELETE is answered"),
}
NOTED: dict[str, tuple[Fault, str, str]] = {
    "HTTP/1.0": (Fault(version="HTTP/1.0"), "HTTP version", "it answers in HTTP/1.0"),
    "old server": (Fault(answered=of_old), "first call", "an old server answers"),
}


def test_a_proxy_without_a_fault_has_none_found(walking: Walking, capsys: pytest.CaptureFixture[str]) -> None:
    walking.proxy.fault = SOUND
    assert walking.to(f"{walking.proxy.url}{PREFIX}/mcp") == 0, capsys.readouterr().out
    found = verdicts(capsys.readouterr().out)
    assert found == dict.fromkeys(remote.REMOTE_CHECKS, "ok") | {"server": "note"} | dict.fromkeys(
        ("TLS", "https alone", "clean-up"), "skip"
    )


@pytest.mark.parametrize(("fault", "link", "said"), ON_THE_WAY.values(), ids=ON_THE_WAY)
def test_a_fault_on_the_way_is_found_first_and_named(
    walking: Walking, capsys: pytest.CaptureFixture[str], fault: Fault, link: str, said: str
) -> None:
    walking.proxy.fault = fault
    assert walking.to(f"{walking.proxy.url}{PREFIX}/mcp", until=link) == 1
    told = capsys.readouterr().out
    failed = [name for name, verdict in verdicts(told).items() if verdict == "FAIL"]
    assert failed == [link], told
    assert said in told[told.index(f"FAIL  {link}") :].splitlines()[0], told


@pytest.mark.parametrize(("fault", "link", "said"), NOTED.values(), ids=NOTED)
def test_what_works_but_could_be_better_is_noted(
    walking: Walking, capsys: pytest.CaptureFixture[str], fault: Fault, link: str, said: str
) -> None:
    walking.proxy.fault = fault
    assert walking.to(f"{walking.proxy.url}{PREFIX}/mcp", until=link) == 0
    told = capsys.readouterr().out
    assert verdicts(told)[link] == "note" and said in told[told.index(f"note  {link}") :].splitlines()[0], told


ELSEWHERE = {  # what is asked for → the link that finds it, and what it says; {} is the proxy, with TLS or without
    "wrong public URL": ("http://localhost:{port}/tools/mcp", "resource metadata", "of another origin"),
    "slash at the end": ("{url}/mcp/", "resource", "remove the slash"),
    "metadata as http": ("{secured}/mcp", "resource metadata", "is an http URL"),
    "name that nobody has": ("https://nowhere.invalid/mcp", "name", "has no address"),
    "reserved address": ("https://192.0.2.1/mcp", "name", "every DNS record of this name must be one"),
    "https of an http port": ("https://127.0.0.1:{port}/tools/mcp", "TLS", "that port speaks http, not https"),
    "closed port": ("http://127.0.0.1:{closed}/mcp", "connection", "start the server"),
}


@pytest.mark.parametrize(("url", "link", "said"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_url_that_is_not_the_servers_is_named(
    walking: Walking,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    link: str,
    said: str,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(walking.certificate))
    walking.proxy.fault = SOUND
    where = url.format(
        url=walking.proxy.url + PREFIX,
        secured=walking.secured.url.replace("127.0.0.1", "localhost") + PREFIX,
        port=walking.proxy.url.rpartition(":")[2],
        closed=closed_port(),
    )
    assert walking.to(where, until=link) == 1
    told = capsys.readouterr().out
    assert [name for name, verdict in verdicts(told).items() if verdict == "FAIL"] == [link], told
    assert said in told[told.index(f"FAIL  {link}") :], told


def test_a_server_that_is_reached_in_the_clear_too_is_named(
    walking: Walking, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clear, port = (int(each.url.rpartition(":")[2]) for each in (walking.proxy, walking.secured))
    monkeypatch.setenv("SSL_CERT_FILE", str(walking.certificate))
    monkeypatch.setattr(reaching, "HTTP_PORT", clear)
    monkeypatch.setattr(reaching, "HTTPS_PORT", port)
    url = f"https://localhost:{port}{PREFIX}/mcp"
    walking.proxy.fault = SOUND
    assert walking.to(url, until="https alone") == 1
    assert "serves MCP too: tokens may go in the clear" in capsys.readouterr().out
    walking.proxy.fault = Fault(instead(301))
    assert walking.to(url, until="https alone") == 0
    assert "note  https alone" in capsys.readouterr().out


# -- here


def looked(name: str, capsys: pytest.CaptureFixture[str], **environment: str) -> str:
    """Return the report on one check, with options from the environment."""
    options = load.load({}, {"PATH": os.environ["PATH"], **environment})
    asyncio.run(run_checks([(name, partial(main.MACHINE_CHECKS[name], options), ())]))
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the state of a server that has recorded calls and signed tokens."""
    folder = tmp_path_factory.mktemp("kept")
    with site(folder, "--auth", "oauth", "--audit", "on") as at:
        run(folder, "user", "add", "ada", "--state", "state", stdin="correct horse")
        token = granted(at, registered(at))["access_token"]
        assert run(folder, "call", "ListBgTasks", "--url", f"{at.url}/mcp", TOOLGATE_TOKEN=token).returncode == 0
    return folder / "state"


def rewound(state: Path, days: float) -> None:
    """Set the time at which the signing key was made."""
    with closing(sqlite3.connect(state / "state.db")) as connection, connection:
        connection.execute("UPDATE oauth_key SET made_at = ?", (time.time() - days * 86_400,))


def another_key(state: Path) -> None:
    (state / "keys" / "signing").write_bytes(os.urandom(32))


def no_key(state: Path) -> None:
    (state / "keys" / "signing").unlink()


def changed_record(state: Path) -> None:
    log = state / "audit" / "audit.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"begins"', b'"ends"', 1))


KEPT: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "expired signing key": (partial(rewound, days=95), "signing key", "note", "the signing key has expired"),
    "signing key of the future": (partial(rewound, days=-9), "signing key", "FAIL", "made in the future"),
    "key file of another state": (another_key, "signing key", "FAIL", "can't be opened"),
    "lost key file": (no_key, "signing key", "FAIL", "is missing"),
    "changed record": (changed_record, "audit", "FAIL", "the record of calls is broken"),
}


def test_what_the_state_keeps_is_found_well(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "replaced in 30 days" in looked("signing key", capsys, TOOLGATE_STATE=str(kept))
    assert looked("audit", capsys, TOOLGATE_STATE=str(kept)).startswith("ok    audit")


@pytest.mark.parametrize(("harm", "row", "verdict", "said"), KEPT.values(), ids=KEPT)
def test_a_fault_of_what_the_state_keeps_is_named(
    kept: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    harm: Callable[[Path], None],
    row: str,
    verdict: str,
    said: str,
) -> None:
    state = tmp_path / "state"
    subprocess.run(["cp", "-a", kept, state], check=True)
    harm(state)
    told = looked(row, capsys, TOOLGATE_STATE=str(state))
    assert told.startswith(f"{verdict:4}  {row}") and said in told, told


REMOTE = {"TOOLGATE_HTTP": "1"}
BY_HEADER = {
    "TOOLGATE_LOGIN": "header=X-User",
    "TOOLGATE_ALLOW_USERS": "*",
    "TOOLGATE_TRUSTED_PROXIES": "127.0.0.1",
    "TOOLGATE_PUBLIC_URL": "https://tools.example.com",
}
HERE: dict[str, tuple[dict[str, str], str, str, str]] = {
    "rule about nothing": ({"TOOLGATE_DENY": "Bsh"}, "rules", "FAIL", "there is no tool Bsh"),
    "dead browser": ({"TOOLGATE_BROWSER": "/bin/false"}, "browser", "FAIL", "/bin/false"),
    "no shell": ({"PATH": "/nowhere"}, "shell", "FAIL", "there is no bash"),
    "no bubblewrap": (
        {**REMOTE, "PATH": "/nowhere", "TOOLGATE_SANDBOX": "bwrap"},
        "sandbox",
        "FAIL",
        "it is not installed",
    ),
    "no sandbox": ({**REMOTE, "TOOLGATE_SANDBOX": "none"}, "sandbox", "FAIL", "no sandbox: commands have"),
    "everybody is a proxy": (
        {**REMOTE, "TOOLGATE_TRUSTED_PROXIES": "0.0.0.0/0"},
        "proxies",
        "FAIL",
        "trusts everybody",
    ),
    "unknown proxy": (
        {**REMOTE, "TOOLGATE_PUBLIC_URL": "https://tools.example.com"},
        "proxies",
        "note",
        "that --trusted-proxies does not name",
    ),
    "header anybody here can set": (
        {**REMOTE, **BY_HEADER, "TOOLGATE_SANDBOX": "auto"},
        "proxies",
        "note",
        "any process can set the header",
    ),
    "header commands can set": (
        {**REMOTE, **BY_HEADER, "TOOLGATE_SANDBOX_NETWORK": "all"},
        "proxies",
        "FAIL",
        "so can commands",
    ),
    "proxy before nobody": (
        {**REMOTE, "TOOLGATE_TRUSTED_PROXIES": "10.0.0.1"},
        "proxies",
        "note",
        "is on loopback",
    ),
    "no public URL": ({**REMOTE, "TOOLGATE_HOST": "0.0.0.0"}, "options", "FAIL", "--public-url"),
}


@pytest.mark.parametrize(("options", "row", "verdict", "said"), HERE.values(), ids=HERE)
def test_a_fault_of_this_machine_is_named(
    capsys: pytest.CaptureFixture[str], options: dict[str, str], row: str, verdict: str, said: str
) -> None:
    told = looked(row, capsys, **options)
    assert told.startswith(f"{verdict:4}  {row}") and said in told, told


FULL = """
mount -t tmpfs -o size=96k,mode=700 none "$1" && mount -t tmpfs -o nr_inodes=40,mode=700 none "$2" || exit 90
dd if=/dev/zero of="$1/fills" bs=1k 2>/dev/null  # until the disk is full
for state in "$1" "$2"; do
    "$3" -m toolgate.server doctor --json --browser none --state "$state" || [ $? = 1 ] || exit 91
done
"""


def test_a_disk_that_is_full_of_bytes_or_of_files_is_named(tmp_path: Path) -> None:
    """Uses real file systems in a private mount namespace."""
    (tmp_path / "bytes").mkdir()
    (tmp_path / "files").mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    python = str(Path(COMMAND).with_name("python"))
    words = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", FULL, "bash", "bytes", "files", python]
    ended = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended
    for line, said in zip(ended.stdout.splitlines(), ("0 KiB free", "for 39 files"), strict=True):
        told = json.loads(line)
        disk = next(check for check in told["checks"] if check["name"] == "disk space")
        assert disk["verdict"] == "FAIL" and "the disk is full" in disk["finding"] and said in disk["finding"], disk
        assert told["first"] == "disk space" and not told["ok"]


def test_what_can_not_be_looked_at_costs_the_other_rows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    options = load.load({}, {"PATH": os.environ["PATH"], "TOOLGATE_STATE": f"/tmp/{'x' * 300}"})
    rows = [(name, partial(main.MACHINE_CHECKS[name], options), ()) for name in ("disk space", "python")]
    assert asyncio.run(run_checks(rows)) == 1
    told = capsys.readouterr().out
    assert verdicts(told) == {"disk space": "FAIL", "python": "ok"} and "file name too long" in told


@pytest.mark.parametrize(("count", "said"), [(0, "fix what is named"), (1, "1 other needs one"), (2, "2 others need")])
def test_rows_that_need_a_failed_one_are_counted(capsys: pytest.CaptureFixture[str], count: int, said: str) -> None:
    async def look() -> str:
        raise OSError("broken")

    asyncio.run(run_checks([("disk", look, ()), *[(f"row {number}", look, ("disk",)) for number in range(count)]]))
    told = capsys.readouterr().out
    assert verdicts(told) == {"disk": "FAIL"} and said in told.splitlines()[-1]
    assert "that did not pass" not in told or count


@contextmanager
def limited(most: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_too_few_open_files_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with limited(200):
        told = looked("open files", capsys)
    assert told.startswith("FAIL  open files") and "LimitNOFILE" in told


def test_too_little_memory_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(free_space, "MEMINFO", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text("MemTotal: 1000000 kB\nMemAvailable:   30000 kB\n")
    assert looked("memory", capsys).startswith("FAIL  memory              29.3 MiB left")
    monkeypatch.setattr(free_space, "OWN_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(free_space, "CGROUP_ROOT", tmp_path)
    (tmp_path / "meminfo").write_text("MemAvailable: 8000000 kB\n")
    (tmp_path / "cgroup").write_text("0::/box\n")
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "memory.max").write_text("1073741824\n")
    (tmp_path / "box" / "memory.current").write_text("873741824\n")
    assert "note  memory              190.7 MiB left" in looked("memory", capsys)


def test_a_kernel_without_user_namespaces_gets_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "SYSCTLS", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "apparmor_restrict_unprivileged_userns").write_text("1\n")
    told = looked("sandbox", capsys, TOOLGATE_HTTP="1", TOOLGATE_SANDBOX="none")
    assert "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" in told


DOCUMENTS = {**REMOTE, "TOOLGATE_ALLOW_PRIVATE": "localhost"}


def test_a_document_that_can_not_be_fetched_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    with published(tmp_path / "authority.pem", {}) as (url, fetched):
        monkeypatch.setattr(document_copies, "DOCUMENT_COPIES", {url: DocumentCopy(b"", "")})
        told = looked("client documents", capsys, **DOCUMENTS)
        assert told.startswith("ok    client documents") and url in told and fetched == ["/client.json"]
    for how, mend in (("open", "--registration dynamic"), ("metadata", "--registration open")):
        told = looked("client documents", capsys, **DOCUMENTS, TOOLGATE_REGISTRATION=how)
        assert told.startswith("note  client documents") and "could not connect" in told and mend in told, told


@pytest.mark.parametrize(
    "options",
    [
        {"TOOLGATE_HTTP": ""},
        {"TOOLGATE_AUTH": "none"},
        {"TOOLGATE_AUTH": "https://login.example.com"},
        {"TOOLGATE_REGISTRATION": "dynamic"},
        {"TOOLGATE_REGISTRATION": "closed"},
        {"TOOLGATE_CLIENT_HOSTS": "app.example"},
    ],
    ids=str,
)
def test_no_document_is_fetched_where_none_is_taken(
    options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert looked("client documents", capsys, **{**REMOTE, **options}).startswith("skip  client documents")


# -- told to programs, and to people who look it up


def test_what_is_told_to_programs_is_one_object(tmp_path: Path) -> None:
    told = run(
        tmp_path, "doctor", "--json", "--browser", "none", "-t", "--port", "0", "--deny", "Bsh", *LOCAL, TERM="xterm"
    )
    assert told.returncode == 1 and told.stderr == ""
    found = json.loads(told.stdout)
    names = [check["name"] for check in found["checks"]]
    assert found["first"] == "rules" and [name for name in names if name in main.MACHINE_CHECKS] == list(
        main.MACHINE_CHECKS
    )
    assert all(check["remedy"] for check in found["checks"] if check["verdict"] in ("FAIL", "note"))
    assert run(tmp_path, "tools", "--json").returncode == 2


EVERY = {
    "documents out of reach": ("client documents", "could not connect"),
    **{name: (link, said) for name, (_, link, said) in {**ON_THE_WAY, **NOTED}.items()},
    **{name: (link, said) for name, (_, link, said) in ELSEWHERE.items()},
    **{name: (row, said) for name, (_, row, _, said) in {**KEPT, **HERE}.items()},
    **{said: ("Redis", said) for _, verdict, said in REDIS if verdict != "ok"},
}
