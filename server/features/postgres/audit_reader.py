"""Read the audit log in the state database, a page at a time."""

from functools import partial

from toolgate.server.base.errors import StateError
from toolgate.server.state.audit import chains
from toolgate.server.state.audit.entry import ChainKey, EntryData, parse_entry
from toolgate.server.state.keys.sealed_state import SealingKey
from toolgate.server.state.store import Store

MORE = 100  # lines that are read besides those that are shown: the newest may be damaged


class OwnRows:
    """Read the audit log in `store` for one principal."""

    def __init__(self, store: Store, key: SealingKey) -> None:
        self._store = store
        self._key = key

    async def read(self, principal: str, most: int) -> list[EntryData]:
        """Return at most `most` valid entries, newest first. Raises OSError."""
        page = partial(chains.read_page, before=chains.LAST, principal=principal, most=most + MORE)
        try:
            rows = await self._store.read(page)
            self._key.mark()  # makes the key's file
            key = ChainKey(self._key.read()[0])
        except StateError as error:
            raise OSError(str(error)) from error
        entries = (parse_entry(row.line, key) for row in rows)
        return [entry for entry in entries if entry is not None and entry["principal"] == principal][:most]
