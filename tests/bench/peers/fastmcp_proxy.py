"""FastMCP's proxy: `python fastmcp_proxy.py SERVERS PORT`, run by its own Python (`make peers`).

SERVERS is JSON, as `mcpServers` in a client's file. PORT is 0 for stdio.
"""

import json
import sys

from fastmcp import FastMCP
from fastmcp.server import create_proxy

servers, port = json.loads(sys.argv[1]), int(sys.argv[2])
if len(servers) == 1:
    proxy = create_proxy({"mcpServers": servers})
else:
    proxy = FastMCP("proxy")
    for name, server in servers.items():
        proxy.mount(create_proxy({"mcpServers": {name: server}}), namespace=name)
if port:
    proxy.run(transport="http", host="127.0.0.1", port=port, json_response=True, show_banner=False, log_level="error")
else:
    proxy.run(show_banner=False, log_level="error")
