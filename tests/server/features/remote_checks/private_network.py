"""Serve under the name of a private network, as docs/quickstart-hosted.md says with `tls internal`, and print what
doctor says: `python -m tests.server.features.remote_checks.private_network FOLDER`, in a network of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.clients.raw_client import COMMAND, PATIENCE, eventually
from tests.clients.raw_http_client import site
from tests.deploy.proxies import Proxy, program

ADDRESS = "10.77.0.1"
CADDYFILE = """
{
    admin off
    skip_install_trust
    storage file_system %s
}
%s {
    header Strict-Transport-Security max-age=31536000
    request_header -Upgrade
    tls internal
    reverse_proxy 127.0.0.1:%d
}
"""
SANDBOX = ("--sandbox", "none", "--accept-unsandboxed")  # the namespace of users may allow no other


def main(folder: Path) -> None:
    for words in (("link", "set", "lo", "up"), ("address", "add", f"{ADDRESS}/32", "dev", "lo")):
        subprocess.run(["ip", *words], check=True, timeout=PATIENCE)
    public = ("--auth", "oauth", "--public-url", f"https://{ADDRESS}", "--trusted-proxies", "127.0.0.1")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    with site(folder / "served", *public, *SANDBOX) as at:
        (folder / "Caddyfile").write_text(CADDYFILE % (folder / "caddy", ADDRESS, at.port))
        command = [program("caddy", "caddy"), "run", "--config", str(folder / "Caddyfile")]
        proxy = Proxy(
            command,
            folder / "log",
            environment,
        )
        proxy.start()
        root = folder / "caddy" / "pki" / "authorities" / "local" / "root.crt"
        doctor = [COMMAND, "doctor", "--json", "--url", f"https://{ADDRESS}/mcp"]
        try:
            assert eventually(root.exists), proxy.log()
            for trusted in ({}, {"SSL_CERT_FILE": str(root)}):
                done = subprocess.run(
                    doctor, env={**environment, **trusted}, capture_output=True, text=True, timeout=PATIENCE
                )
                print(done.stdout, end="")
            called = [COMMAND, "tools", "--url", f"https://{ADDRESS}/mcp"]
            done = subprocess.run(called, env=environment, capture_output=True, text=True, timeout=PATIENCE)
            print(json.dumps(done.stderr))
        finally:
            proxy.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
