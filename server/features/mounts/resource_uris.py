"""Give the resources of mounted servers URIs that lead to one server each.

A resource keeps its URI. Where two mounts claim one, each is served as `NAME+URI`, and a view (`ui://…`), whose scheme
clients need, as `ui://NAME/…`. The bare one leads nowhere then.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from toolgate.tools.api.text.uris import canonicalise, parse_scheme

VIEW = "ui://"
VIEW_SCHEME = "ui"

Contested = Mapping[str, frozenset[str]]  # URIs or templates that several mounts claim → their mounts


def find_contested(claims: Mapping[str, Iterable[str]]) -> Contested:
    """Return the URIs that can't be served bare, each as it is spelled. `claims` are the URIs and templates of each
    mount."""
    owners: defaultdict[str, set[str]] = defaultdict(set)
    spellings: defaultdict[str, set[str]] = defaultdict(set)  # of one URI
    for mount, uris in claims.items():
        for uri in uris:
            form = normalise_uri(uri)
            owners[form].add(mount)
            spellings[form].add(uri)
    contested: dict[str, frozenset[str]] = {}
    new = {form for form, mounts in owners.items() if len(mounts) > 1}
    while new:
        added = {uri: frozenset(owners[form]) for form in new for uri in spellings[form]}
        contested |= added
        # the URI of one server may be what another's is served as: then it is contested, too
        served = {normalise_uri(format_contested(mount, uri)) for uri, mounts in added.items() for mount in mounts}
        new = {form for form in served if form in owners and not spellings[form] <= contested.keys()}
    return contested


def normalise_uri(uri: str) -> str:
    """Return the one form of all spellings of a URI. A template stays as it is."""
    return uri if "{" in uri else canonicalise(uri) or uri


def is_view(uri: str) -> bool:
    """Return whether a client may take what it reads there for a view."""
    return parse_scheme(uri) == VIEW_SCHEME


def expose_uri(mount: str, uri: str, contested: Contested) -> str:
    """Return the URI under which a mount's resource is served."""
    return format_contested(mount, uri) if mount in contested.get(uri, ()) else uri


def format_contested(mount: str, uri: str) -> str:
    """Return NAME+URI, or ui://NAME/… for a view."""
    return f"{VIEW}{mount}/{uri.removeprefix(VIEW)}" if uri.startswith(VIEW) else f"{mount}+{uri}"


def restore_contested(mount: str, uri: str) -> str:
    """Return the mount's own form of NAME+URI or ui://NAME/…, or the URI itself if it is none of these."""
    for prefix, bare in ((f"{VIEW}{mount}/", VIEW), (f"{mount}+", "")):
        if uri.startswith(prefix):
            return bare + uri.removeprefix(prefix)
    return uri
