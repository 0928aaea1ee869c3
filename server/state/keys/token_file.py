"""Read a token from the file that an option names, and create the one of `/metrics` if it is missing."""

import re
import secrets
from pathlib import Path

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import describe_os_error
from toolgate.server.state.keys import file as key_file
from toolgate.tools.api.regular_file import read_regular

TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,512}=*")  # RFC 6750 section 2.1; shorter ones could be guessed
MAX_FILE = 4_096  # bytes


def ensure_token(file: Path) -> str:
    """Return the token in `file`, made first if there is none. Raises UsageError."""
    try:
        key_file.create_file(file, secrets.token_urlsafe(32).encode() + b"\n")
    except OSError as error:
        raise UsageError(f"--state: can't write {describe_os_error(error)}") from None
    try:
        return read_token(file, "--state")
    except UsageError as error:
        raise UsageError(f"{error}; remove it, and a new one is made") from None


def read_token(file: Path, flag: str = "--metrics-token") -> str:
    """Return the token in `file`, which `flag` names. Raises UsageError."""
    try:
        found = read_regular(file, MAX_FILE, follow=True).decode().strip()
    except OSError as error:
        raise UsageError(f"{flag}: can't read {describe_os_error(error)}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{flag}: {file} is not UTF-8 text") from None
    if not TOKEN.fullmatch(found):
        raise UsageError(f"{flag}: {file} must hold 16 to 512 letters, digits and . _ ~ + / -, on one line")
    return found
