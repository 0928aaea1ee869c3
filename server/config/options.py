"""Every option, declared once: its flag, environment variable, key in the config file and help come from here. Reads
nothing: load.py does.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolgate.server.config.types import (
    authority,
    challenge_word,
    contact,
    folder,
    host_name,
    issuer_url,
    login_way,
    long_time,
    network,
    one_of,
    port_number,
    public_address,
    seconds,
    server_name,
    truth,
    uid_range,
    web_address,
)
from toolgate.server.policy import rules
from toolgate.tools.workspace import limits

# What of a list in the environment has colons of its own: a URL, [an address], an IPv6 network, a host with its port
URL = r"(?:[A-Za-z0-9+.-]+=)?[A-Za-z][A-Za-z0-9+.-]*://(?:\[[^\]]*\]|[^/:]*)(?::[0-9]{1,5}(?![^/:]))?(?:/[^:]*)?"
BRACKETED = r"\[[^\]]*\](?::[0-9]+)?"
IPV6 = r"(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?:/[0-9]+)?"
PORTED = r"[^:/]+:[0-9]{1,5}"


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
    Option("log-format", "text (default), or json: an object a line", one_of("text", "json"), "text", metavar="FORMAT"),
    Option(
        "state",
        "keys, database, spools (default: the XDG data folder; root's is /var/lib/toolgate)",
        folder,
        None,
        metavar="DIR",
    ),
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
        "structured-output",
        "which tools send structured results: full, all; lean (default), all but those whose text is the whole answer",
        one_of("lean", "full"),
        "lean",
        metavar="WHICH",
    ),
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
        "login-header-secret",
        "file with the secret that the proxy of --login header=NAME shows in X-Toolgate-Proxy-Secret",
        folder,
        metavar="FILE",
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
        "which other clients are known: open (default), metadata (those with a document), dynamic (those that register "
        "themselves), closed (none)",
        one_of("open", "metadata", "dynamic", "closed"),
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
        "refuse-networks",
        "network or address the web tools and --sandbox-network public may not reach although it is public, as some of "
        "a private cloud are; repeatable",
        str,
        (),
        metavar="NETWORK",
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
        one_of("auto", "bwrap", "uid", "none"),
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
        one_of("none", "public", "all"),
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
        one_of("keep", "archive", "delete"),
        "keep",
        metavar="WHAT",
        remote=True,
    ),
    Option("idle-after", "such as 12h or 90d (default 90d)", long_time, 90 * 86_400, metavar="TIME", remote=True),
    Option(
        "gone-workspaces",
        "the same for who could not sign in any more for --gone-after: keep, archive (default) or delete",
        one_of("keep", "archive", "delete"),
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
        one_of("off", "on", "full"),
        None,
        metavar="LEVEL",
    ),
    Option("database", "PostgreSQL for several replicas", later=True),
    Option("redis", "Redis for several replicas", later=True),
)
