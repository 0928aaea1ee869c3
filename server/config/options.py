"""Every option, declared once: its flag, environment variable, key in the config file and help come from here. Reads
nothing: load.py does.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolgate.server.config.types import (
    one_of,
    parse_auth,
    parse_bool,
    parse_contact,
    parse_host,
    parse_issuer,
    parse_login,
    parse_long_time,
    parse_network,
    parse_openai_challenge,
    parse_path,
    parse_port,
    parse_public_url,
    parse_seconds,
    parse_server_name,
    parse_uid_range,
    parse_web_url,
)
from toolgate.server.policy import rules
from toolgate.tools.workspace import limits

# What of a list in the environment has colons of its own: a URL, [an address], an IPv6 network, a host with its port
URL = r"(?:[A-Za-z0-9+.-]+=)?[A-Za-z][A-Za-z0-9+.-]*://(?:\[[^\]]*\]|[^/:]*)(?::[0-9]{1,5}(?![^/:]))?(?:/[^:]*)?"
BRACKETED_IPV6 = r"\[[^\]]*\](?::[0-9]+)?"
IPV6 = r"(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?:/[0-9]+)?"
HOST_AND_PORT = r"[^:/]+:[0-9]{1,5}"


@dataclass(frozen=True, slots=True)
class Option:
    """`kind` turns a string into the value and raises ValueError; `many` collects; `later` says what is missing yet;
    `remote` what is about HTTP alone; `joined` is the pattern of more items that have a colon; `split` takes a list in
    the environment apart, where that goes another way."""

    name: str
    help: str
    parse: Callable[[str], Any] = str
    default: Any = None
    short: str | None = None
    metavar: str | None = None
    is_repeatable: bool = False
    is_planned: bool = False
    is_http_only: bool = False
    item_pattern: str = r"(?!)"
    splitter: Callable[[str], list[str]] | None = None

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
        return self.parse is parse_bool

    def split_variable(self, word: str) -> list[str]:
        """The items of a list in the environment. ":" separates folders, as in PATH. For the rest, commas and white
        space do; where there are none, ":" does, but not within a URL, an IPv6 address or a host with its port."""
        if self.splitter is not None:
            return self.splitter(word)
        if self.parse is parse_path:
            return word.split(":")
        if re.search(r"[,\s]", word):
            return [piece for piece in re.split(r"[,\s]+", word) if piece]
        item = rf"(?:^|:)({self.item_pattern}|{URL}|{BRACKETED_IPV6}|{IPV6}|{HOST_AND_PORT}|[^:]*)(?=:|$)"
        return [piece for piece in re.findall(item, word) if piece]


OPTIONS = (
    Option("sse", "serve HTTP+SSE (2024-11-05) at /sse", parse_bool, False, short="-s", is_http_only=True),
    Option(
        "http",
        "serve Streamable HTTP at /mcp; with -s too, both on one port",
        parse_bool,
        False,
        short="-t",
        is_http_only=True,
    ),
    Option("host", "where HTTP listens (default 127.0.0.1)", str, "127.0.0.1", metavar="HOST", is_http_only=True),
    Option("port", "where HTTP listens (default 8080)", parse_port, 8080, metavar="PORT", is_http_only=True),
    Option("name", "server name told to clients", parse_server_name, "toolgate", short="-n", metavar="NAME"),
    Option(
        "plugins", "plugin folder, searched recursively; repeatable", parse_path, (), "-p", "DIR", is_repeatable=True
    ),
    Option("isolate-plugins", "run each plugin in its own process", parse_bool, False),
    Option("logs", "also write rotating log files here", parse_path, None, "-l", "DIR"),
    Option("verbose", "debug log", parse_bool, False, short="-v"),
    Option("log-format", "text (default), or json: an object a line", one_of("text", "json"), "text", metavar="FORMAT"),
    Option(
        "state",
        "keys, database, spools (default: the XDG data folder; root's is /var/lib/toolgate)",
        parse_path,
        None,
        metavar="DIR",
    ),
    Option(
        "workspace",
        "where tools work (default: over stdio the current directory, over HTTP a folder a person in the state)",
        parse_path,
        None,
        metavar="DIR",
    ),
    Option("skills", "more skill folders, first; repeatable", parse_path, (), metavar="DIR", is_repeatable=True),
    Option("hold", "longest a call is held, in seconds (default 45)", parse_seconds, 45.0, metavar="SECONDS"),
    Option(
        "structured-output",
        "which tools send structured results: full, all; lean (default), all but those whose text is the whole answer",
        one_of("lean", "full"),
        "lean",
        metavar="WHICH",
    ),
    Option(
        "grace",
        "what running calls get at shutdown (default 1.5 over stdio, 5 over HTTP)",
        parse_seconds,
        metavar="SECONDS",
    ),
    Option(
        "auth",
        "who may call over HTTP; oauth: who signs in here (default); an issuer's URL: who signs in there; none: anyone "
        "on this machine",
        parse_auth,
        "oauth",
        metavar="WHO",
        is_http_only=True,
    ),
    Option(
        "public-url",
        "the URL told to clients, without /mcp (default: http://HOST:PORT on loopback; off loopback it is needed)",
        parse_public_url,
        metavar="URL",
        is_http_only=True,
    ),
    Option(
        "login",
        "how people sign in: password (default), oidc=ISSUER, github, header=NAME; repeatable",
        parse_login,
        (),
        None,
        "WAY",
        True,
        is_http_only=True,
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
        item_pattern=r"(?:github|oidc|header):[^:]+",
        is_http_only=True,
    ),
    Option(
        "oidc-client",
        "file with our client id at the OIDC provider and, below it, the secret",
        parse_path,
        metavar="FILE",
        is_http_only=True,
    ),
    Option(
        "github-client",
        "file with our client id at GitHub and, below it, the secret",
        parse_path,
        metavar="FILE",
        is_http_only=True,
    ),
    Option(
        "trusted-proxies",
        "addresses and networks of proxies to be believed; repeatable",
        parse_network,
        (),
        metavar="NET",
        is_repeatable=True,
        is_http_only=True,
    ),
    Option(
        "login-header-secret",
        "file with the secret that the proxy of --login header=NAME shows in X-Toolgate-Proxy-Secret",
        parse_path,
        metavar="FILE",
        is_http_only=True,
    ),
    Option(
        "enterprise-issuers",
        "identity providers whose grants for their people (ID-JAG) are taken; repeatable",
        parse_issuer,
        (),
        metavar="URL",
        is_repeatable=True,
        is_http_only=True,
    ),
    Option(
        "clients",
        "file of OAuth clients known beforehand (TOML or JSON)",
        parse_path,
        None,
        metavar="FILE",
        is_http_only=True,
    ),
    Option(
        "registration",
        "which other clients are known: open (default), metadata (those with a document), dynamic (those that register "
        "themselves), closed (none)",
        one_of("open", "metadata", "dynamic", "closed"),
        "open",
        metavar="HOW",
        is_http_only=True,
    ),
    Option(
        "client-hosts",
        "hosts whose clients' documents are taken, and those below them (default: all); repeatable",
        parse_host,
        (),
        None,
        "HOST",
        True,
        is_http_only=True,
    ),
    Option(
        "openai-challenge",
        "the word that proves to ChatGPT whose domain this is, told at /.well-known/openai-apps-challenge",
        parse_openai_challenge,
        metavar="WORD",
        is_http_only=True,
    ),
    Option(
        "metrics-token",
        "file with the token that /metrics takes (default: STATE/keys/metrics, made at the start; none is needed where "
        "only this machine is served)",
        parse_path,
        metavar="FILE",
        is_http_only=True,
    ),
    Option(
        "allowed-hosts",
        "more Host names to serve; repeatable",
        str,
        (),
        metavar="HOST",
        is_repeatable=True,
        is_http_only=True,
    ),
    Option(
        "allowed-origins",
        "more Origins of web pages that may call; repeatable",
        str,
        (),
        None,
        "ORIGIN",
        True,
        is_http_only=True,
    ),
    Option(
        "allow-private",
        "host, address or network the web tools may reach although it is private; repeatable",
        str,
        (),
        metavar="HOST",
        is_repeatable=True,
    ),
    Option(
        "refuse-networks",
        "network or address the web tools and --sandbox-network public may not reach although it is public, as some of "
        "a private cloud are; repeatable",
        str,
        (),
        metavar="NETWORK",
        is_repeatable=True,
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
    Option("search-deadline", "longest a search takes, in seconds (default 6)", parse_seconds, 6.0, metavar="SECONDS"),
    Option("searxng", "a SearXNG instance to ask too", parse_web_url, None, metavar="URL"),
    Option(
        "search-keys",
        "file of lines ENGINE = KEY, for brave-api, tavily, exa, kagi and serper; or TOOLGATE_BRAVE_API_KEY and so on",
        parse_path,
        metavar="FILE",
    ),
    Option(
        "search-contact",
        "a URL or an address told to engines, for whoever wants us to stop",
        parse_contact,
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
        one_of("auto", "bwrap", "uid", "none"),
        None,
        metavar="LEVEL",
    ),
    Option("accept-unsandboxed", "the second confirmation that --sandbox none needs off loopback", parse_bool, False),
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
        item_pattern=r"calls:[^=:]+(?::[^=:]+)*=[0-9]+",
    ),
    Option(
        "sandbox-network",
        "what sandboxed commands reach: none, public (no private addresses) or all (default: public over HTTP, all "
        "over stdio)",
        one_of("none", "public", "all"),
        None,
        metavar="WHAT",
    ),
    Option(
        "sandbox-paths",
        "further folder that sandboxed commands may read; repeatable",
        parse_path,
        (),
        metavar="DIR",
        is_repeatable=True,
    ),
    Option(
        "sandbox-uids",
        "users that principals' commands run as, where the server is root (default 40000-49999)",
        parse_uid_range,
        None,
        metavar="FIRST-LAST",
    ),
    Option(
        "idle-workspaces",
        "what becomes of a person's workspace without a call for --idle-after: keep (default), archive or delete",
        one_of("keep", "archive", "delete"),
        "keep",
        metavar="WHAT",
        is_http_only=True,
    ),
    Option(
        "idle-after",
        "such as 12h or 90d (default 90d)",
        parse_long_time,
        90 * 86_400,
        metavar="TIME",
        is_http_only=True,
    ),
    Option(
        "gone-workspaces",
        "the same for who could not sign in any more for --gone-after: keep, archive (default) or delete",
        one_of("keep", "archive", "delete"),
        "archive",
        metavar="WHAT",
        is_http_only=True,
    ),
    Option(
        "gone-after",
        "such as 12h or 30d (default 30d)",
        parse_long_time,
        30 * 86_400,
        metavar="TIME",
        is_http_only=True,
    ),
    Option(
        "approve",
        "calls that wait for a person's word, as WHAT, WHAT(COMMAND) or WHO=WHAT: a tool, scope:S or plugin:P; of "
        "commands it is advice, no boundary; repeatable",
        rules.check_rule_word,
        (),
        None,
        "RULE",
        True,
        splitter=rules.split_rules,
    ),
    Option(
        "allow",
        "calls that --approve does not stop; repeatable",
        rules.check_rule_word,
        (),
        None,
        "RULE",
        True,
        splitter=rules.split_rules,
    ),
    Option(
        "deny",
        "calls that are always refused, whatever --allow says; repeatable",
        rules.check_rule_word,
        (),
        None,
        "RULE",
        True,
        splitter=rules.split_rules,
    ),
    Option(
        "audit",
        "record each call of a tool in STATE/audit: off, on (of arguments a digest), full (the arguments, what looks "
        "like a secret redacted) (default: on over HTTP and with a sandbox, else off)",
        one_of("off", "on", "full"),
        None,
        metavar="LEVEL",
    ),
    Option("database", "PostgreSQL for several replicas", is_planned=True),
    Option("redis", "Redis for several replicas", is_planned=True),
)
