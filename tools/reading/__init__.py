"""Search the web, and turn pages, PDFs and pictures into text that a model reads.

Enter at `pages.page_reader` and `search.tool`. `web` converts HTML, `browser` runs scripts, `pdf` and
`encodings` read bytes, and `workers` are the processes in which hostile input is parsed.
"""
