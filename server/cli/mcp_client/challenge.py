"""Read the challenge of a response with status 401."""

import re

MAX_CHALLENGE = 4_096  # characters that are read: the pattern takes the square of them
PARAMETER = re.compile(r'([A-Za-z_]+)\s*=\s*"([^"]*)"')


def parse_challenge(header: str) -> dict[str, str]:
    """Return the quoted parameters of WWW-Authenticate, as in `name="value"` (RFC 9110 section 11.6.1)."""
    parameters = header[:MAX_CHALLENGE].partition(" ")[2]
    return {name.lower(): value for name, value in PARAMETER.findall(parameters)}
