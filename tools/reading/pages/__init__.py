"""Read web pages and pictures for tools: load, convert and decode foreign content.

Enter at `page_reader`, the protocol; `local_page_reader` reads in this process and its children. Tools use the protocol
alone, and the server chooses who reads.
"""
