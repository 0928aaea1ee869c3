"""Parse the words of options. Each function raises ValueError, which says what the word must be."""

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from toolgate.server.base.principals.name_patterns import parse_pattern
from toolgate.server.base.principals.sign_in_methods import HEADER, parse_method
from toolgate.server.base.text import describe_os_error, suggest
from toolgate.server.config.transports import PATHS
from toolgate.tools.api.regular_file import read_regular_text
from toolgate.tools.workspace import limits

T = TypeVar("T")

MAX_URL_FILE = 64 * 1024  # bytes; it holds one line
FALSE_WORDS = frozenset(("0", "false", "no", "off"))
TRUE_WORDS = frozenset(("1", "true", "yes", "on"))

# patterns are compiled when they are needed: start-up
HOST = r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"
SERVED_HOST = r"((?P<address>\[[0-9A-Fa-f:.]+\])|(?P<name>[^:]+))(:[0-9]{1,5})?"
ORIGIN = r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@*]+"
AMBIGUOUS_PATH = r"(?i)//|/\.{1,2}(/|$)|%2e|%2f|%5c"  # some servers read it as another path
MAX_CLIENT_NAME = 100  # characters; those of known clients have 20
HEADER_NAME = r"[A-Za-z0-9][A-Za-z0-9-]{0,99}"


def parse_bool(word: str) -> bool:
    """Return whether the word means on: "1", "true", "yes", "on", or their opposites."""
    if word.lower() in TRUE_WORDS:
        return True
    if word.lower() in FALSE_WORDS:
        return False
    raise ValueError(f"must be true or false, not {word!r}")


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser that accepts one of these words."""
    text = f"must be {', '.join(words[:-1])} or {words[-1]}"

    def parse_word(word: str) -> str:
        if word not in words:
            raise ValueError(f"{text}, not {word!r}{suggest(word, words)}")
        return word

    return parse_word


def parse_seconds(word: str) -> float:
    try:
        value = float(limits.parse_duration(word)) if word[-1:] in ("s", "m", "h") else float(word)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        raise ValueError(f"must be seconds, more than 0 and at most 3600, or a time such as 90s or 5m, not {word!r}")
    return value


def parse_seconds_or_zero(word: str) -> float:
    return 0.0 if word == "0" else parse_seconds(word)


def parse_long_time(word: str) -> int:
    """Return seconds, at least an hour: less is a typing mistake that would cost people their files."""
    value = limits.parse_duration(word)
    if value < 3600:
        raise ValueError(f"must be at least one hour, such as 12h or 90d, not {word!r}")
    return value


def above_zero(parse: Callable[[str], int]) -> Callable[[str], int]:
    """Return `parse` with zero refused."""

    def parse_positive(word: str) -> int:
        value = parse(word)
        if value < 1:
            raise ValueError(f"must be at least 1, not {word!r}")
        return value

    return parse_positive


def parse_port(word: str) -> int:
    """Return the port. With 0 the system chooses one, which the log names."""
    if not re.fullmatch("[0-9]{1,5}", word) or int(word) > 65_535:
        raise ValueError(f"must be a number from 0 to 65535, not {word!r}")
    return int(word)


def parse_path(word: str) -> Path:
    if not word or "\0" in word:
        raise ValueError("must be a path")
    try:
        return Path(word).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # no home or no current directory
        raise ValueError(str(error)) from None


def parse_secret_url(word: str, parse: Callable[[str, Path | None], T]) -> T:
    """Return what `parse(url, file)` makes of a URL, from a file for file:PATH. No error repeats the URL."""
    scheme, _, path = word.partition(":")
    if scheme != "file":
        return parse(word, None)
    file = parse_path(path)
    try:
        found = read_regular_text(file, MAX_URL_FILE).strip()
    except OSError as error:
        raise ValueError(f"can't read {describe_os_error(error)}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8 text") from None
    try:
        return parse(found, file)
    except ValueError as error:
        raise ValueError(f"{file}: the URL {error}") from None


def parse_server_name(word: str) -> str:
    if not word.strip() or len(word) > 64 or not word.isprintable():
        raise ValueError("must be 1 to 64 printable characters")
    return word


def is_loopback(host: str) -> bool:
    """Return whether `host` is a name or an address of this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse_name_patterns(word: str) -> str:
    """Return the word, patterns of names with commas between them."""
    for pattern in word.split(","):
        parse_pattern(pattern.strip())
    return word


def parse_client_name(word: str) -> str:
    if not (word.isprintable() and 0 < len(word) <= MAX_CLIENT_NAME):
        raise ValueError(f"must be the name that a client gives itself, of at most {MAX_CLIENT_NAME} characters")
    return word


def parse_public_url(word: str) -> str:
    """Return the URL as clients see it: without a final slash or default port, the host in lower case."""
    parts = _parse_trusted_url(word)
    path = parts.path.rstrip("/")
    for own in filter(path.endswith, PATHS):
        raise ValueError(f"must not end in {own}: the server adds it in the URLs that it tells clients")
    port = None if parts.port == {"https": 443, "http": 80}[parts.scheme] else parts.port
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path}"


def parse_auth(word: str) -> str:
    """Return "oauth", "none", or an issuer's URL."""
    if word in ("oauth", "none"):
        return word
    if "://" not in word:
        raise ValueError(f"must be oauth, none or the URL of an issuer, not {word!r}{suggest(word, ('oauth', 'none'))}")
    return parse_issuer(word)


def parse_openai_challenge(word: str) -> str:
    """Return the token that proves a domain."""
    if not re.fullmatch(r"[!-~]{1,500}", word):
        raise ValueError("must be one word of ASCII, as OpenAI gave it to you")
    return word


def parse_login(word: str) -> str:
    """Return how people sign in."""
    method, value = parse_method(word)
    if method.value == "ISSUER":
        if "://" not in value and re.fullmatch(r"[A-Za-z0-9.-]+\.[A-Za-z]{2,}(?::[0-9]+)?(?:/\S*)?", value):
            raise ValueError(f"the issuer is a URL: {method.name}=https://{value}")
        try:
            return f"{method.name}={parse_issuer(value)}"
        except ValueError:
            raise ValueError(
                f"the issuer must be an https URL, such as {method.name}=https://accounts.google.com, not {value!r}"
            ) from None
    if method is HEADER and not re.fullmatch(HEADER_NAME, value):
        raise ValueError(f"{word!r}: {value!r} is not the name of a header")
    return word


def parse_network(word: str) -> str:
    """Return an address, or a network such as 10.0.0.0/8."""
    try:
        ipaddress.ip_network(word.strip())
    except ValueError:
        raise ValueError(
            f"must be an address, or a network such as 10.0.0.0/8 (zeros follow the prefix), not {word!r}"
        ) from None
    return word


def parse_issuer(word: str) -> str:
    """Return an issuer's URL as it names itself, with scheme and host in lower case."""
    _parse_trusted_url(word)
    scheme, _, rest = word.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}://{host.lower()}{slash}{path}"


def parse_host(word: str) -> str:
    """Return a host name without a port."""
    if not re.fullmatch(HOST, word):
        raise ValueError(f"must be a host name such as example.com, without scheme and port, not {word!r}")
    return word


def parse_listen_host(word: str) -> str:
    """Return an address or a name to listen on, without the brackets that URLs have around an IPv6 address."""
    address = word[1:-1] if word[:1] + word[-1:] == "[]" else word
    try:
        ipaddress.ip_address(address)
    except ValueError:
        is_address = word.rpartition(".")[2].isdigit()  # no name ends in a number (WHATWG URL, "ends in a number")
        if is_address or not re.fullmatch(HOST, word):
            raise ValueError(f"must be an address such as 127.0.0.1 or 0.0.0.0, or a name, not {word!r}") from None
    return address


def parse_served_host(word: str) -> str:
    """Return a value of the Host header: a name or an address, with or without a port."""
    found = re.fullmatch(SERVED_HOST, word)
    if found is None or not (found["address"] or re.fullmatch(HOST, found["name"])):
        raise ValueError(f"must be a host such as tools.example.com, with or without a port, not {word!r}")
    return word


def parse_origin(word: str) -> str:
    """Return the origin of a web page."""
    if not re.fullmatch(ORIGIN, word):
        raise ValueError(f"must be an origin such as https://app.example.com, without a path, not {word!r}")
    return word


def parse_web_url(word: str) -> str:
    """Return an http or https URL; --allow-private limits its address."""
    try:
        parts = urlsplit(word)
        is_url = parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.fragment
    except ValueError:  # a bracket that is not closed
        is_url = False
    if not is_url:
        raise ValueError("must be an http or https URL without ? and #")
    return word


def parse_contact(word: str) -> str:
    """Return a URL or an e-mail address that is safe in an HTTP header."""
    if not re.fullmatch(r"[A-Za-z0-9.@:/_~+%=-]{3,200}", word):
        raise ValueError("must be a URL or an e-mail address")
    return word


def parse_uid_range(word: str) -> range:
    """Return the user ids FIRST-LAST."""
    match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", word)
    if match is None or not 1000 <= int(match[1]) + 1 < int(match[2]) < 2**31:
        raise ValueError("must be FIRST-LAST, such as 40000-49999: at least three user ids, none below 1000")
    return range(int(match[1]), int(match[2]) + 1)


def _parse_trusted_url(word: str) -> SplitResult:
    """Return the parts of a trusted URL: https, or http on this machine."""
    refusal = ValueError(
        "must be an https URL such as https://tools.example.com, without ? and #; http only for this machine"
    )
    if not word.isascii() or not word.isprintable() or any(character in word for character in ' "<>\\^`{|}'):
        raise refusal
    try:
        parts = urlsplit(word)
        usable = parts.hostname and parts.port != 0 and "@" not in parts.netloc and "?" not in word and "#" not in word
    except ValueError:  # an invalid port, or a bracket that is not closed
        raise refusal from None
    if not usable or parts.scheme not in ("https", "http") or re.search(AMBIGUOUS_PATH, parts.path):
        raise refusal
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise refusal
    return parts
