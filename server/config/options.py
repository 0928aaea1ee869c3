"""Declare every option once: its flag, environment variable, key of the config file and help."""

from functools import partial
from itertools import chain
from pkgutil import resolve_name

from toolgate.server.base.merged_rows import merge_rows
from toolgate.server.base.principals import rule_words
from toolgate.server.base.principals.sign_in_methods import external_methods, login_forms, provider_methods
from toolgate.server.config.feature_rows import FEATURES, ROOM
from toolgate.server.config.option import BOTH, NODE, Option
from toolgate.server.config.plugin_paths import parse_plugin_path, split_plugin_paths
from toolgate.server.config.transports import HTTP_TRANSPORTS
from toolgate.server.config.types import (
    one_of,
    parse_auth,
    parse_bool,
    parse_client_name,
    parse_contact,
    parse_host,
    parse_issuer,
    parse_listen_host,
    parse_login,
    parse_long_time,
    parse_name_patterns,
    parse_network,
    parse_openai_challenge,
    parse_origin,
    parse_path,
    parse_port,
    parse_public_url,
    parse_seconds,
    parse_seconds_or_zero,
    parse_served_host,
    parse_server_name,
    parse_uid_range,
    parse_web_url,
)
from toolgate.tools.workspace import limits

_http = partial(Option, is_http_only=True)
_rule = partial(Option, parse=rule_words.check_rule_word, default=(), metavar="RULE", splitter=rule_words.split_rules)

_GROUPS: dict[str, tuple[Option, ...]] = {
    "Serving": (
        *(_http(row.name, row.help, parse_bool, False, short=row.short) for row in HTTP_TRANSPORTS),
        _http("stdio", "serve stdio, also where the config file or a variable selects HTTP", parse_bool, False),
        _http("host", "address to listen on (default 127.0.0.1)", parse_listen_host, "127.0.0.1", "HOST"),
        _http("port", "port to listen on (default 8080)", parse_port, 8080, "PORT"),
        Option("name", "server name that clients see", parse_server_name, "toolgate", "NAME", "-n"),
        Option(
            "tools",
            "built-in tools to serve, as patterns such as 'Read*,!ReadDocs'; none serves only what is added to them "
            "(default: all)",
            parse_name_patterns,
            (),
            "PATTERN,…",
            splitter=lambda word: [word],
        ),
        Option("hold", "seconds before a call becomes a background task (default 45)", parse_seconds, 45.0, "SECONDS"),
        Option(
            "task-after",
            "seconds before a call of Bash, ReadDocs or WebSearch becomes a task of the protocol, for clients with "
            "tasks (default 5; at most half of --hold)",
            parse_seconds,
            5.0,
            "SECONDS",
        ),
        Option(
            "wake-client",
            "client that wakes its model when a task ends: there BackgroundBash and SetCallback are tasks (* all, "
            "none: off) (default claude-code)",
            parse_client_name,
            (),
            "NAME",
        ),
        _http(
            "drain",
            "seconds after SIGTERM in which open connections are served, at most until the last one closes (default "
            "10; 0 with --auth none; 0.5 on a service manager's socket)",
            parse_seconds_or_zero,
            metavar="SECONDS",
        ),
        Option(
            "grace",
            "seconds that running calls get at shutdown (default 1.5 over stdio, 5 over HTTP)",
            parse_seconds,
            metavar="SECONDS",
            place=BOTH,
        ),
        Option(
            "structured-output",
            "structured results: lean (default), from tools whose text is not the whole answer; full, from all tools",
            one_of("lean", "full"),
            "lean",
            "WHICH",
        ),
    ),
    "Folders": (
        Option(
            "state",
            "folder for keys, database and spools (default: the XDG data folder; root's is /var/lib/toolgate)",
            parse_path,
            metavar="DIR",
            place=BOTH,
        ),
        Option(
            "workspace",
            "folder where tools work (default: over stdio the current directory, over HTTP one folder per user under "
            "the state folder)",
            parse_path,
            metavar="DIR",
            place=NODE,
        ),
        _http(
            "idle-workspaces",
            "what happens to a workspace without a call for --idle-after: keep (default), archive or delete",
            one_of("keep", "archive", "delete"),
            "keep",
            "WHAT",
            place=NODE,
        ),
        _http(
            "idle-after",
            "time without a call before --idle-workspaces applies, such as 12h or 90d (default 90d)",
            parse_long_time,
            90 * 86_400,
            "TIME",
            place=NODE,
        ),
        _http(
            "gone-workspaces",
            "what happens to the workspace of a person who could not sign in for --gone-after: keep, archive (default) "
            "or delete",
            one_of("keep", "archive", "delete"),
            "archive",
            "WHAT",
            place=NODE,
        ),
        _http(
            "gone-after",
            "time without access before --gone-workspaces applies, such as 12h or 30d (default 30d)",
            parse_long_time,
            30 * 86_400,
            "TIME",
            place=NODE,
        ),
    ),
    "Plugins and skills": (
        Option(
            "plugins",
            "plugin folder, searched recursively, or plugin file; builtin:NAME is one that comes with the server",
            parse_plugin_path,
            (),
            "DIR",
            "-p",
            splitter=split_plugin_paths,
        ),
        Option("isolate-plugins", "run each plugin in its own process", parse_bool, False),
        Option("skills", "skill folder that comes before the others", parse_path, (), "DIR"),
    ),
    "Logs and records": (
        Option("verbose", "log debug messages", parse_bool, False, short="-v", place=BOTH),
        Option("logs", "folder for rotating log files, besides stderr", parse_path, None, "DIR", "-l", place=BOTH),
        Option(
            "log-format",
            "text (default), or json (one object per line)",
            one_of("text", "json"),
            "text",
            "FORMAT",
            place=BOTH,
        ),
    ),
    "Public address": (
        _http(
            "public-url",
            "the https URL clients use, without /mcp; required when listening beyond localhost (default: "
            "http://HOST:PORT on loopback)",
            parse_public_url,
            metavar="URL",
        ),
        _http("allowed-hosts", "further Host name to serve", parse_served_host, (), "HOST"),
        _http("allowed-origins", "further Origin of web pages that may call", parse_origin, (), "ORIGIN"),
        _http("trusted-proxies", "address or network of a trusted proxy", parse_network, (), "NET"),
    ),
    "Sign-in": (
        _http(
            "auth",
            "who may call over HTTP: oauth (default), people who sign in here; an issuer's URL, people who sign in "
            "there; none, anyone on this machine",
            parse_auth,
            "oauth",
            "WHO",
        ),
        _http("login", f"how people sign in: {login_forms()} (default: password)", parse_login, (), "WAY"),
        _http(
            "allow-users",
            f"who may sign in through {', '.join(method.name for method in external_methods())} (required for these): "
            "an e-mail address, @domain, a subject, or * for all",
            str,
            (),
            "WHO",
            item_pattern=rf"(?:{'|'.join(method.prefix for method in external_methods())}):[^:]+",
        ),
        *(
            _http(
                method.client_option,
                f"file with the client id at {method.title} and, on the next line, its secret",
                parse_path,
                metavar="FILE",
                is_secret=True,
            )
            for method in provider_methods()
        ),
        _http(
            "login-header-secret",
            "file with the secret that the proxy of --login header=NAME sends in X-Toolgate-Proxy-Secret",
            parse_path,
            metavar="FILE",
            is_secret=True,
        ),
        _http(
            "enterprise-issuers",
            "identity provider whose grants for its people (ID-JAG) are accepted",
            parse_issuer,
            (),
            "URL",
        ),
    ),
    "OAuth clients": (
        _http(
            "clients",
            "file of OAuth clients known in advance (TOML or JSON)",
            parse_path,
            metavar="FILE",
            is_secret=True,
        ),
        _http(
            "registration",
            "other clients to accept: open (default), metadata (those with a document), dynamic (those that register "
            "themselves), closed (none)",
            one_of("open", "metadata", "dynamic", "closed"),
            "open",
            "HOW",
        ),
        _http(
            "client-hosts",
            "host whose clients' documents are accepted, subdomains included (default: all)",
            parse_host,
            (),
            "HOST",
        ),
        _http(
            "openai-challenge",
            "token that proves this domain to ChatGPT, served at /.well-known/openai-apps-challenge",
            parse_openai_challenge,
            metavar="WORD",
        ),
    ),
    "Sandbox and limits": (
        Option(
            "sandbox",
            "how commands are isolated: bwrap, uid, none, or auto (the strongest available) (default: auto over HTTP, "
            "none over stdio)",
            one_of("auto", "bwrap", "uid", "none"),
            metavar="LEVEL",
            place=NODE,
        ),
        Option("accept-unsandboxed", "confirm --sandbox none beyond localhost", parse_bool, False, place=BOTH),
        Option(
            "sandbox-network",
            "networks that sandboxed commands can reach: none, public (no private addresses) or all (default: public "
            "over HTTP, all over stdio)",
            one_of("none", "public", "all"),
            metavar="WHAT",
            place=NODE,
        ),
        Option("sandbox-paths", "further folder that sandboxed commands may read", parse_path, (), "DIR", place=NODE),
        Option(
            "sandbox-uids",
            "user ids that commands run as when the server is root (default 40000-49999)",
            parse_uid_range,
            metavar="FIRST-LAST",
            place=NODE,
        ),
        Option(
            "limit",
            f"limit for each principal: {', '.join(limits.ROWS)}, calls:SCOPE (default: docs/security.md)",
            limits.limit_word,
            (),
            "NAME=VALUE",
            item_pattern=r"calls:[^=:]+(?::[^=:]+)*=[0-9]+",
            place=BOTH,
        ),
    ),
    "Rules": (
        _rule(
            "approve",
            "calls that a person must approve: WHAT, WHAT(COMMAND) or WHO=WHAT, where WHAT is a tool, scope:S or "
            "plugin:P; for commands this is advice, not a boundary",
        ),
        _rule("allow", "calls that --approve does not stop"),
        _rule("deny", "calls that are always refused, whatever --allow says"),
    ),
    "Web tools": (
        Option(
            "allow-private",
            "private host, address or network that the web tools and requests to clients' URLs may reach",
            str,
            (),
            "HOST",
            place=BOTH,
        ),
        Option(
            "refuse-networks",
            "public network or address that the web tools, requests to clients' URLs and --sandbox-network public may "
            "not reach, as in a private cloud",
            str,
            (),
            "NETWORK",
            place=BOTH,
        ),
        Option(
            "engines",
            "search engine to use, or NAME=URL for another address of one (default: eleven that need no key, and those "
            "that have a key or an address)",
            str,
            (),
            "NAME",
        ),
        Option("search-deadline", "longest search, in seconds (default 6)", parse_seconds, 6.0, "SECONDS"),
        Option("searxng", "a SearXNG instance to use too", parse_web_url, metavar="URL"),
        Option(
            "search-keys",
            "file of lines ENGINE = KEY, for brave-api, tavily, exa, kagi and serper; or TOOLGATE_BRAVE_API_KEY and so "
            "on",
            parse_path,
            metavar="FILE",
            is_secret=True,
        ),
        Option("search-contact", "URL or e-mail address sent to search engines", parse_contact, "", "WHO"),
        Option(
            "browser", "Chromium for ReadDocs: its path, or none (default: the one in PATH)", metavar="PATH", place=NODE
        ),
    ),
}
for _row in FEATURES:
    for _group, _options in (resolve_name(f"{ROOM}.{_row.options}") if _row.options else {}).items():
        _GROUPS[_group] = (*_GROUPS.get(_group, ()), *_options)
_NOTES = dict(chain.from_iterable(resolve_name(f"{ROOM}.{row.notes}").items() for row in FEATURES if row.notes))
OPTION_GROUPS = {
    group: tuple(option.with_note(_NOTES.get(option.name, "")) for option in options)
    for group, options in _GROUPS.items()
    if options
}
OPTIONS = tuple(
    merge_rows("options", ((option.name, option) for option in chain.from_iterable(OPTION_GROUPS.values()))).values()
)
merge_rows("options", ((option.short, option) for option in OPTIONS if option.short))
