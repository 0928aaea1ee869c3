"""Read pages and pictures at the node of the principal who asks.

Enter at `remote_page_reader` in the gateway and at `principal_pages` in the node; `methods` is what goes between them.
"""
