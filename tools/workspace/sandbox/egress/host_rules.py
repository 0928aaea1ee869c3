"""Hold the list of hosts that one program may reach."""

import ipaddress
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from toolgate.tools.api.outbound.address_policy import AddressPolicy, Network, normalise_host
from toolgate.tools.api.outbound.errors import AddressRefusedError

ANY = "*"
BELOW = "*."  # before a domain: the names below it


class HostRules(msgspec.Struct, frozen=True):
    """Host names, domains whose subdomains are allowed, and addresses and networks. `is_any`: every host is allowed.

    A name is allowed as far as its addresses are public, or in `networks`: who answers for a name in the DNS does not
    open the private network. `table` is where the list stands, such as "[mounts.github]".
    """

    names: frozenset[str]
    domains: tuple[str, ...]
    networks: tuple[Network, ...]
    is_any: bool
    table: str

    @classmethod
    def parse(cls, entries: Sequence[str], table: str) -> "HostRules":
        """Parse host names, `*.DOMAIN`, addresses, networks, and `*`. Raises ValueError."""
        plain = AddressPolicy.parse(entry for entry in entries if not entry.startswith(ANY))
        domains = [_parse_domain(entry) for entry in entries if entry.startswith(ANY) and entry != ANY]
        return cls(plain.hosts, tuple(domains), plain.networks, ANY in entries, table)

    def check_host(self, host: str) -> None:
        """Raise AddressRefusedError for a host that the list does not have. Nothing is resolved for it."""
        if not self._has(host):
            raise AddressRefusedError(f'refused: {host} is not in the list; add "{host}" to {self._list_name}')

    def extend_policy(self, policy: AddressPolicy) -> AddressPolicy:
        """Return the policy on addresses, with those of the list."""
        return replace(policy, networks=(*policy.networks, *self.networks), list_name=self._list_name)

    @property
    def _list_name(self) -> str:
        return f"network of {self.table}"

    def _has(self, host: str) -> bool:
        name = normalise_host(host)
        if self.is_any or name in self.names or any(name.endswith(f".{domain}") for domain in self.domains):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return any(address in network for network in self.networks)


def _parse_domain(entry: str) -> str:
    """Return the domain of `*.DOMAIN`. Raises ValueError."""
    try:
        found = AddressPolicy.parse([entry.removeprefix(BELOW)]) if entry.startswith(BELOW) else AddressPolicy()
    except ValueError:
        found = AddressPolicy()
    if not found.hosts:
        raise ValueError(f"{entry!r} is not a pattern of hosts: those are *.example.com, and * for all")
    return next(iter(found.hosts))
