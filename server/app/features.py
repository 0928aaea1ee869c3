"""Build the features that are on. All that the core knows of them is the list in `config/feature_rows.py`.

A feature fills slots of `AppHost` and adds to its lists. One is imported only if its option is given, so a server over
stdio starts as fast as without it.
"""

from contextlib import AbstractAsyncContextManager
from pkgutil import resolve_name
from typing import Protocol

from toolgate.server.app.host import AppHost
from toolgate.server.app.state_part import StatePart
from toolgate.server.config.feature_rows import FEATURES, ROOM, FeatureRow
from toolgate.server.config.load import Config
from toolgate.server.state.store import Store


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


def build_host(config: Config, *, upgrades: bool = True, within: float | None = None) -> tuple[AppHost, list[Feature]]:
    """Return the parts of the server that the options name, not made yet, and the features that are on. A command that
    reads the state makes these as the server does. `upgrades` and `within` are as in `AppHost`.
    """
    host = AppHost(config, upgrades=upgrades, within=within)
    return host, [build_feature(row, host) for row in list_rows(config) if row.feature]


def build_feature(row: FeatureRow, host: AppHost) -> Feature:
    """Return the feature of a row, built."""
    feature: Feature = resolve_name(f"{ROOM}.{row.feature}")()
    feature.build(host)
    return feature


def open_store(config: Config, *, upgrades: bool = True) -> Store:
    """Return the store that the options name, for a command. `upgrades` is as in `AppHost`. Raises StateError."""
    host, _ = build_host(config, upgrades=upgrades)
    return host.store()


def list_state_parts() -> list[StatePart]:
    """Return what each feature keeps in the state, whether its options are given or not."""
    return [resolve_name(f"{ROOM}.{row.state}")() for row in FEATURES if row.state]


def check_options(config: Config) -> None:
    """Raise UsageError for options that a feature refuses."""
    for row in list_rows(config):
        if row.check:
            resolve_name(f"{ROOM}.{row.check}")(config)


def list_rows(config: Config) -> list[FeatureRow]:
    """Return the rows of the features that the options turn on, in their order."""
    rows = [row for row in FEATURES if config.is_remote or not row.is_http_only]
    return [row for row in rows if _is_on(row, config)]


def list_unused_tables(config: Config) -> list[FeatureRow]:
    """Return the rows of the features that the config file has no table for, and that one would turn on."""
    return [row for row in FEATURES if row.table and row.feature and not _is_on(row, config)]


def _is_on(row: FeatureRow, config: Config) -> bool:
    if row.table and config.is_remote:
        return True
    keys = [*row.switches, *([row.table] if row.table else [])]
    return not keys or any(getattr(config, key) for key in keys)
