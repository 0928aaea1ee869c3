"""The real Caddy and nginx with the shipped files, changed only in names, ports and certificate paths."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.clients.raw_client import PATIENCE, ROOT, eventually

DEPLOY = ROOT / "deploy"


class Proxy:
    """A proxy process, which can be killed and restarted."""

    def __init__(self, command: list[str], log: Path, env: Mapping[str, str], *listening: int) -> None:
        self._command, self._log, self._env, self.listening = command, log, env, listening
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["setpriv", "--pdeathsig=TERM", *self._command]  # a killed pytest leaves none behind
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, start_new_session=True
            )
        assert eventually(self._listens), self.log()
        assert self.process.poll() is None, self.log()

    def kill(self) -> None:
        """Kill it with all its children."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(PATIENCE)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _listens(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None or all(map(is_open, self.listening))


def program(name: str, package: str) -> str:
    path = os.pathsep.join((os.environ["PATH"], "/usr/sbin"))
    found = shutil.which(name, path=path)
    assert found, f"{name} is missing: apt-get install {package}"
    return found


def caddy(folder: Path, file: str, upstream: int, listening: tuple[int, int], certificate: Path) -> Proxy:
    """Caddy with the shipped file, whose name and ports come from the environment."""
    folder.mkdir()
    shutil.copy(DEPLOY / "caddy" / file, folder)
    command = [program("caddy", "caddy"), "run", "--config", str(folder / file)]
    return Proxy(command, folder / "log", told_caddy(folder, upstream, listening, certificate), *listening)


def told_caddy(folder: Path, upstream: int, listening: tuple[int, int], certificate: Path) -> dict[str, str]:
    """Return the environment that the shipped file reads."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TOOLGATE_DOMAIN": "localhost",
        "TOOLGATE_UPSTREAM": f"127.0.0.1:{upstream}",
        "TOOLGATE_TLS": f"tls {certificate} {certificate}",
        "TOOLGATE_HTTPS_PORT": str(listening[0]),
        "TOOLGATE_HTTP_PORT": str(listening[1]),
    }


def nginx(folder: Path, file: str, upstream: int, listening: tuple[int, int], certificate: Path) -> Proxy:
    """nginx with a shipped file, and the snippet that goes with all of them."""
    etc(folder)
    own = words(file, upstream, listening, certificate)
    (folder / "conf.d" / file).write_text(changed((DEPLOY / "nginx" / file).read_text(), own))
    shutil.copy(DEPLOY / "nginx" / "snippets" / "toolgate.conf", folder / "snippets")
    return Proxy(worded(folder), folder / "log", {"PATH": os.environ["PATH"]}, *listening)


def words(file: str, upstream: int, listening: tuple[int, int], certificate: Path) -> dict[str, str]:
    """Return the words of an nginx file that depend on the machine, with their replacements."""
    name = "www.example.com" if "prefix" in file else "tools.example.com"
    https, plain = listening
    return {
        f"/etc/letsencrypt/live/{name}/fullchain.pem": str(certificate),
        f"/etc/letsencrypt/live/{name}/privkey.pem": str(certificate),
        "listen 443 ": f"listen 127.0.0.1:{https} ",
        "listen 80;": f"listen 127.0.0.1:{plain};",
        "server 127.0.0.1:8080;": f"server 127.0.0.1:{upstream};",
        f"https://{name}$": f"https://localhost:{https}$",
        f"server_name {name};": "server_name localhost;",
    }


def worded(folder: Path) -> list[str]:
    """Return the command for nginx with a /etc/nginx in `folder`, as its package has it."""
    at = str(folder)
    return [program("nginx", "nginx-light"), "-p", at, "-c", f"{at}/nginx.conf", "-e", "stderr"]


def etc(folder: Path) -> None:
    """Write what a distribution has in /etc/nginx, for an unprivileged process."""
    for name in ("conf.d", "snippets", "kept"):
        (folder / name).mkdir(parents=True)
    kept = "".join(f"    {kind}_temp_path kept;\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    user = "user root root;\n" if os.geteuid() == 0 else ""  # the tests' folders are private
    (folder / "nginx.conf").write_text(
        f"{user}worker_processes 1;\ndaemon off;\npid nginx.pid;\nevents {{}}\n"
        f"http {{\n    access_log off;\n{kept}    include conf.d/*.conf;\n}}\n"
    )


def changed(text: str, words: Mapping[str, str]) -> str:
    """Return the text with these words replaced."""
    for old, new in words.items():
        assert old in text, f"the shipped file has no {old!r}"
        text = text.replace(old, new)
    return text


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def running(*proxies: Proxy) -> Iterator[None]:
    try:
        for proxy in proxies:
            proxy.start()
        yield
    finally:
        for proxy in proxies:
            proxy.kill()
