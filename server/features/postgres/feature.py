"""Plug PostgreSQL into the server: the store, the keys, the audit log, and whether the database answers."""

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from toolgate.server.app.host import AppHost, Job
from toolgate.server.base.reports.health import describe_backend
from toolgate.server.features.postgres.open_store import TRANSACTION, open_keys, open_store
from toolgate.server.features.postgres.secret_file import read_secret
from toolgate.server.state.keys.sealing_keys import SealingKeys
from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from toolgate.server.base.reports.metric_rows import MetricRow
    from toolgate.server.features.postgres.database.monitor import PostgresMonitor
    from toolgate.server.features.postgres.database.replica_lock import ReplicaLock
    from toolgate.server.features.postgres.database.store import PostgresStore
    from toolgate.server.state.audit.store import AuditStore
    from toolgate.server.state.backup.state_transfer import StateTransfer


class PostgresFeature:
    """The state in PostgreSQL. The driver is imported when the store is opened: help and options do without."""

    def __init__(self) -> None:
        self._store: PostgresStore | None = None
        self._monitor: PostgresMonitor | None = None

    def build(self, host: AppHost) -> None:
        host.secret.take(lambda _: read_secret(host.config))
        host.keys.take(lambda _: self._open_keys(host))
        host.transfer.take(lambda _: self._create_transfer(host))
        if host.config.database is None:
            return  # a secret alone is refused when it is read
        host.store.take(lambda _: self._open_store(host))
        host.audit_rows.take(lambda _: self._open_audit_store(host))
        host.locks.take(lambda _: self._create_lock)
        if host.config.is_remote:
            host.health_parts.append(lambda: describe_backend("PostgreSQL", self._get_monitor().health()))
            host.metric_rows.append(self._list_rows)

    async def connect(self, host: AppHost) -> None:
        host.secret()
        host.store()  # the driver may be missing

    @contextlib.asynccontextmanager
    async def run(self, host: AppHost) -> AsyncGenerator[None]:
        if host.config.is_remote:
            host.jobs.append(Job(self._get_monitor().run, 0.0))
        yield

    def _open_store(self, host: AppHost) -> Store:
        config, within = host.config, TRANSACTION if host.within is None else host.within
        self._store = open_store(config.state, config.database, upgrades=host.upgrades, within=within)
        return self._store

    def _open_keys(self, host: AppHost) -> SealingKeys:
        secret = host.secret()
        return open_keys(host.store(), secret)

    def _create_transfer(self, host: AppHost) -> "StateTransfer":
        from toolgate.server.features.postgres.transfer import PostgresTransfer  # start-up: for `backup` and `restore`

        secret = host.secret()
        return PostgresTransfer(host.config.state, host.config.database, secret)

    def _open_audit_store(self, host: AppHost) -> "AuditStore":
        from toolgate.server.features.postgres.audit_store import AuditRowStore  # start-up

        return AuditRowStore(host.store(), host.keys())

    def _create_lock(self, name: str) -> "ReplicaLock":
        from toolgate.server.features.postgres.database.replica_lock import ReplicaLock  # start-up

        return ReplicaLock(name, self._connect)

    def _get_monitor(self) -> "PostgresMonitor":
        if self._monitor is None:
            from toolgate.server.features.postgres.database.monitor import PostgresMonitor  # start-up

            assert self._store is not None  # `connect` has opened it
            self._monitor = PostgresMonitor(self._connect, self._store.count_transactions)
        return self._monitor

    async def _connect(self) -> Any:
        from toolgate.server.features.postgres.database import driver  # start-up

        assert self._store is not None
        return await driver.connect(self._store.url)

    def _list_rows(self) -> "list[MetricRow]":
        from toolgate.server.features.postgres.gauges import database_rows  # start-up

        return database_rows(self._get_monitor().health)
