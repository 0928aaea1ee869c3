"""Compare the URLs of results, and remove tracking and redirects from them."""

import re
from urllib.parse import parse_qs, unquote, urlsplit

from toolgate.tools.api.text.cleaning import clean_text

MAX_URL = 2_000  # characters
PORTS = {"http": 80, "https": 443}
MOBILE = frozenset({"www", "m", "mobile"})  # host labels that name the same site
TRACKING = (  # parameters of counters. Compiled when it is needed: start-up
    r"(?:utm_|mtm_|pk_campaign|hsa_).*|_openstat|gclid|gclsrc|fbclid|dclid|gbraid|wbraid|msclkid|yclid|twclid|ttclid"
    r"|igsh|igshid|mc_cid|mc_eid|mkt_tok|ref_src|_ga|_gl|_hsenc|_hsmi|srsltid"
)
ESCAPE = r"%([0-9A-Fa-f]{2})"
OUTSIDE = r"[^\x21-\x7e]+"
UNRESERVED = r"[A-Za-z0-9._~-]"


def page_key(url: str) -> str | None:
    """Return a key that is the same for all spellings of a page's URL; None for a URL that is not http.

    It ignores the scheme, `www`, `m` and `mobile` in the host (`en.m.wikipedia.org`), the default port, the fragment, a
    trailing slash and tracking parameters. Percent-encoding is normalised (RFC 3986, 6.2.2). The order of other
    parameters is kept, since some servers need it.
    """
    if len(url) > MAX_URL or clean_text(url) != url or any(character.isspace() for character in url):
        return None
    try:
        parts = urlsplit(url)
        host, port = _site_host(parts.hostname or ""), parts.port
    except ValueError:
        return None
    if parts.scheme not in PORTS or not host or parts.username is not None:
        return None
    place = host if port in (None, PORTS[parts.scheme]) else f"{host}:{port}"
    kept = [pair for pair in _normalize(parts.query).split("&") if pair and not _is_tracking(pair)]
    return f"{place}{_normalize(_remove_dots(parts.path)).rstrip('/')}{'?' if kept else ''}{'&'.join(kept)}"


def remove_tracking(url: str) -> str:
    """Return `url` without tracking parameters, else unchanged."""
    head, mark, fragment = url.partition("#")
    base, question, query = head.partition("?")
    pairs = query.split("&")
    kept = [pair for pair in pairs if not _is_tracking(_normalize(pair))]
    if len(kept) == len(pairs):
        return url
    return f"{base}{question if kept else ''}{'&'.join(kept)}{mark}{fragment}"


def unwrap_redirect(url: str) -> str:
    """Return the target of DuckDuckGo's redirect link, with a scheme."""
    url = f"https:{url}" if url.startswith("//") else url
    if "duckduckgo.com/l/?" not in url:
        return url
    return parse_qs(url.partition("?")[2]).get("uddg", [""])[0]


def _site_host(host: str) -> str:
    """Return the host without labels of mobile versions; the last two labels stay."""
    name = host.lower().removesuffix(".")
    if not name.isascii():
        name = name.encode("idna").decode()
    labels = name.split(".")
    if len(labels) > 2 and labels[0] in MOBILE:
        labels = labels[1:]
    if len(labels) > 3 and labels[1] in MOBILE - {"www"}:  # en.m.wikipedia.org
        labels = [labels[0], *labels[2:]]
    elif len(labels) > 2 and labels[0] in MOBILE:  # www.m.example.org
        labels = labels[1:]
    return ".".join(labels)


def _normalize(text: str) -> str:
    """Normalise percent-encoding: unreserved characters decoded, the rest in capitals, non-ASCII encoded."""
    encoded = re.sub(OUTSIDE, lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), text)
    return re.sub(ESCAPE, _character, encoded)


def _character(match: re.Match[str]) -> str:
    character = unquote(match[0]) if int(match[1], 16) < 128 else ""
    return character if re.fullmatch(UNRESERVED, character) else match[0].upper()


def _remove_dots(path: str) -> str:
    """Return the path without the segments `.` and `..` (RFC 3986, 5.2.4)."""
    if "/." not in path:
        return path
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[max(len(kept) - 1, 1) :]  # the first segment is the empty one before the first slash
        elif segment != ".":
            kept.append(segment)
    return "/".join(kept)


def _is_tracking(pair: str) -> bool:
    return re.fullmatch(TRACKING, pair.partition("=")[0].lower(), re.DOTALL) is not None
