"""Read what trusted proxies say: a request's address and, if configured, its person."""

import hmac
import ipaddress
import logging
import re
import socket
from collections.abc import Iterable, Mapping

import msgspec

from toolgate.server.auth.login.accounts import Person, SignInError
from toolgate.server.auth.login.allowlist import UserAllowlist
from toolgate.server.base.principals.sign_in_methods import HEADER
from toolgate.server.config.types import is_loopback

HEADER_ISSUER = HEADER.issuer  # of the people a proxy names
PROOF_HEADER = "x-toolgate-proxy-secret"  # the header for a proxy's secret
LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
MAX_NAME = 256  # characters; an e-mail address has at most 254
MAX_HOPS = 32  # read from the end of a header that any caller can begin: no chain of proxies is as long
PORTED = re.compile(r"\[([^\]]*)\](?::[0-9]*)?|([0-9.]+):[0-9]*")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

log = logging.getLogger("toolgate.auth")


class TrustedProxies:
    """Networks of proxies in CIDR notation. Raises ValueError for anything else."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = tuple(ipaddress.ip_network(network.strip()) for network in networks)
        self._told = False  # the log has it

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, peer: str) -> bool:
        """Return whether the peer of the connection is one of them."""
        try:
            parsed = ipaddress.ip_address(peer)
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self._networks)

    def local_address(self) -> str:
        """Return a trusted address of this machine, or "": any local process can connect from it."""
        own = [*LOOPBACK, *(ipaddress.ip_network(address) for address in _interface_addresses())]
        trusted = (own_address for own_address in own for network in self._networks if _overlap(own_address, network))
        return next((str(own_address.network_address) for own_address in trusted), "")

    def client_address(self, peer: str, forwarded_for: str) -> str:
        """Return the client's address: the last one in `X-Forwarded-For` that is no trusted proxy, as any caller can
        begin the header. Returns "" if it is unknown: malformed, or hidden by an untrusted proxy on this machine."""
        if not self.trusts(peer):
            if not forwarded_for or not is_loopback(peer):
                return peer
            if not self._told:
                self._told = True
                log.warning("a proxy at %s is not among --trusted-proxies: the addresses of sign-ins are unknown", peer)
            return ""
        last = forwarded_for.rsplit(",", MAX_HOPS)[-MAX_HOPS:]
        for hop in reversed([_host(part.strip()) for part in last if part.strip()]):
            if not self.trusts(hop):
                return hop if _is_address(hop) else ""
        return peer


def _interface_addresses() -> list[str]:
    import psutil  # start-up: only if a proxy signs people in

    families = (socket.AF_INET, socket.AF_INET6)
    listed = (each for interface in psutil.net_if_addrs().values() for each in interface)
    return [each.address.partition("%")[0] for each in listed if each.family in families]


def _overlap(one: Network, other: Network) -> bool:
    if isinstance(one, ipaddress.IPv4Network) and isinstance(other, ipaddress.IPv4Network):
        return one.overlaps(other)
    if isinstance(one, ipaddress.IPv6Network) and isinstance(other, ipaddress.IPv6Network):
        return one.overlaps(other)
    return False


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _host(hop: str) -> str:
    """Return an address without the port that some proxies add: `192.0.2.1:5678`, `[2001:db8::1]:5678`."""
    match = PORTED.fullmatch(hop)
    return hop if match is None else match[1] or match[2]


class TrustedHeader(msgspec.Struct, frozen=True):
    """The people an authenticating proxy names in a header (lower case). With a `secret`, the proxy must prove itself:
    others may share its address."""

    header: str
    proxies: TrustedProxies
    allowlist: UserAllowlist
    secret: str = ""

    def __repr__(self) -> str:  # without the secret
        return f"TrustedHeader({self.header!r}, {self.proxies!r}, {self.allowlist!r})"

    @property
    def names(self) -> tuple[bytes, bytes]:
        """The headers that sign people in: each may come once."""
        return self.header.encode(), PROOF_HEADER.encode()

    def read_person(self, headers: Mapping[bytes, bytes], peer: str) -> Person | None:
        """Return the person the proxy names, or None. Raises SignInError if another peer sends the header."""
        value = headers.get(self.header.encode())
        if value is None:
            return None
        if not self.proxies.trusts(peer):
            raise SignInError(
                "the sign-in header did not come from a configured proxy: open this page through the proxy"
            )
        if self.secret and not hmac.compare_digest(headers.get(PROOF_HEADER.encode(), b""), self.secret.encode()):
            raise SignInError(
                "the sign-in header came without the proxy's secret: the operator must configure the proxy to send it"
            )
        try:
            name = value.decode().strip()
        except UnicodeDecodeError:
            raise SignInError("the sign-in header is not valid UTF-8") from None
        if not name:
            return None
        if len(name) > MAX_NAME or not name.isprintable():
            raise SignInError("the sign-in header contains no name")
        person = Person(HEADER_ISSUER, name, name, name if "@" in name else None)
        if not self.permits(person):
            raise SignInError(
                "you are signed in, but your account may not use this server: ask its operator for access"
            )
        return person

    def permits(self, person: Person) -> bool:
        """Return whether a person the proxy names may sign in."""
        return self.allowlist.permits(HEADER.name, person.subject, person.email)
