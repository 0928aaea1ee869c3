"""A command in a sandbox has neither the node's certificate nor a way to speak to its port."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.server.features.nodes.nodes import NodeProcess, remote_caller, running_node
from tests.tools.shell_commands import text_of

HOST = "127.0.0.1"
SPEAK = """
import socket, ssl, struct, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
hello = b'["hello",1,"0.1.0",""]'
try:
    with socket.create_connection(("{host}", {port}), 5) as line:
        print("connected")
        with context.wrap_socket(line) as secure:
            secure.sendall(struct.pack(">I", len(hello)) + hello)
            print("answer:", secure.recv(100))
except OSError as error:
    print("refused:", error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has the level uid")
@pytest.mark.programs("bwrap")
@pytest.mark.parametrize(
    ("level", "network", "reaches"),
    [
        ("bwrap", "public", False),
        pytest.param("bwrap", "all", True, marks=pytest.mark.soak),
        pytest.param("uid", "all", True, marks=pytest.mark.soak),
    ],
)
def test_a_command_has_no_way_to_the_node(open_path: Path, level: str, network: str, *, reaches: bool) -> None:
    # only the file's own mode, or the sandbox, is in the way
    words = ("--sandbox", level, "--sandbox-network", network, "--sandbox-paths", str(open_path / "certificates"))

    async def body(node: NodeProcess) -> None:
        async with remote_caller(node) as me:
            node.certificates.chmod(0o755)
            (node.certificates / "open").write_text("readable")
            assert text_of(await me.bash(f"cat {node.certificates}/open")) == "readable"
            for name in ("certificates/node.pem", "state/node.lock", "state/keys"):
                read = text_of(await me.bash(f"cp -r {open_path / name} it && echo it-was-read"))
                assert "it-was-read" not in read, read
            script = SPEAK.format(host=HOST, port=node.address.port)
            spoken = text_of(await me.bash(f"/usr/bin/python3 - <<'END'{script}END"))
            assert "welcome" not in spoken
            assert ("connected" in spoken) == reaches, spoken
            if network == "public":
                url = f"http://{HOST}:{node.address.port}/"
                through = text_of(await me.bash(f"curl -sS -p -x $http_proxy --noproxy '' {url}"))
                assert "403" in through, through

    with running_node(open_path, *words, host=HOST) as node:
        asyncio.run(body(node))
