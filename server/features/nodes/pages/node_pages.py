"""Hold what the requests of all gateways share to read pages with."""

from toolgate.tools.api.concurrency.fair_queue import FairQueue
from toolgate.tools.api.errors import ToolError
from toolgate.tools.reading.pages.page_reader import PageReader
from toolgate.tools.reading.search.engines import ENGINES
from toolgate.tools.reading.search.html_engine import ResultReader

MAX_FETCHES = 10  # at once, each of at most messages.MAX_DATA bytes
FETCHES_SHARE = 6  # of them for one principal
MAX_WAITING = 128  # of one principal's fetches
ENTRIES = ("visits", "picture")  # the queues of PageReader that a request takes first
MAX_LANES = 32  # connection pools of fetches


class NodePages:
    """The `reader` of this process, with the bounds of what gateways ask of it."""

    def __init__(self, reader: PageReader) -> None:
        self.reader = reader
        self.fetches = FairQueue(MAX_FETCHES, "pages", per_principal=FETCHES_SHARE, max_waiting=MAX_WAITING)
        self.engines = {engine.name: engine for engine in ENGINES}
        self._result_readers: dict[str, ResultReader] = {}
        self._lanes: set[str] = set()

    def count(self) -> tuple[int, int]:
        """Return how many pages and pictures are read now, and how many wait. A page that is loaded or converted is
        counted once; it waits where it comes last."""
        depths = dict(self.reader.depths())
        running = sum(depths.get(name, (0, 0))[0] for name in ENTRIES) + self.fetches.running
        return running, sum(waiting for _, waiting in depths.values()) + self.fetches.waiting

    def get_result_reader(self, engine: str) -> ResultReader:
        """Return the reader of an engine's pages. Raises ToolError for an engine that this release does not have."""
        if engine not in self.engines:
            raise ToolError(f"the node knows no search engine {engine[:40]}")
        if engine not in self._result_readers:
            self._result_readers[engine] = self.reader.create_result_reader(self.engines[engine])
        return self._result_readers[engine]

    def choose_lane(self, lane: str) -> str:
        """Return the lane, or the common one if there are too many."""
        if len(self._lanes) < MAX_LANES:
            self._lanes.add(lane)
        return lane if lane in self._lanes else ""
