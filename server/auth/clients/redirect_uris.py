"""Decide where an authorization code may be sent.

Pure functions on text: a URL library's own idea of equality would open redirects.
Source: RFC 6749 section 3.1.2, RFC 8252 section 7, RFC 9700 section 4.1; the platforms' own pages for the presets.
"""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlencode

MAX_URI = 2_000  # characters
PLAIN = re.compile(r"[!$%&'()+,\-./0-9:;=?@A-Z\[\]_a-z~]+")  # no space, quote, backslash, wildcard, fragment
WEB = re.compile(r"https://(?P<host>[^/?@\[\]:]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?(?P<rest>[/?].*)?")
LOOPBACK = re.compile(r"http://(?P<host>localhost|127\.0\.0\.1|\[::1\])(?::(?P<port>[0-9]{1,5}))?(?P<rest>[/?].*)?")
LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
NAME = re.compile(rf"{LABEL}(?:\.{LABEL})*\.?")
SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):(.+)")
# A native application's own (RFC 8252 section 7.1): vscode://publisher.extension/callback, com.example.app:/callback
PRIVATE_USE = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]{1,63}):(?://(?P<host>[A-Za-z0-9._~-]*)(?=[/?]|\Z)|(?=/(?!/)))(?P<rest>.*)"
)
# Schemes that run or show something in the browser itself, and others that the browser or the system handles: no
# client's own program does, and some run programs.
BROWSER = "javascript data vbscript file filesystem blob about view-source http https ftp ws wss"
SYSTEM = (
    "livescript mocha jscript jar mhtml mk its res resource chrome chrome-extension chrome-search moz-extension edge "
    "devtools safari-web-extension cid mid urn tag feed content package intent android-app market shell hcp search "
    "search-ms help x-man-page applescript itms itms-apps itms-services mailto tel sms callto facetime sip sips ssh "
    "sftp telnet rlogin rdp vnc ftps smb afp nfs dav davs ldap ldaps git svn rsync gopher news nntp irc xmpp magnet "
    "localhost"
)
BROWSER_SCHEMES = frozenset(BROWSER.split())
FOREIGN_SCHEMES = BROWSER_SCHEMES.union(SYSTEM.split())
SYSTEM_PREFIXES = ("ms-", "x-apple", "web+", "microsoft-edge")  # of schemes whose handlers belong to the system
SEGMENT = r"[A-Za-z0-9_-]{1,200}"  # what {id} stands for in a preset

# Platform → its redirect URIs, for `presets` of configured clients. {id} is one path segment.
PRESETS: Mapping[str, tuple[str, ...]] = {
    "claude": ("https://claude.ai/api/mcp/auth_callback", "https://claude.com/api/mcp/auth_callback"),
    "claude-code": ("http://localhost/callback", "http://127.0.0.1/callback"),
    "chatgpt": ("https://chatgpt.com/connector_platform_oauth_redirect", "https://chatgpt.com/connector/oauth/{id}"),
    "vscode": (
        "http://127.0.0.1:33418/",
        "http://127.0.0.1/",
        "http://localhost/",
        "https://vscode.dev/redirect",
        "https://insiders.vscode.dev/redirect",
    ),
    "cursor": ("cursor://anysphere.cursor-mcp/oauth/callback", "https://www.cursor.com/agents/mcp/oauth/callback"),
    "copilot-studio": ("https://global.consent.azure-apim.net/redirect/{id}",),
    "gemini-cli": ("http://localhost/oauth/callback",),
    "gemini-enterprise": ("https://vertexaisearch.cloud.google.com/oauth-redirect",),
    "antigravity": ("https://antigravity.google/oauth-callback",),
    "perplexity": ("https://www.perplexity.ai/rest/connections/oauth_callback",),
    "inspector": ("http://localhost:6274/oauth/callback", "http://localhost:6274/oauth/callback/debug"),
    "mcp-remote": ("http://127.0.0.1/oauth/callback", "http://localhost/oauth/callback"),
}


def find_fault(uri: object, *, trusted: bool = False) -> str | None:
    """Return why a redirect URI is rejected, in fixed words, or None.

    https is accepted anywhere, http on loopback only, and a scheme that belongs to a native application. With `trusted`
    (from the operator) any scheme is accepted that the browser does not handle itself.
    """
    if not isinstance(uri, str) or not 0 < len(uri) <= MAX_URI or not PLAIN.fullmatch(uri):
        return "a redirect URI is not plain text without spaces, wildcards or a fragment"
    if _has_dots(uri):
        return "a redirect URI contains . or .. segments"
    web = WEB.fullmatch(uri)
    if web is not None:
        return None if _is_host(web["host"]) and _is_port(web["port"]) else "a redirect URI has no usable host or port"
    loopback = LOOPBACK.fullmatch(uri)
    if loopback is not None:
        return None if _is_port(loopback["port"]) else "a redirect URI has no usable port"
    own = SCHEME.fullmatch(uri)
    if is_private_use(uri) or (trusted and own is not None and own[1] not in BROWSER_SCHEMES):
        return None
    return "a redirect URI must be https, http on localhost, 127.0.0.1 or [::1], or have an application's own scheme"


def is_private_use(uri: str) -> bool:
    """Return whether the URI belongs to an application on the person's computer, by a scheme of its own."""
    match = PRIVATE_USE.fullmatch(uri)
    if match is None or not (match["host"] or match["rest"].strip("/")):
        return False
    scheme = str(match["scheme"])
    return scheme not in FOREIGN_SCHEMES and not scheme.startswith(SYSTEM_PREFIXES)


def add_parameters(uri: str, parameters: Iterable[tuple[str, str]]) -> str:
    """Return the URI with parameters added to its query, which is kept as it is (RFC 6749 section 3.1.2)."""
    mark = "" if uri.endswith("?") else "&" if "?" in uri else "?"
    return f"{uri}{mark}{urlencode(list(parameters))}"


def is_registered(uri: str, registered: Iterable[str]) -> bool:
    """Return whether `uri` equals one of `registered`. Only the port on loopback (RFC 8252 section 7.3) and a preset's
    {id} may differ."""
    if not PLAIN.fullmatch(uri):
        return False
    return any(uri == pattern or _differs_in_port(uri, pattern) or _fills(uri, pattern) for pattern in registered)


def is_loopback_only(registered: Iterable[str]) -> bool:
    """Return whether codes go only to the person's own machine, where any program could claim to be this client."""
    return not any(uri.startswith("https://") for uri in registered)


def display_host(uri: str) -> str:
    """Return where a code goes, in words for a person: host and port, or an app with its scheme, which may look like a
    host."""
    match = WEB.fullmatch(uri) or LOOPBACK.fullmatch(uri)
    if match is None:
        return f"an app on your computer ({uri.partition(':')[0]}:)"
    host = str(match["host"]).lower()
    return f"{host}:{match['port']}" if match["port"] else host


def _differs_in_port(uri: str, pattern: str) -> bool:
    ours, theirs = LOOPBACK.fullmatch(uri), LOOPBACK.fullmatch(pattern)
    if ours is None or theirs is None:
        return False
    return ours["host"] == theirs["host"] and ours["rest"] == theirs["rest"] and _is_port(ours["port"])


def _fills(uri: str, pattern: str) -> bool:
    before, mark, after = pattern.partition("{id}")
    return bool(mark) and re.fullmatch(re.escape(before) + SEGMENT + re.escape(after), uri) is not None


def _is_port(port: str | None) -> bool:
    return port is None or (not port.startswith("0") and int(port) < 65_536)


def _is_host(host: str) -> bool:
    return host.startswith("[") or (len(host) <= 253 and NAME.fullmatch(host) is not None)


def _has_dots(uri: str) -> bool:
    path = unquote(uri.partition("?")[0])
    return "\\" in path or any(part in (".", "..") for part in path.split("/"))
