"""Hold the URL of a PostgreSQL database, and keep its password out of texts."""

from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

SCHEMES = ("postgresql", "postgres")


class DatabaseUrl(msgspec.Struct, frozen=True):
    """The URL of a database, as libpq writes it, and its file, if it is from one. Its text has no password."""

    secret: str
    file: Path | None = None

    def __str__(self) -> str:
        parts = urlsplit(self.secret)
        return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"

    __repr__ = __str__

    def hide_password(self, text: str) -> str:
        """Return `text` without the password."""
        parts = urlsplit(self.secret)
        passwords = [parts.password or "", *parse_qs(parts.query).get("password", ())]
        for each in filter(None, (form for password in passwords for form in (password, unquote(password)))):
            text = text.replace(each, "***")
        return text


def parse_database_url(word: str, file: Path | None = None) -> DatabaseUrl:
    """Return the URL. Raises ValueError, which does not repeat the URL."""
    try:
        parts = urlsplit(word)  # its error may repeat the password
        is_url = parts.scheme in SCHEMES and parts.path.strip("/") and not parts.fragment and parts.port != 0
    except ValueError:  # also the port: a password with a / ends the host
        is_url = False
    if not is_url or not word.isprintable() or " " in word:
        raise ValueError(
            "must be postgresql://USER:PASSWORD@HOST/DATABASE, with %2F for / in the password, and so on (or a file "
            "with that: file:/PATH)"
        )
    return DatabaseUrl(word, file)
