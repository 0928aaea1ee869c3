"""Decide which addresses requests may reach.

The default is the public Internet. `ipaddress.is_global` is not used: it counts NAT64 and 6to4 as global, and both hide
an IPv4 address. The table is IANA's special-purpose registries (RFC 6890).
"""

import ipaddress
import socket
from collections.abc import Callable, Iterable
from functools import cache

import msgspec

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# The first matching row names the address, so narrower rows come first.
SPECIAL = (
    ("0.0.0.0/8", "unspecified"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "carrier-grade NAT"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "cloud metadata"),  # public by number, but answers only inside Azure
    ("169.254.0.0/16", "link-local"),  # also most clouds' metadata, 169.254.169.254
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved"),  # also Oracle's metadata, 192.0.0.192
    ("192.0.2.0/24", "reserved"),
    ("192.88.99.0/24", "6to4 relay"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "reserved"),
    ("198.51.100.0/24", "reserved"),
    ("203.0.113.0/24", "reserved"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("::ffff:0:0/96", "IPv4-mapped"),
    ("::/96", "IPv4-compatible"),
    ("64:ff9b::/96", "NAT64"),
    ("64:ff9b:1::/48", "NAT64"),
    ("fc00::/7", "private"),  # also AWS's metadata, fd00:ec2::254
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
    ("2001::/32", "Teredo"),
    ("2001::/23", "reserved"),
    ("2001:db8::/32", "reserved"),
    ("2002::/16", "6to4"),
    ("3fff::/20", "reserved"),
)
# Reserved for documentation (RFC 5737, RFC 3849): no machine has one.
DOCUMENTATION_ADDRESSES = {4: "192.0.2.1", 6: "2001:db8::1"}
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
DISCARD = 9
GLOBAL_V6 = "2000::/3"  # IANA's global unicast space


class AddressPolicy(msgspec.Struct, frozen=True):
    """Exceptions to the default: allowed host names (any address of theirs) and `networks`, and `refused_networks`,
    which are public but refused. An allowed entry beats a refused one. `option` is what allows more, for errors, or
    `list_name`, to which the operator adds addresses."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()
    refused_networks: tuple[Network, ...] = ()
    option: str = "--allow-private"
    list_name: str = ""

    @classmethod
    def parse(cls, entries: Iterable[str], refused: Iterable[str] = ()) -> "AddressPolicy":
        """Parse `--allow-private` (host names, addresses, networks) and `--refuse-networks`. Raises ValueError."""
        names: set[str] = set()
        networks: list[Network] = []
        for entry in entries:
            network = _parse_network(entry)
            if network is not None:
                networks.append(network)
            else:
                names.add(_parse_host(entry))
        return cls(frozenset(names), tuple(networks), tuple(map(_parse_refused, refused)))

    def describe_remedy(self, host: str, address: str) -> str:
        """Return what would allow a refused address of a host."""
        if self.list_name:
            return f'add "{address}" to {self.list_name}'
        return f"the operator can allow it with {self.option} {host}"


def check_address(
    address: str | Address, allowed: AddressPolicy, is_local: Callable[[str], bool] | None = None
) -> str | None:
    """Return why `address` is refused, such as "loopback", or None if it is allowed. A text that is no address is "not
    an address"; one for which `is_local` is true is "of this machine"."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "not an address"
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.scope_id is not None:
        parsed = ipaddress.IPv6Address(int(parsed))  # a zone does not change the kind of address
    kind = _kind(parsed)
    if kind is None and any(parsed in network for network in allowed.refused_networks):
        kind = "in a network of --refuse-networks"
    if kind is None and is_local is not None and is_local(str(parsed)):
        kind = "of this machine"
    if kind is None or any(parsed in network for network in allowed.networks):
        return None
    return kind


def check_host(
    host: str, addresses: Iterable[str], allowed: AddressPolicy, is_local: Callable[[str], bool] | None = None
) -> tuple[str, str] | None:
    """Return the first refused address of the host, and why; None if all are allowed. All must pass: one private answer
    among public ones is a sign of DNS rebinding."""
    if normalise_host(host) in allowed.hosts:
        return None
    for address in addresses:
        kind = check_address(address, allowed, is_local)
        if kind is not None:
            return address, kind
    return None


def is_local(address: str) -> bool:
    """Return whether a connection to `address` reaches this machine, by asking the kernel; nothing is sent.

    That includes public addresses: a local service may answer there, behind the network's firewall. Only local
    addresses can be bound, unless the administrator allows others (ip_nonlocal_bind). Then the kernel's source address
    for it decides.
    """
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
    """Return the source address of packets to this address."""
    try:
        with socket.socket(FAMILIES[address.version], socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), DISCARD))
            return ipaddress.ip_address(probe.getsockname()[0])
    except OSError:
        return None


def normalise_host(host: str) -> str:
    """Return a host name in lower case, without a trailing dot."""
    return host.lower().removesuffix(".")


def _kind(address: Address) -> str | None:
    for network, kind in _special_networks():
        if address in network:
            return kind
    if address.version == 6 and address not in ipaddress.IPv6Network(GLOBAL_V6):
        return "reserved"
    return None


@cache
def _special_networks() -> tuple[tuple[Network, str], ...]:
    return tuple((ipaddress.ip_network(network), kind) for network, kind in SPECIAL)


def _parse_network(entry: str) -> Network | None:
    try:
        return ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return None


def _parse_refused(entry: str) -> Network:
    network = _parse_network(entry)
    if network is None:
        raise ValueError(f"{entry!r} is not an address or a network such as 52.0.0.0/16")
    return network


def _parse_host(entry: str) -> str:
    name = normalise_host(entry)
    try:
        ascii_name = name.encode("ascii" if name.isascii() else "idna").decode()
    except UnicodeError:
        ascii_name = ""
    labels = ascii_name.split(".")
    if not all(label and label.replace("-", "").replace("_", "").isalnum() for label in labels):
        raise ValueError(f"{entry!r} is not a host name, an address or a network such as 10.0.0.0/8")
    return ascii_name
