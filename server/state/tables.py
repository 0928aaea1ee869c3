"""Load the tables of the state database at their first use: SQLAlchemy costs 370 ms to import.

This is the one door to server/state/schema.py: `from toolgate.server.state import tables`, then `tables.task`.
"""

from typing import TYPE_CHECKING

VERSION = 20  # of the tables: a change of theirs adds one, and a migration
OLDEST = 10  # the first version that is upgraded
COMPATIBLE_SINCE = 6  # the first version whose program can use these tables: it stays where only columns and tables,
# none of which a row must have, are new

if TYPE_CHECKING:
    from toolgate.server.state.schema import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        if name.startswith("__"):  # the import system asks for __path__
            raise AttributeError(name)
        from toolgate.server.state import schema  # start-up

        return getattr(schema, name)
