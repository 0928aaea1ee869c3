"""The steps of docs/proxies.md, from nothing to a client that calls Bash, line by line; and its promises that need a
server."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE, ROOT, eventually
from tests.deploy.proxied_server import Front
from tests.deploy.proxies import Proxy, etc, is_open, running, told_caddy, worded, words
from tests.interop.official_clients import THIRTEEN, Negotiation
from tests.interop.sign_in_server import SignInServer, certified
from tests.interop.test_oauth_python_sdk import StoredTokens, connected, text
from tests.servers.reserved_port import kept_ports

DOCS = (ROOT / "docs" / "proxies.md").read_text()
PASSWORD = "a long enough password"


@dataclass
class Machine:
    """A machine with nothing installed. `env` is its shell's, `lines` the typed commands, `ports` those to be open
    after a background command."""

    folder: Path
    env: dict[str, str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])

    def type(self, line: str, *ports: int) -> None:
        if line.startswith("export "):
            self.env |= dict(word.split("=", 1) for word in line.split()[1:])
        elif line.endswith("&"):
            self.begin(line.removesuffix("&"), *ports)
        else:
            how = {"cwd": self.folder, "env": self.env, "capture_output": True, "text": True, "timeout": 2 * PATIENCE}
            done = subprocess.run(["bash", "-c", line], **how)  # type: ignore[call-overload]
            assert done.returncode == 0, (line, done.stdout, done.stderr)

    def begin(self, line: str, *ports: int) -> None:
        with (self.folder / "log").open("ab") as log:
            words = ["bash", "-c", f"exec {line}"]
            begun = subprocess.Popen(words, cwd=self.folder, env=self.env, stdout=log, stderr=log)
        self.running[line.split()[0]] = begun
        assert eventually(lambda: begun.poll() is not None or all(map(is_open, ports))), self.log()
        assert begun.poll() is None, self.log()

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def end(self) -> None:
        for begun in self.running.values():
            begun.send_signal(signal.SIGTERM)
        for begun in self.running.values():
            begun.wait(PATIENCE)


@contextlib.contextmanager
def machine(folder: Path, env: dict[str, str]) -> Iterator[Machine]:
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "toolgate").symlink_to(Path(sys.executable).with_name("toolgate"))
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    made = Machine(folder, {"PATH": os.environ["PATH"], **env, "HOME": str(folder)})
    try:
        yield made
    finally:
        made.end()


def lines(title: str) -> list[str]:
    """Return the commands under a heading, without comments."""
    (block,) = re.findall(rf"^## {title}\n.*?```sh\n(.*?)```", DOCS, re.S | re.M)
    return [line.partition("#")[0].strip() for line in block.splitlines()]


async def _signed_in(front: Front) -> None:
    """Sign in with the official client, given only the URL."""
    kept = StoredTokens()
    gate = SignInServer(front, front.person(password=PASSWORD), "")
    async with connected(gate, kept, Negotiation("http", "auto")) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == THIRTEEN
        assert text(await client.call_tool("Bash", {"command": "echo in"})) == "in\n"
    front.token = kept.access


def test_from_nothing_to_a_client_calling_bash_through_caddy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = tmp_path / "authority.pem"
    certificate = certified(authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    upstream, https, plain = kept_ports(3)
    url = f"https://localhost:{https}"
    own = {**told_caddy(tmp_path, upstream, (https, plain), certificate), "SSL_CERT_FILE": str(authority)}
    del own["TOOLGATE_DOMAIN"], own["TOOLGATE_UPSTREAM"]
    typed = "\n".join(lines("From nothing, with Caddy"))
    told = {
        "https://tools.example.com": url,
        "tools.example.com": "localhost",
        "127.0.0.1:8080": f"127.0.0.1:{upstream}",
    }
    for old, new in told.items():
        assert old in typed
        typed = typed.replace(old, new)
    with machine(tmp_path / "machine", {**own, "TOOLGATE_PORT": str(upstream)}) as here:
        for line in typed.splitlines():
            here.type(line, *((https, plain) if line.startswith("caddy") else (upstream,)))
        front = Front(None, url, authority)
        asyncio.run(_signed_in(front))
        _waits_for_a_server_that_starts_anew(here, front, upstream)


def _waits_for_a_server_that_starts_anew(here: Machine, front: Front, upstream: int) -> None:
    """Caddy holds undeliverable requests for a while: no request is refused meanwhile (2.6: none without a body)."""
    before = here.running[".venv/bin/toolgate"]
    before.send_signal(signal.SIGTERM)
    assert before.wait(PATIENCE) == 0
    with contextlib.closing(front.connect()) as connection:
        connection.request("GET", "/login")
        here.begin(f".venv/bin/toolgate -t --public-url {front.url} --trusted-proxies 127.0.0.1", upstream)
        assert connection.getresponse().status == 200


@pytest.mark.soak  # test_proxies.py has both files, and Caddy's is tried above
def test_from_nothing_to_a_client_calling_bash_under_a_path_through_nginx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = tmp_path / "authority.pem"
    certificate = certified(authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    upstream, https, plain, other = kept_ports(4)
    url = f"https://localhost:{https}/tools"
    nginx = tmp_path / "nginx"
    etc(nginx)
    (nginx / "conf.d" / "other.conf").write_text(f"server {{ listen 127.0.0.1:{other}; }}\n")
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "nginx").write_text(f'#!/bin/sh\nexec {" ".join(worded(nginx))} "$@"\n')
    (commands / "nginx").chmod(0o700)
    env = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "TOOLGATE_PORT": str(upstream),
        "SSL_CERT_FILE": str(authority),
    }
    served = Proxy(worded(nginx), tmp_path / "log", env, other)
    with running(served), machine(tmp_path / "machine", env) as here:
        file = here.folder / "deploy" / "nginx" / "toolgate-prefix.conf"
        for old, new in words(file.name, upstream, (https, plain), certificate).items():
            file.write_text(file.read_text().replace(old, new))
        for line in lines("Under a path, with nginx"):
            mine = line.replace("/etc/nginx", str(nginx)).replace("https://www.example.com/tools", url)
            here.type(mine, upstream)
        asyncio.run(_signed_in(Front(None, url, authority)))
