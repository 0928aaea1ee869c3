"""List the HTTP transports, a row each: its option, its path, and the class that serves it.

The options, the metadata of OAuth, traces, metrics, the home page and the HTTP application read the rows.
"""

import msgspec


class HttpTransport(msgspec.Struct, frozen=True):
    """A row.

    - `name`: the option, also in metrics and traces; `short` is the option's letter, `help` its help line.
    - `path`: where clients connect, below the public URL.
    - `factory`: `module:class`, imported when the transport is served.
    - `is_resumable`: its sessions outlive the process.
    """

    name: str
    short: str
    title: str
    path: str
    help: str
    factory: str
    is_resumable: bool = False


HTTP_TRANSPORTS = (  # the first stands for the whole server in metadata
    HttpTransport(
        "http",
        "-t",
        "Streamable HTTP",
        "/mcp",
        "serve Streamable HTTP at /mcp",
        "toolgate.transports.streamable_http:StreamableHttpTransport",
        is_resumable=True,
    ),
    HttpTransport(
        "sse",
        "-s",
        "HTTP+SSE",
        "/sse",
        "serve HTTP+SSE (2024-11-05) at /sse; with -t on the same port",
        "toolgate.transports.sse:SseTransport",
    ),
)
PATHS = tuple(row.path for row in HTTP_TRANSPORTS)
