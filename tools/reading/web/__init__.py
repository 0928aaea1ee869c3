"""Convert web pages to Markdown.

Enter at `convert`. ReadDocs and the worker processes import it; `tools/api/outbound` fetches the pages.
"""
