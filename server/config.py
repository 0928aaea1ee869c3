"""Every option, declared once: its flag, environment variable, key in the config file and help come from here.

Flags beat the environment, the environment beats the file. The only module that reads the environment.
"""

import argparse
import ipaddress
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import SplitResult, urlsplit

from toolgate.server.errors import UsageError

CLASSIC_FILE = "scorpiox-env.txt"
CLASSIC_LIMIT = 64 * 1024  # bytes; it holds a few lines
REMOTE_ENVIRONMENT = frozenset(("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM"))
OFF = frozenset(("0", "false", "no", "off"))
ON = frozenset(("1", "true", "yes", "on"))


@dataclass(frozen=True, slots=True)
class Option:
    """`kind` turns a string into the value and raises ValueError; `many` collects; `later` says what is missing yet."""

    name: str
    help: str
    kind: Callable[[str], Any] = str
    default: Any = None
    short: str | None = None
    metavar: str | None = None
    many: bool = False
    later: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return "TOOLGATE_" + self.key.upper()

    @property
    def is_switch(self) -> bool:
        return self.kind is truth


def truth(word: str) -> bool:
    """ "1", "true", "yes", "on" and their opposites."""
    if word.lower() in ON:
        return True
    if word.lower() in OFF:
        return False
    raise ValueError("must be true or false")


def seconds(word: str) -> float:
    value = float(word)
    if not 0 < value <= 3600:
        raise ValueError("must be seconds, more than 0 and at most 3600")
    return value


def port_number(word: str) -> int:
    """0 is a free port, chosen by the system and told in the log."""
    value = int(word)
    if not 0 <= value <= 65_535:
        raise ValueError("must be 0 to 65535")
    return value


def folder(word: str) -> Path:
    if not word or "\0" in word:
        raise ValueError("must name a folder")
    try:
        return Path(word).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # no such home, no current directory
        raise ValueError(str(error)) from None


def server_name(word: str) -> str:
    if not word.strip() or len(word) > 64 or not word.isprintable():
        raise ValueError("must be 1 to 64 printable characters")
    return word


def is_loopback(host: str) -> bool:
    """Whether `host` is a name or an address of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def public_address(word: str) -> str:
    """The URL as it is told from then on: no slash at the end, the host in lower case, no port that goes without
    saying."""
    parts = _url(word)
    port = None if parts.port == {"https": 443, "http": 80}[parts.scheme] else parts.port
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}"


def authority(word: str) -> str:
    """Who says who may call: "oauth", "none", or an issuer's URL, letter for letter as it calls itself."""
    if word not in ("oauth", "none"):
        if "://" not in word:
            raise ValueError("must be oauth, none or the URL of an issuer")
        _url(word)
    return word


def registration(word: str) -> str:
    """How clients become known: all ways, all but by themselves, or by the operator alone."""
    if word not in ("open", "metadata", "closed"):
        raise ValueError("must be open, metadata or closed")
    return word


def sandbox_level(word: str) -> str:
    if word in ("bwrap", "uid"):
        raise ValueError(f"{word} is not available in this version")
    if word not in ("auto", "none"):
        raise ValueError("must be auto or none")
    return word


def _url(word: str) -> SplitResult:
    """A URL that others are told to trust: https, or http on this machine."""
    refusal = ValueError("must be an https URL with a host, and nothing behind the path; http on loopback only")
    if not word.isascii() or not word.isprintable() or any(character in word for character in ' "<>\\^`{|}'):
        raise refusal
    parts = urlsplit(word)
    try:
        usable = parts.hostname and parts.port != 0 and "@" not in parts.netloc and "?" not in word and "#" not in word
    except ValueError:  # a port that is none
        raise refusal from None
    if not usable or parts.scheme not in ("https", "http") or "/../" in parts.path + "/" or "//" in parts.path:
        raise refusal
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise refusal
    return parts


OPTIONS = (
    Option("sse", "serve HTTP+SSE (2024-11-05) at /sse", truth, False, short="-s"),
    Option("http", "serve Streamable HTTP at /mcp; with -s too, both on one port", truth, False, short="-t"),
    Option("host", "where HTTP listens (default 127.0.0.1)", str, "127.0.0.1", metavar="HOST"),
    Option("port", "where HTTP listens (default 8080)", port_number, 8080, metavar="PORT"),
    Option("name", "server name told to clients", server_name, "toolgate", short="-n", metavar="NAME"),
    Option("plugins", "plugin folder, searched recursively; repeatable", folder, (), "-p", "DIR", many=True),
    Option("isolate-plugins", "run each plugin in its own process", truth, False),
    Option("logs", "also write rotating log files here", folder, None, "-l", "DIR"),
    Option("verbose", "debug log", truth, False, short="-v"),
    Option("state", "keys, database, spools (default: the XDG data folder)", folder, None, metavar="DIR"),
    Option("workspace", "where tools work (default: the current directory)", folder, None, metavar="DIR"),
    Option("skills", "more skill folders, first; repeatable", folder, (), metavar="DIR", many=True),
    Option("hold", "longest a call is held, in seconds (default 45)", seconds, 45.0, metavar="SECONDS"),
    Option(
        "grace", "what running calls get at shutdown (default 1.5 over stdio, 5 over HTTP)", seconds, metavar="SECONDS"
    ),
    Option(
        "auth",
        "who may call over HTTP; oauth: who signs in here (default); an issuer's URL: who signs in there; none: anyone "
        "on this machine",
        authority,
        "oauth",
        metavar="WHO",
    ),
    Option(
        "public-url",
        "the URL told to clients (default: http://HOST:PORT on loopback)",
        public_address,
        metavar="URL",
    ),
    Option(
        "login",
        "how people sign in: password (default), oidc=ISSUER, github, header=NAME; repeatable",
        str,
        (),
        None,
        "WAY",
        True,
    ),
    Option(
        "allow-users",
        "whom oidc, github and header let in: an e-mail address, @domain, a subject, or * for all; repeatable",
        str,
        (),
        None,
        "WHO",
        True,
    ),
    Option("oidc-client", "file with our client id at the OIDC provider and, below it, the secret", folder, None),
    Option("github-client", "file with our client id at GitHub and, below it, the secret", folder, None),
    Option(
        "trusted-proxies", "addresses and networks of proxies to be believed; repeatable", str, (), None, "NET", True
    ),
    Option("clients", "file of OAuth clients known beforehand (TOML or JSON)", folder, None, metavar="FILE"),
    Option(
        "registration",
        "which other clients are known: open (default), metadata (those with a document), closed (none)",
        registration,
        "open",
        metavar="HOW",
    ),
    Option(
        "client-hosts",
        "hosts whose clients' documents are taken (default: all); repeatable",
        str,
        (),
        None,
        "HOST",
        True,
    ),
    Option("allowed-hosts", "more Host names to serve; repeatable", str, (), metavar="HOST", many=True),
    Option("allowed-origins", "more Origins of web pages that may call; repeatable", str, (), None, "ORIGIN", True),
    Option(
        "allow-private",
        "host, address or network the web tools may reach although it is private; repeatable",
        str,
        (),
        metavar="HOST",
        many=True,
    ),
    Option(
        "engines",
        "search engines to ask (default: all without a key); repeatable",
        str,
        (),
        None,
        "NAME",
        True,
    ),
    Option("search-deadline", "longest a search takes, in seconds (default 6)", seconds, 6.0, metavar="SECONDS"),
    Option("browser", "the browser ReadDocs drives", later=True),
    Option(
        "sandbox",
        "isolation of commands; in this version there is none yet, and off loopback that must be said: none",
        sandbox_level,
        "auto",
        metavar="LEVEL",
    ),
    Option("accept-unsandboxed", "the second confirmation that --sandbox none needs off loopback", truth, False),
    Option("sandbox-network", "network of sandboxed commands", later=True),
    Option("approve", "tools a person must approve", later=True),
    Option("database", "PostgreSQL for several replicas", later=True),
    Option("redis", "Redis for several replicas", later=True),
)


@dataclass(frozen=True, slots=True)
class Classic:
    """What the classic `scorpiox-env.txt` says: which tools are hidden, and whether progress is sent. `unknown` are the
    keys that mean nothing here."""

    hidden: tuple[str, ...] = ()
    streaming: bool = True
    unknown: tuple[str, ...] = ()


class Config:
    """The value of every option, as attributes: `config.allow_private`."""

    def __init__(self, values: Mapping[str, Any], classic: Classic, environment: Mapping[str, str]) -> None:
        self.classic = classic
        self.environment = environment
        self._given = dict(values)
        defaults = {option.key: option.default for option in OPTIONS}
        defaults["state"] = _xdg(environment, "XDG_DATA_HOME", ".local/share") / "toolgate"
        defaults["grace"] = 5.0 if values.get("http") or values.get("sse") else 1.5
        for key, value in {**defaults, **values}.items():
            setattr(self, key, value)

    def __getattr__(self, name: str) -> Any:  # for the type checkers: the attributes come from OPTIONS
        raise AttributeError(name)

    @property
    def remote(self) -> bool:
        """Whether HTTP is served: then callers are not who started the server."""
        return bool(self.http or self.sse)

    @property
    def coloured(self) -> bool:
        """Whether a terminal may be told things in colour (no-color.org)."""
        return not self.environment.get("NO_COLOR") and self.environment.get("TERM") != "dumb"

    def words(self) -> list[str]:
        """The options that were given, from wherever, as flags with absolute paths: a server started with them is the
        same server from any folder."""
        words: list[str] = []
        for option in OPTIONS:
            value = self._given.get(option.key)
            if option.is_switch:
                words += [option.flag] if value else []
            elif value is not None:
                parts = value if option.many else (value,)
                words += [word for part in parts for word in (option.flag, _spelled(part))]
        return words

    @property
    def children_environment(self) -> dict[str, str]:
        """What commands get: over stdio the server's environment less what is ours, over HTTP a short list."""
        if self.remote:
            return {name: value for name, value in self.environment.items() if name in REMOTE_ENVIRONMENT}
        return {name: value for name, value in self.environment.items() if not name.startswith("TOOLGATE_")}


class Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse would exit by itself."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the flags. What is not here yet is hidden, but known, so that its refusal can say so."""
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="config file (TOML)")
    for option in OPTIONS:
        names = [option.short, option.flag] if option.short else [option.flag]
        told: dict[str, Any] = {
            "dest": option.key,
            "default": argparse.SUPPRESS,
            "help": argparse.SUPPRESS if option.later else option.help,
        }
        if option.is_switch:
            parser.add_argument(*names, action="store_const", const="true", **told)
        elif option.many:
            parser.add_argument(*names, action="append", metavar=option.metavar, **told)
        else:
            parser.add_argument(*names, metavar=option.metavar, **told)


def load(flags: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Config:
    """Put flags, environment and file together. Raises UsageError, which names the option at fault."""
    environment = dict(os.environ) if environment is None else environment
    given = _from_file(flags.get("config") or environment.get("TOOLGATE_CONFIG"), environment)
    for option in OPTIONS:
        if environment.get(option.variable):
            raw: Any = environment[option.variable]
            given[option.key] = (option.variable, raw.split(":") if option.many else raw)
        if option.key in flags:
            given[option.key] = (option.flag, flags[option.key])
    values = {}
    for option in OPTIONS:
        if option.key in given:
            source, raw = given[option.key]
            value = _convert(option, source, raw)
            if option.later and value is not False:
                raise UsageError(f"{source} is not available in this version")
            values[option.key] = value
    return Config(values, _classic(Path(CLASSIC_FILE)), environment)


def _convert(option: Option, source: str, raw: Any) -> Any:
    parts = raw if option.many else [raw]
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise UsageError(f"{source} must be {'a list of strings' if option.many else 'one value'}")
    try:
        converted = [option.kind(part) for part in parts]
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
    return tuple(converted) if option.many else converted[0]


def _from_file(named: str | None, environment: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    """The config file: the named one, or the user's own. One in the current directory is read only when named."""
    path = Path(named) if named else _xdg(environment, "XDG_CONFIG_HOME", ".config") / "toolgate" / "config.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if named:
            raise UsageError(f"--config: there is no file {path}") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config: {path} can't be read: {error}") from None
    import tomllib  # start-up: most have no config file

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--config: {path}: {error}") from None
    known = {option.key: option for option in OPTIONS} | {option.name: option for option in OPTIONS}
    given: dict[str, tuple[str, Any]] = {}
    for name, value in table.items():
        if name not in known:
            raise UsageError(f"--config: {path}: there is no option {name!r}")
        given[known[name].key] = (f"{name} in {path}", _as_word(value))
    return given


def _spelled(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _as_word(value: Any) -> Any:
    """A TOML value as the word the command line would have: one conversion serves both."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    return value


def _classic(path: Path) -> Classic:
    """`KEY=VALUE` lines of the original server: TOOLS, TOOL_<NAME>, STREAMING. They can only take away."""
    try:  # a cloned repository may hold a link to anything, or a pipe that waits for ever
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return Classic()
    with open(descriptor, encoding="utf-8-sig", errors="replace") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return Classic()
        lines = file.read(CLASSIC_LIMIT).splitlines()
    hidden: list[str] = []
    unknown: list[str] = []
    streaming = True
    for line in lines:
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or name.startswith("#"):
            continue
        is_off = value.strip("\"'").lower() in OFF
        if name == "TOOLS":
            hidden += ["*"] if is_off else []
        elif name == "STREAMING":
            streaming = not is_off
        elif name.startswith("TOOL_"):
            hidden += [name.removeprefix("TOOL_")] if is_off else []
        else:
            unknown.append(name[:64])
    return Classic(tuple(hidden), streaming, tuple(unknown))


def _xdg(environment: Mapping[str, str], variable: str, default: str) -> Path:
    """The XDG base directory; relative values are invalid and ignored (XDG Base Directory Specification)."""
    given = environment.get(variable, "")
    return Path(given) if given.startswith("/") else Path(environment.get("HOME") or "/") / default
