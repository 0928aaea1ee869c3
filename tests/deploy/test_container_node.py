"""Gateway and node of deploy/compose.node.yaml as containers of their own: only the node needs what a sandbox needs."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.clients.raw_client import ROOT, eventually
from tests.deploy import engine
from tests.deploy.engine import Container, Root, container, engine_filter
from tests.deploy.test_container import IMAGE, PROFILE, called
from tests.deploy.test_kubernetes_nodes import build_gateway, build_node
from tests.server.features.nodes.tls.certificates import (
    write_gateway_certificate,
    write_node_certificate,
)
from tests.servers.reserved_port import kept_port

COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.node.yaml").read_text())["services"]
SOCKET = "/run/toolgate-node"
LOOK = f"pwd; ls {SOCKET} /data/state 2>&1; true"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    if os.geteuid() != 0:
        pytest.skip("only root can begin a container's first process")
    return engine.here(IMAGE, tmp_path_factory.mktemp("here"))


@pytest.fixture(scope="module")
def socket_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The volume `socket`, as the image's folder there begins it."""
    folder = tmp_path_factory.mktemp("socket")
    folder.chmod(0o700)
    os.chown(folder, IMAGE.uid, IMAGE.uid)
    return folder


@pytest.fixture(scope="module")
def node(root: Root, socket_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    how: dict[str, Any] = {"command": COMPOSE["node"]["command"], "shared": {SOCKET: socket_folder}}
    folder = tmp_path_factory.mktemp("node")
    with container(IMAGE, root, folder, filter=engine_filter(PROFILE), **how) as made:
        assert eventually(lambda: made.process.poll() is not None or (socket_folder / "node.sock").exists())
        assert made.process.poll() is None and eventually(lambda: is_healthy(made)), made.log()
        yield made


def is_healthy(node: Container) -> bool:
    first, *words = COMPOSE["node"]["healthcheck"]["test"]
    assert first == "CMD"
    return node.execute(*words).returncode == 0


def test_a_gateway_under_an_engines_own_filter_and_masks_uses_the_nodes_sandbox(
    root: Root, node: Container, socket_folder: Path, tmp_path: Path
) -> None:
    given = {"TOOLGATE_NODE": COMPOSE["toolgate"]["environment"]["TOOLGATE_NODE"]}
    as_engines_do: dict[str, Any] = {"masked": True, "filter": engine_filter(PROFILE, spaces=False)}
    with container(
        IMAGE, root, tmp_path, environment=given, shared={SOCKET: socket_folder}, **as_engines_do
    ) as gateway:
        assert gateway.serving(), gateway.log()
        [said] = asyncio.run(called(gateway, LOOK))
        assert gateway.stop() == 0
    folder, *seen = said.splitlines()
    assert folder.startswith("/data/state/workspaces/u-") and (node.data / folder.removeprefix("/data/")).is_dir()
    assert list((gateway.data / "state").glob("workspaces/*")) == []
    assert seen == [f"ls: cannot access '{SOCKET}': No such file or directory", "/data/state:", "spool", "workspaces"]


@pytest.mark.soak
def test_a_person_works_in_a_pod_of_their_own(root: Root, tmp_path: Path) -> None:
    """As deploy/agent-sandbox runs it, without its runtime class."""
    [pod] = build_node("agent-sandbox")["spec"]["containers"]
    [gateway_pod] = build_gateway("agent-sandbox")["spec"]["template"]["spec"]["containers"]
    port, secret = kept_port("127.0.0.1"), tmp_path / "secret"
    secret.mkdir()
    write_node_certificate(secret, "localhost").chmod(0o400)
    gateways = write_gateway_certificate(secret)
    gateways.chmod(0o440)
    os.chown(gateways, 0, IMAGE.uid)

    def place(words: list[str]) -> list[str]:
        """Return a pod's words, for this machine: pods have a port and a folder of their own."""
        text = "\n".join(words).replace("/etc/toolgate-node", SOCKET).replace(":7443", f":{port}")
        return text.replace("toolgate-person-0:", "localhost:").split("\n")

    own = [word for word in place(gateway_pod["args"]) if "toolgate-person-" not in word]
    as_root: dict[str, Any] = {"user": 0, "capabilities": pod["securityContext"]["capabilities"]["add"]}
    shared = {SOCKET: secret}
    with contextlib.ExitStack() as pods:

        def start(name: str, **how: Any) -> Container:
            return pods.enter_context(container(IMAGE, root, tmp_path / name, shared=shared, masked=True, **how))

        node = start("node", command=place(pod["args"]), **as_root)
        assert eventually(lambda: (node.data / "state" / "node.sock").exists()), node.log()
        assert eventually(lambda: node.execute(*pod["livenessProbe"]["exec"]["command"]).returncode == 0), node.log()
        gateway = start("gateway", command=own)
        assert gateway.serving(), gateway.log()
        tries = (f"cat {SOCKET}/*.pem 2>&1 | head -1", f"exec 3<>/dev/tcp/127.0.0.1/{port}; true")
        uid, certificate, reached = asyncio.run(called(gateway, "id -u", *tries))
        assert gateway.stop() == 0 and node.stop() == 0
    assert int(uid) in range(40_000, 50_000)
    assert certificate.rstrip().endswith("Permission denied"), certificate
    assert "Address family not supported" in reached, reached  # there is no network at level uid


def test_the_health_check_names_the_address_that_no_node_answers_at(node: Container) -> None:
    other = node.execute("toolgate", "health", "--node", f"unix:{SOCKET}/other.sock")
    assert (other.returncode, other.stdout) == (
        1,
        f"no node answers at unix:{SOCKET}/other.sock: no such file or directory\n",
    )


def test_a_node_ends_in_order(node: Container) -> None:
    assert node.stop() == 0
    assert "Traceback" not in node.log()
