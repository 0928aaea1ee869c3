"""WebSearch: query many engines at once and merge their results.

Enter at `tool` (the model's tool), `lazy_search`, and `search` (all engines at once). `engines` is the table: a new
engine is a row, and a function if it answers neither in JSON (`json_engine`) nor as pages that `ddgs` can read
(`html_engine`).
"""
