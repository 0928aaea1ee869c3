"""The command `toolgate`, with two comments a second on quiet streams: a test can wait through a long silence."""

import sys

from toolgate.transports.sse import SseTransport
from toolgate.transports.streamable_http import StreamableHttpTransport

SECONDS = 0.5

if __name__ == "__main__":
    for made in (StreamableHttpTransport, SseTransport):
        made.__init__.__kwdefaults__["pulse"] = SECONDS
    from toolgate.server.__main__ import main

    sys.exit(main())
