"""Give the resources of mounted servers URIs that lead to one server each.

A resource keeps its URI. Where two mounts claim one, each is served as `NAME+URI`, and a view (`ui://…`), whose scheme
clients need, as `ui://NAME/…`. The bare one leads nowhere then.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

VIEW = "ui://"

Contested = Mapping[str, frozenset[str]]  # URIs or templates that several mounts claim → their mounts


def find_contested(claims: Mapping[str, Iterable[str]]) -> Contested:
    """Return the URIs that can't be served bare. `claims` are the URIs, or the templates, of each mount."""
    owners: defaultdict[str, set[str]] = defaultdict(set)
    for mount, uris in claims.items():
        for uri in uris:
            owners[uri].add(mount)
    contested = {uri: frozenset(mounts) for uri, mounts in owners.items() if len(mounts) > 1}
    new = contested
    while new:  # the URI of one server may be what another's is served as: then it is contested, too
        served = {format_contested(mount, uri) for uri, mounts in new.items() for mount in mounts}
        new = {uri: frozenset(owners[uri]) for uri in served if uri in owners and uri not in contested}
        contested |= new
    return contested


def expose_uri(mount: str, uri: str, contested: Contested) -> str:
    """Return the URI under which a mount's resource is served."""
    return format_contested(mount, uri) if mount in contested.get(uri, ()) else uri


def find_original(uri: str, contested: Contested) -> tuple[str, str] | None:
    """Return the mount and its own URI of a resource that is served as NAME+URI or ui://NAME/…, or None."""
    rest = uri.removeprefix(VIEW)
    name, _, after = rest.partition("+" if rest == uri else "/")
    original = after if rest == uri else VIEW + after
    is_served = name in contested.get(original, ()) and format_contested(name, original) == uri
    return (name, original) if is_served else None


def format_contested(mount: str, uri: str) -> str:
    """Return NAME+URI, or ui://NAME/… for a view."""
    return f"{VIEW}{mount}/{uri.removeprefix(VIEW)}" if uri.startswith(VIEW) else f"{mount}+{uri}"
