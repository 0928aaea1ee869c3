"""Refuse TOOLGATE_ variables that mean nothing: a slip must not leave an option at its default unseen."""

import re
from collections.abc import Iterable, Mapping

from toolgate.server.base.errors import UsageError
from toolgate.server.base.principals.sign_in_methods import provider_methods
from toolgate.server.base.text import escape_unprintable, suggest
from toolgate.server.config.option import CONFIG
from toolgate.server.config.options import OPTIONS

PREFIX = "TOOLGATE_"
API_KEY = "_API_KEY"
ACCESS = f"{PREFIX}TOKEN"  # for --url; no flag, since all users can see command lines
DEPLOYMENT = (  # of deploy/caddy and deploy/.env: the server's environment often has them too
    *("DOMAIN", "UPSTREAM", "UPSTREAMS", "TLS", "HTTPS_PORT", "HTTP_PORT", "PROXY_SECRET"),
    *("CHROMIUM", "PACKAGES", "MEMORY", "CPUS", "APPARMOR", "SUBNET", "RANGE", "CADDY", "ADDRESS"),
)
# Kubernetes and Docker set these in every container beside a service named toolgate
SERVICE_LINK = (  # compiled when it is needed: start-up
    r"TOOLGATE_(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)"
    r"(?:_(?:PROTO|PORT|ADDR))?)"
)
SERVICE_URL = r"(?:tcp|udp|sctp)://[A-Za-z0-9.:\[\]-]+"  # in TOOLGATE_…_PORT
MAX_NAME = 100  # characters of a name in an error


def refuse_unknown(environment: Mapping[str, str]) -> None:
    """Raise UsageError for the first TOOLGATE_ variable, in any case, that Toolgate does not read."""
    for name in [name for name in environment if name[: len(PREFIX)].upper() == PREFIX]:
        if name == "TOOLGATE_PORT" and re.fullmatch(SERVICE_URL, environment[name]):
            raise UsageError(
                f"{name} is {environment[name]}, as Kubernetes sets it for a Service named toolgate: set "
                "enableServiceLinks: false in the pod, or rename the Service"
            )
        if not _is_known(name, environment[name]):
            known = [variable.removeprefix(PREFIX) for variable in known_variables(search_keys=True)]
            similar = suggest(name[len(PREFIX) :], known, PREFIX)
            shown = escape_unprintable(name[:MAX_NAME])
            raise UsageError(f"unknown variable {shown}{similar}; toolgate serve --help lists the options")


def known_variables(*, search_keys: bool) -> Iterable[str]:
    """Return the names of all variables, with `search_keys` those for keys of search engines too."""
    names = [option.variable for option in (CONFIG, *OPTIONS)]
    names += [variable for method in provider_methods() for variable in method.variables]
    if search_keys:
        from toolgate.tools.reading.search.engines import KEYED, key_variable  # start-up: few have keys

        names += [PREFIX + key_variable(engine) for engine in KEYED]
    return [*names, ACCESS, *(PREFIX + name for name in DEPLOYMENT)]


def _is_known(name: str, value: str) -> bool:
    if name in known_variables(search_keys=name.endswith(API_KEY)) or re.fullmatch(SERVICE_LINK, name):
        return True
    return name.endswith("_PORT") and re.fullmatch(SERVICE_URL, value) is not None
