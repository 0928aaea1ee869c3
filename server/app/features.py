"""List the features: what only some operators turn on. The core knows nothing of them but this list.

A feature fills slots of `AppHost` and adds to its lists. One is imported only if its option is given, so a server over
stdio starts as fast as without it.
"""

import pkgutil
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from toolgate.server.app.host import AppHost
from toolgate.server.config.load import Config
from toolgate.server.state.store import Store

ROOM = "toolgate.server.features"


class Feature(Protocol):
    """One feature that is on."""

    def build(self, host: AppHost) -> None:
        """Take slots and add to lists. Connects to nothing, and makes no part."""
        ...

    async def connect(self, host: AppHost) -> None:
        """Learn what the server must know before its first decision. Raises UsageError, StateError."""
        ...

    def run(self, host: AppHost) -> AbstractAsyncContextManager[None]:
        """Work beside the requests. Features are entered in their order, and left in reverse."""
        ...


class FeatureRow(msgspec.Struct, frozen=True):
    """A feature is on if one of the options `switches` (their keys) has a value. `feature` is `module:Class` below
    `ROOM`, and `check` `module:function`, which raises UsageError for options that do not fit the feature."""

    switches: tuple[str, ...]
    feature: str
    check: str = ""


FEATURES = (
    FeatureRow(("database", "secret"), "postgres.feature:PostgresFeature"),
    FeatureRow(("redis",), "replicas.feature:ReplicasFeature"),
    FeatureRow(("node",), "nodes.feature:NodesFeature", "nodes.options:check_node_options"),
)


def build_host(config: Config, *, upgrades: bool = True, within: float | None = None) -> tuple[AppHost, list[Feature]]:
    """Return the parts of the server that the options name, not made yet, and the features that are on. A command that
    reads the state makes these as the server does. `upgrades` and `within` are as in `AppHost`.
    """
    host = AppHost(config, upgrades=upgrades, within=within)
    features: list[Feature] = [pkgutil.resolve_name(f"{ROOM}.{row.feature}")() for row in _list_rows(config)]
    for feature in features:
        feature.build(host)
    return host, features


def open_store(config: Config, *, upgrades: bool = True) -> Store:
    """Return the store that the options name, for a command. `upgrades` is as in `AppHost`. Raises StateError."""
    host, _ = build_host(config, upgrades=upgrades)
    return host.store()


def check_options(config: Config) -> None:
    """Raise UsageError for options that a feature refuses."""
    for row in _list_rows(config):
        if row.check:
            pkgutil.resolve_name(f"{ROOM}.{row.check}")(config)


def _list_rows(config: Config) -> list[FeatureRow]:
    """Return the rows of the features that the options turn on, in their order."""
    return [row for row in FEATURES if any(getattr(config, switch) for switch in row.switches)]
