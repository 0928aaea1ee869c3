"""Keep the audit log in the state database that several servers share, under one of its keys."""

from toolgate.server.state.keys.sealing_keys import SealingKeys
from toolgate.server.state.store import Store
from toolgate.server.telemetry.audit import chain_reader, chains, database_log


class AuditRowStore:
    """The rows in `store`."""

    def __init__(self, store: Store, keys: SealingKeys) -> None:
        self._store = store
        self._keys = keys

    def open_log(self) -> database_log.DatabaseLog:
        return database_log.DatabaseLog(self._store, self._keys.find(chains.KEY))

    def open_reader(self) -> chain_reader.OwnRows:
        return chain_reader.OwnRows(self._store, self._keys.find(chains.KEY))

    def may_have_rows(self) -> bool:
        return True
