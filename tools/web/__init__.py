"""Fetch web pages and turn them into Markdown, to public addresses alone.

Enter at `fetch`. ReadDocs, WebSearch and the egress proxies import it.
"""
