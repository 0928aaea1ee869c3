"""The growth table: the rows of all subjects, in the order in which they are printed."""

from tests.bench.growth import people, servers, sign_in, stores, streams
from tests.bench.growth.measure import Row

ROWS: tuple[Row, ...] = (*stores.ROWS, *sign_in.ROWS, *servers.ROWS, *streams.ROWS, *people.ROWS)
