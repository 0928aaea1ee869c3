"""The growth table: the rows of all subjects, in the order in which they are printed."""

from tests.bench.growth import pages, people, servers, sign_in, skills, stores, streams
from tests.bench.growth.measure import Row

ROWS: tuple[Row, ...] = (
    *pages.ROWS,
    *people.ROWS,
    *servers.ROWS,
    *sign_in.ROWS,
    *skills.ROWS,
    *stores.ROWS,
    *streams.ROWS,
)
