"""WebSearch: many engines asked at once, their answers made one list.

`tool` is what a model calls, and `search` what it asks: all of the `engines` (the table), each by `asking`, unless
`recent` remembers its answer or its `health` forbids it. `engine` says what an engine is; there are two kinds:
`interface` (made for programs) and `scraped` (made for people, read by `borrowed` in a worker that a `reader` asks).
`fusion` makes one list, and `address` knows which URLs are one page. A new engine is a row of the table, and a small
file if neither kind fits.
"""

from toolgate.tools.search.api_keys import read_api_keys as read_keys
from toolgate.tools.search.engines import choose_engines
from toolgate.tools.search.search import Search
from toolgate.tools.search.tool import web_search

__all__ = ["Search", "choose_engines", "read_keys", "web_search"]
