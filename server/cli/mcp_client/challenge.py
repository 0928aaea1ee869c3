"""Read the challenges of a response with status 401 or 403 (RFC 9110 section 11.6.1)."""

import re

MAX_CHALLENGE = 4_096  # characters that are read
BEARER = "bearer"
WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]"
VALUE = r'"((?:[^"\\]|\\.)*+)"|([^\s",=][^\s",]*+)'  # without quotes real servers write URLs, too
PART = re.compile(rf"(?<!{WORD})({WORD}++)(?:\s*+=\s*+(?:{VALUE})|(?!\s*+=))")
ESCAPED = re.compile(r"\\(.)")


def parse_challenge(header: str) -> dict[str, str]:
    """Return the parameters of the challenge for a bearer token in WWW-Authenticate, or else those of the first one."""
    challenges: dict[str, dict[str, str]] = {}
    scheme = ""
    for part in PART.finditer(header[:MAX_CHALLENGE]):
        name, quoted, plain = part.groups()
        if quoted is None and plain is None:
            scheme = name.lower()
        else:
            value = plain or ESCAPED.sub(r"\1", quoted or "")
            challenges.setdefault(scheme, {}).setdefault(name.lower(), value)
    return challenges.get(BEARER) or next(iter(challenges.values()), {})
