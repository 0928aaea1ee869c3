"""Turn pages, PDFs, pictures and their encodings into text that a model reads.

Enter at `pages.page_reader`. `web` fetches and converts HTML, `pdf` and `encodings` read bytes, and `workers` are the
processes in which hostile input is parsed.
"""
