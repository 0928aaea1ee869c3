"""WebSearch: many engines asked at once, their answers made one list.

`tool` is what a model calls, `engine` what an engine is, `engines` the table of them; `asking` asks them,
`fusion` makes one list. A new engine is a row of the table, and a small file if it does not answer in JSON.
"""

from toolgate.tools.search.engines import verify
from toolgate.tools.search.tool import web_search

__all__ = ["verify", "web_search"]
