"""Addresses of nodes."""

from pathlib import Path

import pytest

from toolgate.server.features.nodes.address import MAX_SOCKET, NodeAddress, parse_node_address


@pytest.mark.parametrize(
    ("word", "address"),
    [
        ("unix:/run/toolgate-node/node.sock", NodeAddress(Path("/run/toolgate-node/node.sock"))),
        ("unix:/with:colon", NodeAddress(Path("/with:colon"))),
        ("node.example.com:7443", NodeAddress(host="node.example.com", port=7443)),
        ("192.0.2.7:1", NodeAddress(host="192.0.2.7", port=1)),
        ("[2001:db8::1]:65535", NodeAddress(host="2001:db8::1", port=65_535)),
    ],
)
def test_an_address_reads_as_it_was_typed(word: str, address: NodeAddress) -> None:
    assert parse_node_address(word) == address
    assert str(address) == word


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("", "must be unix:/PATH"),
        ("unix:", "must be unix:/PATH"),
        ("unix:node.sock", "must be unix:/PATH"),
        ("/run/node.sock", "must be unix:/PATH"),
        ("https://node:7443", "must be unix:/PATH"),
        ("node.example.com", "must be unix:/PATH"),
        ("2001:db8::1:7443", "must be unix:/PATH"),
        (":7443", "must be unix:/PATH"),
        ("node.example.com:", "must end in a port"),
        ("node.example.com:0", "must end in a port"),
        ("node.example.com:65536", "must end in a port"),
        ("node.example.com:٣", "must end in a port"),
        ("node example:7443", "must be an address"),
        ("1.2.3:7443", "must be an address"),
        (f"unix:/{'x' * MAX_SOCKET}", f"{MAX_SOCKET + 1} bytes"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(word: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_node_address(word)
