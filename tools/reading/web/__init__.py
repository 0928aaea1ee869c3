"""Fetch web pages from public addresses and convert them to Markdown.

Enter at `fetch`. ReadDocs, WebSearch and the egress proxies import it.
"""
