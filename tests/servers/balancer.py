"""nginx that asks several servers in turn, and keeps no client at one."""

import contextlib
import shutil
from collections.abc import Generator, Sequence
from pathlib import Path

from tests.deploy.proxies import Proxy, etc, running, worded

CONFIGURATION = """
upstream toolgate {{
{servers}
    keepalive 16;
    keepalive_timeout 1s;
}}
server {{
    listen 127.0.0.1:{front};
    client_max_body_size 0;
    location / {{
        proxy_pass http://toolgate;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header Host $http_host;
        proxy_buffering off;
    }}
}}
"""


@contextlib.contextmanager
def balanced(folder: Path, front: int, ports: Sequence[int]) -> Generator[None]:
    """Run nginx at the port `front`, before servers at `ports`."""
    etc(folder)
    servers = "\n".join(f"    server 127.0.0.1:{port} max_fails=0;" for port in ports)
    (folder / "conf.d" / "toolgate.conf").write_text(CONFIGURATION.format(servers=servers, front=front))
    shutil.rmtree(folder / "snippets")
    with running(Proxy(worded(folder), folder / "nginx.log", {"PATH": "/usr/bin"}, front)):
        yield
