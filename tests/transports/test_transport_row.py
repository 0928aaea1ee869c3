"""A further HTTP transport is one class and one row of `transports.HTTP_TRANSPORTS`."""

import sys
from pathlib import Path

from tests.clients.raw_http_client import site
from tests.needed_features import require
from tests.servers.http_in_process import HELLO

WITH_THE_ROW = """
from toolgate.server.config import transports
factory = "toolgate.transports.streamable_http:StreamableHttpTransport"
row = transports.HttpTransport("guild", "-g", "Guild", "/guild", "serve Guild at /guild", factory)
transports.HTTP_TRANSPORTS = (*transports.HTTP_TRANSPORTS, row)
from toolgate.server.__main__ import main
raise SystemExit(main())
"""


def test_its_option_route_page_and_metrics_come_from_the_row(tmp_path: Path) -> None:
    require("telemetry")
    with site(tmp_path, "--guild", command=(sys.executable, "-c", WITH_THE_ROW)) as listening:
        told = listening.ask("GET", "/", accept="application/json")[2]
        assert [told[name] for name in ("mcp", "sse", "guild")] == [
            f"{listening.url}/{name}" for name in ("mcp", "sse", "guild")
        ]
        page = listening.ask("GET", "/", accept="text/html")[1].decode()
        assert "For apps that know Guild only:" in page and f"{listening.url}/guild" in page
        response, _, said = listening.ask("POST", "/guild", HELLO)
        assert (response.status, said["result"]["serverInfo"]["name"]) == (200, "toolgate")
        assert b'toolgate_sessions{transport="guild"} 1' in listening.ask("GET", "/metrics")[1]
