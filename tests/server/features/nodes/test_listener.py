"""Addresses where a node can't listen, and certificates that do not fit the address."""

import os
import socket
from pathlib import Path

import pytest

from toolgate.server.base.errors import UsageError
from toolgate.server.config import load
from toolgate.server.features.nodes.address import NodeAddress
from toolgate.server.features.nodes.connect import read_certificate
from toolgate.server.features.nodes.node.listener import SocketFile, open_listener

USER = 39_998  # of no other process


def refusal(address: NodeAddress) -> str:
    with pytest.raises(UsageError) as error:
        open_listener(address)
    return str(error.value)


def test_what_is_no_socket_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path, tmp_path / "file", tmp_path / "link"):
        assert refusal(NodeAddress(path)) == f"--listen: {path} is there, and is not a socket: name another path"
    assert (tmp_path / "file").read_text() == "kept"
    assert (tmp_path / "link").is_symlink()


def test_a_place_that_is_missing_is_said(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "node.sock"
    assert refusal(NodeAddress(path)) == f"--listen: {path}: no such file or directory"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_place_without_permission_is_said(open_path: Path) -> None:
    "host".encode("idna")  # loads what this user may not read
    os.seteuid(USER)
    try:
        assert refusal(NodeAddress(open_path / "node.sock")).endswith("permission denied")
        assert refusal(NodeAddress(host="127.0.0.1", port=1)) == "--listen: 127.0.0.1:1: permission denied"
    finally:
        os.seteuid(0)


def test_a_port_that_can_not_be_had_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert refusal(NodeAddress(host="127.0.0.1", port=port)).startswith(f"--listen: 127.0.0.1:{port}: address al")
    assert "cannot assign" in refusal(NodeAddress(host="192.0.2.1", port=7443))
    assert "name" in refusal(NodeAddress(host="no-such-host.invalid", port=7443))


def test_the_certificate_goes_with_a_port_alone(tmp_path: Path) -> None:
    here, there = NodeAddress(tmp_path / "node.sock"), NodeAddress(host="node.example.com", port=7443)
    bare = load.load({}, {})
    named = load.load({"node_certificate": str(tmp_path / "x")}, {})
    assert read_certificate(bare, "--node", here) is None
    for config, address, reason in (
        (
            bare,
            there,
            "--node: node.example.com:7443 needs --node-certificate FILE: toolgate node certificate node.exa",
        ),
        (bare, NodeAddress(host="::", port=1), "toolgate node certificate HOST makes"),
        (named, here, "--node-certificate is for --node HOST:PORT: a socket on this machine needs none"),
        (named, there, f"--node-certificate: {tmp_path}/x: no such file or directory"),
    ):
        with pytest.raises(UsageError) as error:
            read_certificate(config, "--node", address)
        assert reason in str(error.value)


def test_only_the_own_socket_is_removed_at_the_end(tmp_path: Path) -> None:
    place = NodeAddress(tmp_path / "node.sock")
    assert place.path is not None
    with open_listener(place):
        file = SocketFile(place.path)
        place.path.unlink()
        file.remove()
        with open_listener(place):  # another node's by now
            file.remove()
            assert place.path.exists()
            SocketFile(place.path).remove()
            assert not place.path.exists()
