"""Keep the audit log in the state database that several servers share, under one of its keys."""

from toolgate.server.features.postgres import audit_log, audit_reader
from toolgate.server.state.audit import chains
from toolgate.server.state.keys.sealing_keys import SealingKeys
from toolgate.server.state.store import Store


class AuditRowStore:
    """The rows in `store`."""

    def __init__(self, store: Store, keys: SealingKeys) -> None:
        self._store = store
        self._keys = keys

    def open_log(self) -> audit_log.DatabaseLog:
        return audit_log.DatabaseLog(self._store, self._keys.find(chains.KEY))

    def open_reader(self) -> audit_reader.OwnRows:
        return audit_reader.OwnRows(self._store, self._keys.find(chains.KEY))

    def may_have_rows(self) -> bool:
        return True
