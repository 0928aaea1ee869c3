"""The growth table: the rows of all subjects, in the order in which they are printed."""

from tests.bench.growth import people, servers, stores
from tests.bench.growth.measure import Row

ROWS: tuple[Row, ...] = (*stores.ROWS, *servers.ROWS, *people.ROWS)
