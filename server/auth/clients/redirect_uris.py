"""Decide where an authorization code may be sent.

Pure functions on text: a URL library's own idea of equality would open redirects.
Source: RFC 6749 section 3.1.2, RFC 8252 section 7, RFC 9700 section 4.1; the platforms' own pages for the presets.
"""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

MAX_URI = 2_000  # characters
PLAIN = re.compile(r"[!$%&'()+,\-./0-9:;=?@A-Z\[\]_a-z~]+")  # no space, quote, backslash, wildcard, fragment
WEB = re.compile(r"https://(?P<host>[^/?@\[\]:]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?(?P<rest>[/?].*)?")
LOOPBACK = re.compile(r"http://(?P<host>localhost|127\.0\.0\.1|\[::1\])(?::(?P<port>[0-9]{1,5}))?(?P<rest>[/?].*)?")
LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
NAME = re.compile(rf"{LABEL}(?:\.{LABEL})*\.?")
SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):(.+)")
BROWSER_SCHEMES = frozenset(  # schemes that run or show something in the browser itself, even if listed
    (
        "javascript",
        "data",
        "vbscript",
        "file",
        "filesystem",
        "blob",
        "about",
        "view-source",
        "http",
        "https",
        "ftp",
        "ws",
        "wss",
    )
)
SEGMENT = r"[A-Za-z0-9_-]{1,200}"  # what {id} stands for in a preset

# Platform → its redirect URIs. Custom schemes of applications are accepted from every client; the rest is for `presets`
# of configured clients. {id} is one path segment.
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
APPLICATIONS = frozenset(uri for uris in PRESETS.values() for uri in uris if not uri.startswith("http"))


def find_fault(uri: object, *, trusted: bool = False) -> str | None:
    """Return why a redirect URI is rejected, in fixed words, or None.

    https is accepted anywhere, http on loopback only. Of other schemes, those of known applications are accepted, or
    with `trusted` (from the operator) all but the browser's own.
    """
    if not isinstance(uri, str) or not 0 < len(uri) <= MAX_URI or not PLAIN.fullmatch(uri):
        return "a redirect URI is not plain text without spaces, wildcards or a fragment"
    if _has_dots(uri):
        return "a redirect URI contains . or .. segments"
    if uri in APPLICATIONS:
        return None
    web = WEB.fullmatch(uri)
    if web is not None:
        return None if _is_host(web["host"]) and _is_port(web["port"]) else "a redirect URI has no usable host or port"
    loopback = LOOPBACK.fullmatch(uri)
    if loopback is not None:
        return None if _is_port(loopback["port"]) else "a redirect URI has no usable port"
    own = SCHEME.fullmatch(uri)
    if trusted and own is not None and own[1] not in BROWSER_SCHEMES:
        return None
    return "a redirect URI must be https, or http on localhost, 127.0.0.1 or [::1], or that of a known application"


def is_registered(uri: str, registered: Iterable[str]) -> bool:
    """Return whether `uri` equals one of `registered`. Only the port on loopback (RFC 8252 section 7.3) and a preset's
    {id} may differ."""
    if not PLAIN.fullmatch(uri):
        return False
    return any(uri == known or _differs_in_port(uri, known) or _fills(uri, known) for known in registered)


def is_loopback_only(registered: Iterable[str]) -> bool:
    """Return whether codes go only to the person's own machine, where any program could claim to be this client."""
    return not any(uri.startswith("https://") for uri in registered)


def display_host(uri: str) -> str:
    """Return where a code goes, in words for a person: host and port, or an application's scheme."""
    found = WEB.fullmatch(uri) or LOOPBACK.fullmatch(uri)
    if found is None:
        return f"{uri.partition(':')[0]}:"
    host = str(found["host"]).lower()
    return f"{host}:{found['port']}" if found["port"] else host


def _differs_in_port(uri: str, known: str) -> bool:
    asked, held = LOOPBACK.fullmatch(uri), LOOPBACK.fullmatch(known)
    if asked is None or held is None:
        return False
    return asked["host"] == held["host"] and asked["rest"] == held["rest"] and _is_port(asked["port"])


def _fills(uri: str, known: str) -> bool:
    before, mark, after = known.partition("{id}")
    return bool(mark) and re.fullmatch(re.escape(before) + SEGMENT + re.escape(after), uri) is not None


def _is_port(port: str | None) -> bool:
    return port is None or (not port.startswith("0") and int(port) < 65_536)


def _is_host(host: str) -> bool:
    return host.startswith("[") or (len(host) <= 253 and NAME.fullmatch(host) is not None)


def _has_dots(uri: str) -> bool:
    path = unquote(uri.partition("?")[0])
    return "\\" in path or any(part in (".", "..") for part in path.split("/"))
