"""Whose tries count together: see blocks.py for what limits strangers."""

import ipaddress


def household(address: str) -> str:
    """What one caller has all of: an IPv4 address, or the 64 bits in front of an IPv6 one."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((int(parsed), 64), strict=False))
