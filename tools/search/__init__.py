"""WebSearch: query many engines at once and merge their results.

Enter at `tool` (the model's tool) and `search` (all engines at once). `engines` is the table: a new engine is a row,
and a function if it answers neither in JSON (`json_engine`) nor as pages that `ddgs` can read (`html_engine`).
"""

from toolgate.tools.search.api_keys import read_api_keys as read_keys
from toolgate.tools.search.engines import choose_engines
from toolgate.tools.search.search import Search
from toolgate.tools.search.tool import web_search

__all__ = ["Search", "choose_engines", "read_keys", "web_search"]
