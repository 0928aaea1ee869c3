"""Bring the spellings of a URI that mean the same to one form, so that URIs can be compared.

Characters that a URI can't hold are percent-encoded (RFC 3987 section 3.1). Percent-encoding and scheme are normalised
(RFC 3986 section 6.2.2), host and port where the scheme says what they are (6.2.3, RFC 8089). Elsewhere the part after
// is a name, such as a skill's, in which case counts. Dot segments stay: a URI with them is refused (uri_templates.py).
"""

import re
from functools import cache, lru_cache
from itertools import product
from string import hexdigits
from urllib.parse import quote

MAX_URI = 8 * 1024  # characters: the usual limit of HTTP servers
MAX_CACHED_URI = 512  # characters of a URI of usual length; a batch may hold hundreds of URIs

RESERVED = ":/?#[]@!$&'()*+,;="  # RFC 3986 section 2.2
PLAIN = r"[A-Za-z0-9\-._~]"  # section 2.3: never needs percent-encoding
ANY = rf"[{re.escape(RESERVED)}A-Za-z0-9\-._~]"
TRIPLET = r"%[0-9A-Fa-f]{2}"
PORTS = {"http": ":80", "ws": ":80", "https": ":443", "wss": ":443", "ftp": ":21", "file": ""}  # schemes with hosts

# The possessive *+ gives nothing back: these can't backtrack.
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*+:")
HOST_ALONE = re.compile(r"(?:https?|wss?|ftp)://[^/?#]++")
LEGAL = re.compile(rf"(?:{ANY}++|{TRIPLET})*+")


def check_uri(uri: str) -> None:
    """Raise ValueError for a text that is no URI with a scheme (RFC 3986), or is too long."""
    if len(uri) > MAX_URI:
        raise ValueError(f"the uri is longer than {MAX_URI} characters")
    if not SCHEME.match(uri):
        raise ValueError("the uri has no scheme")
    legal = LEGAL.match(uri)
    if legal and legal.end() < len(uri):
        raise ValueError(f"the uri holds {uri[legal.end()]!a} at {legal.end()}, which must be percent-encoded")


def parse_scheme(uri: str) -> str:
    """Return the URI's scheme in lower case, or "" if it has none."""
    found = SCHEME.match(uri)
    return "" if found is None else found[0][:-1].lower()


def canonicalise(uri: str) -> str | None:
    """Return the one form of all URIs that mean the same, or None if it is no URI."""
    return _canonicalise_short(uri) if len(uri) <= MAX_CACHED_URI else _canonicalise_long(uri)


def normalise_encoding(uri: str) -> str:
    """Normalise percent-encoding (RFC 3986 section 6.2.2): upper case, and only where needed."""
    if "%" not in uri:
        return uri
    first, *others = uri.split("%")
    triplets = _normal_triplets()
    return first + "".join([triplets.get(each[:2], f"%{each[:2]}") + each[2:] for each in others])


def normalise_beginning(uri: str) -> str:
    """Normalise scheme, host and port of a URI, or of the literal beginning of a template."""
    scheme, colon, rest = uri.partition(":")
    scheme = scheme.lower()
    if scheme in PORTS and rest.startswith("//"):
        cut = min((at for at in map(rest.find, "/?#", (2, 2, 2)) if at > 0), default=len(rest))
        user, at, host = rest[2:cut].rpartition("@")
        host = host.lower().removesuffix(PORTS[scheme]).removesuffix(":")
        host = "" if scheme == "file" and host == "localhost" else host
        rest = f"//{user}{at}{host}{rest[cut:]}"
    elif scheme == "file" and rest.startswith("/"):
        rest = f"//{rest}"
    return f"{scheme}{colon}{rest}"


def _canonicalise(uri: str) -> str | None:
    if len(uri) > MAX_URI:
        return None
    try:
        encoded = quote(uri, safe=f"{RESERVED}%")
        check_uri(encoded)
    except ValueError:  # a lone surrogate's error is one
        return None
    normal = normalise_beginning(normalise_encoding(encoded))
    return f"{normal}/" if HOST_ALONE.fullmatch(normal) else normal


_canonicalise_short = lru_cache(1024)(_canonicalise)
_canonicalise_long = lru_cache(32)(_canonicalise)  # twice as many of the longest as one request may name


@cache
def _normal_triplets() -> dict[str, str]:
    """Return the normal form of each pair of digits after "%"."""
    return {
        digits: chr(int(digits, 16)) if re.match(PLAIN, chr(int(digits, 16))) else f"%{digits.upper()}"
        for digits in map("".join, product(hexdigits, repeat=2))
    }
