"""Proxies in front of one server, for attacks on what they share: Caddy, nginx, HAProxy and Traefik with the shipped
files, and with the lines that people add or leave out.

Each removes X-Remote-User from what its clients send, and proves itself by the secret."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from tests.deploy.proxies import DEPLOY, Proxy, changed, etc, program, told_caddy, worded, words
from tests.servers.reserved_port import kept_ports

SECRET = "a-secret-of-the-proxy-0123456789"
CADDY_LOGIN = {
    "# header_up -X-Remote-User": "header_up -X-Remote-User",
    "# header_up X-Toolgate-Proxy-Secret {$TOOLGATE_PROXY_SECRET}": f"header_up X-Toolgate-Proxy-Secret {SECRET}",
}
CADDY_UPGRADES = {"\trequest_header -Upgrade\n": ""}
NGINX_LOGIN = {
    '# proxy_set_header X-Remote-User "";': 'proxy_set_header X-Remote-User "";',
    '# proxy_set_header X-Toolgate-Proxy-Secret "…";': f"proxy_set_header X-Toolgate-Proxy-Secret {SECRET};",
}
NGINX_UPGRADES = {  # the lines for WebSockets that most guides show
    'proxy_set_header Connection "";': "proxy_set_header Upgrade $http_upgrade;\nproxy_set_header Connection $upgrade;"
}
NGINX_MAP = "map $http_upgrade $upgrade { default upgrade; '' ''; }\n"
TRAEFIK_UPGRADES = {'          Upgrade: ""\n': '          X-Nothing: ""\n'}
HAPROXY = """
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend front
    bind 127.0.0.1:{https} ssl crt {certificate}
    option forwardfor
    http-request del-header X-Forwarded-For
    http-request del-header X-Remote-User
    http-request set-header X-Toolgate-Proxy-Secret {secret}
    default_backend toolgate
backend toolgate
    http-reuse always
    server toolgate 127.0.0.1:{upstream}
"""
Make = Callable[
    [Path, int, Path], Proxy
]  # (folder, port of the server, certificate) → proxy, listening first for https


def debian_caddy(changes: Mapping[str, str]) -> Make:
    return lambda folder, upstream, certificate: _caddy(_debian_caddy(), changes, folder, upstream, certificate)


def newest_caddy(changes: Mapping[str, str]) -> Make:
    command = str(Path(sys.executable).with_name("caddy"))
    return lambda folder, upstream, certificate: _caddy(command, changes, folder, upstream, certificate)


def _debian_caddy() -> str:
    command = shutil.which("caddy", path="/usr/bin:/usr/local/bin")  # not the one beside this Python
    assert command, "caddy is missing: apt-get install caddy"
    return command


def _caddy(command: str, changes: Mapping[str, str], folder: Path, upstream: int, certificate: Path) -> Proxy:
    https, plain = kept_ports(2)
    folder.mkdir()
    text = (DEPLOY / "caddy" / "Caddyfile").read_text()
    (folder / "Caddyfile").write_text(changed(text, {**CADDY_LOGIN, **changes}))
    started = [command, "run", "--config", str(folder / "Caddyfile")]
    return Proxy(started, folder / "log", told_caddy(folder, upstream, (https, plain), certificate), https, plain)


def nginx(changes: Mapping[str, str], more: str = "") -> Make:
    def make(folder: Path, upstream: int, certificate: Path) -> Proxy:
        listening = https, plain = (*kept_ports(2),)
        etc(folder)
        own = words("toolgate.conf", upstream, listening, certificate)
        text = changed((DEPLOY / "nginx" / "toolgate.conf").read_text(), own)
        (folder / "conf.d" / "toolgate.conf").write_text(NGINX_MAP + text)
        snippet = (DEPLOY / "nginx" / "snippets" / "toolgate.conf").read_text()
        (folder / "snippets" / "toolgate.conf").write_text(changed(snippet, {**NGINX_LOGIN, **changes}) + more)
        return Proxy(worded(folder), folder / "log", {"PATH": os.environ["PATH"]}, https, plain)

    return make


def haproxy(folder: Path, upstream: int, certificate: Path) -> Proxy:
    """HAProxy, for which there is no recipe, with the least that a person writes. It sends trailers on."""
    (https,) = kept_ports(1)
    folder.mkdir()
    told = {"https": https, "certificate": certificate, "upstream": upstream, "secret": SECRET}
    (folder / "haproxy.cfg").write_text(HAPROXY.format(**told))
    command = [program("haproxy", "haproxy"), "-f", str(folder / "haproxy.cfg")]
    return Proxy(command, folder / "log", {"PATH": os.environ["PATH"]}, https)


def traefik(changes: Mapping[str, str]) -> Make:
    def make(folder: Path, upstream: int, certificate: Path) -> Proxy:
        (https,) = kept_ports(1)
        folder.mkdir()
        text = (DEPLOY / "traefik" / "toolgate.yaml").read_text()
        own = {"tools.example.com": "localhost", "http://toolgate:8080": f"http://127.0.0.1:{upstream}"}
        dynamic = yaml.safe_load(changed(text, {**own, **changes}))
        dynamic["tls"] = {"certificates": [{"certFile": str(certificate), "keyFile": str(certificate)}]}
        http = dynamic["http"]
        http["routers"]["toolgate"]["tls"] = {}  # no certificate of letsencrypt's
        signed = {"X-Remote-User": "", "X-Toolgate-Proxy-Secret": SECRET}
        http["middlewares"]["toolgate-login"] = {"headers": {"customRequestHeaders": signed}}
        http["routers"]["toolgate"]["middlewares"].append("toolgate-login")
        (folder / "toolgate.yaml").write_text(yaml.safe_dump(dynamic))
        point = "--entryPoints.websecure"
        command = [
            str(Path(sys.executable).with_name("traefik")),
            f"--providers.file.filename={folder / 'toolgate.yaml'}",
            f"{point}.address=127.0.0.1:{https}",
            f"{point}.transport.respondingTimeouts.readTimeout=0",
            "--global.checkNewVersion=false",
            "--global.sendAnonymousUsage=false",
        ]
        return Proxy(command, folder / "log", {"PATH": os.environ["PATH"], "HOME": str(folder)}, https)

    return make


MAKERS: dict[str, Make] = {
    "caddy": newest_caddy({}),
    "caddy-with-upgrades": newest_caddy(CADDY_UPGRADES),
    "debian-caddy": debian_caddy({}),
    "debian-caddy-with-upgrades": debian_caddy(CADDY_UPGRADES),
    "nginx": nginx({}),
    "nginx-with-upgrades": nginx(NGINX_UPGRADES),
    "nginx-with-upgrades-unbuffered": nginx(NGINX_UPGRADES, "proxy_request_buffering off;\n"),
    "haproxy": haproxy,
    "traefik": traefik({}),
    "traefik-with-upgrades": traefik(TRAEFIK_UPGRADES),
}
