"""Servers behind the shipped proxies: one at the root of a host, behind Caddy and nginx, and one under a path of
another, behind nginx. Their quiet streams send two comments a second."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.clients.raw_http_client import Site, site
from tests.deploy.proxied_server import Front
from tests.deploy.proxies import Proxy, caddy, changed, nginx, running
from tests.interop.official_clients import Negotiation
from tests.interop.sign_in_server import SignInServer, certified
from tests.interop.test_oauth_python_sdk import StoredTokens, connected, text
from tests.servers.reserved_port import kept_ports

QUIET = 4  # seconds of silence that the impatient nginx allows: enough for a busy machine to start an answer
BRISK = (sys.executable, str(Path(__file__).with_name("frequent_pings.py")))
STEPS = ("-p", str(Path(__file__).with_name("stepping")))

# Beside the shipped file: an nginx with its defaults, and an impatient one, also in front of a server that never
# answers.
MORE = """
ssl_certificate {certificate};
ssl_certificate_key {certificate};
server {{
    listen 127.0.0.1:{plain} ssl;
    location / {{
        proxy_pass http://127.0.0.1:{upstream};
        proxy_set_header Host $http_host;
    }}
}}
server {{
    listen 127.0.0.1:{impatient} ssl;
    include snippets/impatient.conf;
    location / {{
        proxy_pass http://127.0.0.1:{upstream};
    }}
    location /mute {{
        proxy_pass http://127.0.0.1:{mute};
    }}
}}
"""


@dataclass
class Served:
    fronts: dict[str, Front]
    proxies: dict[str, Proxy]
    said: dict[str, str] = field(default_factory=dict[str, str])  # what a call of Bash by the official client returned


@contextlib.contextmanager
def behind_proxies(folder: Path) -> Iterator[Served]:
    authority = folder / "authority.pem"
    certificate = certified(authority)
    at_caddy, at_nginx, at_prefix, at_plain, at_impatient, *others = kept_ports(8)
    urls = {
        "caddy": f"https://localhost:{at_caddy}",
        "nginx": f"https://localhost:{at_nginx}",
        "prefix": f"https://localhost:{at_prefix}/tools",
        "plain": f"https://localhost:{at_plain}",
        "impatient": f"https://localhost:{at_impatient}",
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("SSL_CERT_FILE", str(authority))
        mute = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        root = stack.enter_context(_server(folder / "root", urls["caddy"]))
        below = stack.enter_context(_server(folder / "below", urls["prefix"]))
        given = (
            ("caddy", caddy, "Caddyfile", root.port, (at_caddy, others[0])),
            ("nginx", nginx, "toolgate.conf", root.port, (at_nginx, others[1])),
            ("prefix", nginx, "toolgate-prefix.conf", below.port, (at_prefix, others[2])),
        )
        proxies = {
            name: make(folder / name, file, upstream, listening, certificate)
            for name, make, file, upstream, listening in given
        }
        snippets = folder / "nginx" / "snippets"
        shipped = (snippets / "toolgate.conf").read_text()
        bears = {"proxy_read_timeout 300s;": f"proxy_read_timeout {QUIET}s;"}
        (snippets / "impatient.conf").write_text(changed(shipped, bears))
        where = {"plain": at_plain, "impatient": at_impatient, "upstream": root.port, "mute": mute}
        (folder / "nginx" / "conf.d" / "more.conf").write_text(MORE.format(certificate=certificate, **where))
        stack.enter_context(running(*proxies.values()))
        fronts = {name: Front(below if name == "prefix" else root, url, authority) for name, url in urls.items()}
        made = Served(fronts, proxies)
        for name in ("caddy", "prefix"):
            asyncio.run(_sign_in(made, name))
        for name in ("nginx", "plain", "impatient"):
            fronts[name].token = fronts["caddy"].token  # they share one server, under the first one's name
        yield made


def _server(folder: Path, url: str) -> contextlib.AbstractContextManager[Site]:
    options = ("--auth", "oauth", "--public-url", url, "--trusted-proxies", "127.0.0.1")
    return site(folder, *options, *STEPS, command=BRISK)


async def _sign_in(served: Served, name: str) -> None:
    front, kept = served.fronts[name], StoredTokens()
    async with connected(SignInServer(front, front.person(), ""), kept, Negotiation("http", "auto")) as client:
        served.said[name] = text(await client.call_tool("Bash", {"command": "echo in"}))
    front.token = kept.access
