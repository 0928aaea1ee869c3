"""Every option, declared once: its flag, environment variable, key in the config file and help come from here. What a
word must look like to be its value is here too. Reads nothing: config.py does.
"""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from toolgate.server import rules
from toolgate.tools import limits

OFF = frozenset(("0", "false", "no", "off"))
ON = frozenset(("1", "true", "yes", "on"))

# What of a list in the environment has colons of its own: a URL, [an address], an IPv6 network, a host with its port
URL = r"(?:[A-Za-z0-9+.-]+=)?[A-Za-z][A-Za-z0-9+.-]*://(?:\[[^\]]*\]|[^/:]*)(?::[0-9]{1,5}(?![^/:]))?(?:/[^:]*)?"
BRACKETED = r"\[[^\]]*\](?::[0-9]+)?"
IPV6 = r"(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?:/[0-9]+)?"
PORTED = r"[^:/]+:[0-9]{1,5}"
HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"
)
ODD_PATH = re.compile(r"//|/\.{1,2}(/|$)|%2e|%2f|%5c", re.IGNORECASE)  # which some take for another path
HEADER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}")


@dataclass(frozen=True, slots=True)
class Option:
    """`kind` turns a string into the value and raises ValueError; `many` collects; `later` says what is missing yet;
    `remote` what is about HTTP alone; `joined` is the pattern of more items that have a colon; `split` takes a list in
    the environment apart, where that goes another way."""

    name: str
    help: str
    kind: Callable[[str], Any] = str
    default: Any = None
    short: str | None = None
    metavar: str | None = None
    many: bool = False
    later: bool = False
    remote: bool = False
    joined: str = r"(?!)"
    split: Callable[[str], list[str]] | None = None

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

    def pieces(self, word: str) -> list[str]:
        """The items of a list in the environment. ":" separates folders, as in PATH. For the rest, commas and white
        space do; where there are none, ":" does, but not within a URL, an IPv6 address or a host with its port."""
        if self.split is not None:
            return self.split(word)
        if self.kind is folder:
            return word.split(":")
        if re.search(r"[,\s]", word):
            return [piece for piece in re.split(r"[,\s]+", word) if piece]
        item = rf"(?:^|:)({self.joined}|{URL}|{BRACKETED}|{IPV6}|{PORTED}|[^:]*)(?=:|$)"
        return [piece for piece in re.findall(item, word) if piece]


def truth(word: str) -> bool:
    """ "1", "true", "yes", "on" and their opposites."""
    if word.lower() in ON:
        return True
    if word.lower() in OFF:
        return False
    raise ValueError("must be true or false")


def seconds(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        raise ValueError("must be seconds, more than 0 and at most 3600")
    return value


def fate(word: str) -> str:
    """What becomes of a workspace that nobody uses any more."""
    if word not in ("keep", "archive", "delete"):
        raise ValueError("must be keep, archive or delete")
    return word


def long_time(word: str) -> int:
    """Seconds, an hour at least: less is a slip, and costs somebody their files."""
    value = limits.duration(word)
    if value < 3600:
        raise ValueError("must be a time such as 90d, an hour at least")
    return value


def port_number(word: str) -> int:
    """0 is a free port, chosen by the system and told in the log."""
    if not re.fullmatch("[0-9]{1,5}", word) or int(word) > 65_535:
        raise ValueError("must be 0 to 65535")
    return int(word)


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
    if parts.path.rstrip("/").endswith(("/mcp", "/sse")):
        last = parts.path.rstrip("/")[-4:]
        raise ValueError(f"is the server's own URL, without {last}: clients are told {word.rstrip('/')}")
    port = None if parts.port == {"https": 443, "http": 80}[parts.scheme] else parts.port
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}"


def authority(word: str) -> str:
    """Who says who may call: "oauth", "none", or an issuer's URL."""
    if word in ("oauth", "none"):
        return word
    if "://" not in word:
        raise ValueError("must be oauth, none or the URL of an issuer")
    return issuer_url(word)


def registration(word: str) -> str:
    """How clients become known: all ways, all but by themselves, or by the operator alone."""
    if word not in ("open", "metadata", "closed"):
        raise ValueError("must be open, metadata or closed")
    return word


def challenge_word(word: str) -> str:
    """What proves a domain to somebody who asks for it there."""
    if not re.fullmatch(r"[!-~]{1,500}", word):
        raise ValueError("must be one word of ASCII, as it was given to you")
    return word


def login_way(word: str) -> str:
    """How people sign in."""
    way, _, value = word.partition("=")
    if way == "oidc" and value:
        return f"{way}={issuer_url(value)}"
    if word not in ("password", "github") and (way != "header" or not HEADER_NAME.fullmatch(value)):
        raise ValueError(f"{word!r} is none of password, oidc=ISSUER, github, header=NAME")
    return word


def network(word: str) -> str:
    """An address, or a network such as 10.0.0.0/8."""
    ipaddress.ip_network(word.strip())
    return word


def issuer_url(word: str) -> str:
    """An issuer's URL, letter for letter as it calls itself; but all write scheme and host in lower case."""
    _url(word)
    scheme, _, rest = word.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}://{host.lower()}{slash}{path}"


def host_name(word: str) -> str:
    """The name of a host, without a port."""
    if not HOST.fullmatch(word):
        raise ValueError("must be the name of a host, as example.com: no URL and no port")
    return word


def web_address(word: str) -> str:
    """An http or https URL, wherever it leads: --allow-private decides that."""
    parts = urlsplit(word)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("must be an http or https URL without ? and #")
    return word


def contact(word: str) -> str:
    """Goes into a header, in parentheses."""
    if not re.fullmatch(r"[A-Za-z0-9.@:/_~+%=-]{3,200}", word):
        raise ValueError("must be a URL or an e-mail address")
    return word


def sandbox_level(word: str) -> str:
    if word not in ("auto", "bwrap", "uid", "none"):
        raise ValueError("must be auto, bwrap, uid or none")
    return word


def sandbox_network(word: str) -> str:
    if word not in ("none", "public", "all"):
        raise ValueError("must be none, public or all")
    return word


def uid_range(word: str) -> range:
    """FIRST-LAST, of user ids that nobody else has."""
    match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", word)
    if match is None or not 1000 <= int(match[1]) + 1 < int(match[2]) < 2**31:
        raise ValueError("must be FIRST-LAST, as 40000-49999: three user ids or more, none below 1000")
    return range(int(match[1]), int(match[2]) + 1)


def log_format(word: str) -> str:
    if word not in ("text", "json"):
        raise ValueError("must be text or json")
    return word


def audit_level(word: str) -> str:
    if word not in ("off", "on", "full"):
        raise ValueError("must be off, on or full")
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
    if not usable or parts.scheme not in ("https", "http") or ODD_PATH.search(parts.path):
        raise refusal
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise refusal
    return parts


OPTIONS = (
    Option("sse", "serve HTTP+SSE (2024-11-05) at /sse", truth, False, short="-s", remote=True),
    Option(
        "http", "serve Streamable HTTP at /mcp; with -s too, both on one port", truth, False, short="-t", remote=True
    ),
    Option("host", "where HTTP listens (default 127.0.0.1)", str, "127.0.0.1", metavar="HOST", remote=True),
    Option("port", "where HTTP listens (default 8080)", port_number, 8080, metavar="PORT", remote=True),
    Option("name", "server name told to clients", server_name, "toolgate", short="-n", metavar="NAME"),
    Option("plugins", "plugin folder, searched recursively; repeatable", folder, (), "-p", "DIR", many=True),
    Option("isolate-plugins", "run each plugin in its own process", truth, False),
    Option("logs", "also write rotating log files here", folder, None, "-l", "DIR"),
    Option("verbose", "debug log", truth, False, short="-v"),
    Option("log-format", "text (default), or json: an object a line", log_format, "text", metavar="FORMAT"),
    Option("state", "keys, database, spools (default: the XDG data folder)", folder, None, metavar="DIR"),
    Option(
        "workspace",
        "where tools work (default: over stdio the current directory, over HTTP a folder a person in the state)",
        folder,
        None,
        metavar="DIR",
    ),
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
        remote=True,
    ),
    Option(
        "public-url",
        "the URL told to clients, without /mcp (default: http://HOST:PORT on loopback; off loopback it is needed)",
        public_address,
        metavar="URL",
        remote=True,
    ),
    Option(
        "login",
        "how people sign in: password (default), oidc=ISSUER, github, header=NAME; repeatable",
        login_way,
        (),
        None,
        "WAY",
        True,
        remote=True,
    ),
    Option(
        "allow-users",
        "whom oidc, github and header let in, which all need it: an e-mail address, @domain, a subject, or * for all; "
        "repeatable",
        str,
        (),
        None,
        "WHO",
        True,
        joined=r"(?:github|oidc|header):[^:]+",
        remote=True,
    ),
    Option(
        "oidc-client",
        "file with our client id at the OIDC provider and, below it, the secret",
        folder,
        metavar="FILE",
        remote=True,
    ),
    Option(
        "github-client",
        "file with our client id at GitHub and, below it, the secret",
        folder,
        metavar="FILE",
        remote=True,
    ),
    Option(
        "trusted-proxies",
        "addresses and networks of proxies to be believed; repeatable",
        network,
        (),
        metavar="NET",
        many=True,
        remote=True,
    ),
    Option(
        "enterprise-issuers",
        "identity providers whose grants for their people (ID-JAG) are taken; repeatable",
        issuer_url,
        (),
        metavar="URL",
        many=True,
        remote=True,
    ),
    Option(
        "clients", "file of OAuth clients known beforehand (TOML or JSON)", folder, None, metavar="FILE", remote=True
    ),
    Option(
        "registration",
        "which other clients are known: open (default), metadata (those with a document), closed (none)",
        registration,
        "open",
        metavar="HOW",
        remote=True,
    ),
    Option(
        "client-hosts",
        "hosts whose clients' documents are taken, and those below them (default: all); repeatable",
        host_name,
        (),
        None,
        "HOST",
        True,
        remote=True,
    ),
    Option(
        "openai-challenge",
        "the word that proves to ChatGPT whose domain this is, told at /.well-known/openai-apps-challenge",
        challenge_word,
        metavar="WORD",
        remote=True,
    ),
    Option(
        "metrics-token",
        "file with the token that /metrics takes (default: STATE/keys/metrics, made at the start; none is needed where "
        "only this machine is served)",
        folder,
        metavar="FILE",
        remote=True,
    ),
    Option("allowed-hosts", "more Host names to serve; repeatable", str, (), metavar="HOST", many=True, remote=True),
    Option(
        "allowed-origins",
        "more Origins of web pages that may call; repeatable",
        str,
        (),
        None,
        "ORIGIN",
        True,
        remote=True,
    ),
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
        "search engines to ask, or NAME=URL to ask one elsewhere (default: eleven without a key, and those a key or an "
        "address is given for); repeatable",
        str,
        (),
        None,
        "NAME",
        True,
    ),
    Option("search-deadline", "longest a search takes, in seconds (default 6)", seconds, 6.0, metavar="SECONDS"),
    Option("searxng", "a SearXNG instance to ask too", web_address, None, metavar="URL"),
    Option(
        "search-keys",
        "file of lines ENGINE = KEY, for brave-api, tavily, exa, kagi and serper; or TOOLGATE_BRAVE_API_KEY and so on",
        folder,
        metavar="FILE",
    ),
    Option(
        "search-contact",
        "a URL or an address told to engines, for whoever wants us to stop",
        contact,
        "",
        metavar="WHO",
    ),
    Option(
        "browser",
        "Chromium, for ReadDocs: its path, or none (default: the one in PATH)",
        str,
        None,
        metavar="PATH",
    ),
    Option(
        "sandbox",
        "how commands are kept apart: bwrap, uid, none, or auto, the strongest there is (default: auto over HTTP, none "
        "over stdio)",
        sandbox_level,
        None,
        metavar="LEVEL",
    ),
    Option("accept-unsandboxed", "the second confirmation that --sandbox none needs off loopback", truth, False),
    Option(
        "limit",
        "what a principal may use, as NAME=VALUE: "
        + ", ".join(limits.ROWS)
        + ", calls:SCOPE; repeatable (default: docs/security.md)",
        limits.limit_word,
        (),
        None,
        "NAME=VALUE",
        True,
        joined=r"calls:[^=:]+(?::[^=:]+)*=[0-9]+",
    ),
    Option(
        "sandbox-network",
        "what sandboxed commands reach: none, public (no private addresses) or all (default: public over HTTP, all "
        "over stdio)",
        sandbox_network,
        None,
        metavar="WHAT",
    ),
    Option(
        "sandbox-paths",
        "further folder that sandboxed commands may read; repeatable",
        folder,
        (),
        metavar="DIR",
        many=True,
    ),
    Option(
        "sandbox-uids",
        "users that principals' commands run as, where the server is root (default 40000-49999)",
        uid_range,
        None,
        metavar="FIRST-LAST",
    ),
    Option(
        "idle-workspaces",
        "what becomes of a person's workspace without a call for --idle-after: keep (default), archive or delete",
        fate,
        "keep",
        metavar="WHAT",
        remote=True,
    ),
    Option("idle-after", "such as 12h or 90d (default 90d)", long_time, 90 * 86_400, metavar="TIME", remote=True),
    Option(
        "gone-workspaces",
        "the same for who could not sign in any more for --gone-after: keep, archive (default) or delete",
        fate,
        "archive",
        metavar="WHAT",
        remote=True,
    ),
    Option("gone-after", "such as 12h or 30d (default 30d)", long_time, 30 * 86_400, metavar="TIME", remote=True),
    Option(
        "approve",
        "calls that wait for a person's word, as WHAT, WHAT(COMMAND) or WHO=WHAT: a tool, scope:S or plugin:P; of "
        "commands it is advice, no boundary; repeatable",
        rules.rule_word,
        (),
        None,
        "RULE",
        True,
        split=rules.split,
    ),
    Option(
        "allow",
        "calls that --approve does not stop; repeatable",
        rules.rule_word,
        (),
        None,
        "RULE",
        True,
        split=rules.split,
    ),
    Option(
        "deny",
        "calls that are always refused, whatever --allow says; repeatable",
        rules.rule_word,
        (),
        None,
        "RULE",
        True,
        split=rules.split,
    ),
    Option(
        "audit",
        "record each call of a tool in STATE/audit: off, on (of arguments a digest), full (the arguments, what looks "
        "like a secret redacted) (default: on over HTTP and with a sandbox, else off)",
        audit_level,
        None,
        metavar="LEVEL",
    ),
    Option("database", "PostgreSQL for several replicas", later=True),
    Option("redis", "Redis for several replicas", later=True),
)
