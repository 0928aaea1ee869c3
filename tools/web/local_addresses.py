"""Says whether an address is one of this machine's, by asking the kernel at that moment; nothing is sent.

A public one too: what listens on all addresses, a database or another server, answers there past any firewall that
stands in the network.
"""

import ipaddress
import socket

from toolgate.tools.web.address_policy import Address

DOCUMENTATION_ADDRESSES = {
    4: "192.0.2.1",
    6: "2001:db8::1",
}  # of no machine: they are for documents (RFC 5737, RFC 3849)
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
DISCARD = 9


def is_local(address: str) -> bool:
    """Whether what connects to `address` reaches this machine. A socket can be bound to no other address, but where the
    administrator lets it (ip_nonlocal_bind): there its packets would have to come from that address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if not _can_bind(str(parsed), parsed):
        return False
    return not _can_bind(DOCUMENTATION_ADDRESSES[parsed.version], parsed) or _source_address(parsed) == parsed


def _can_bind(address: str, like: Address) -> bool:
    try:
        with socket.socket(FAMILIES[like.version], socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
            return True
    except OSError:
        return False


def _source_address(address: Address) -> Address | None:
    """Return what packets to it would come from."""
    try:
        with socket.socket(FAMILIES[address.version], socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), DISCARD))
            return ipaddress.ip_address(probe.getsockname()[0])
    except OSError:
        return None
