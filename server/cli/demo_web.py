"""Serve a made-up page and a search engine's answer on loopback for the tour, and draw a picture."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator

import msgspec

PAGE = """<!doctype html><html><head><title>Lighthouses</title></head><body><nav>Home | About</nav><article>
<h1>Lighthouses</h1><p>A lighthouse is a tower that shows a light to ships at night. The first large one stood at
Alexandria and was seen from fifty kilometres away, as <a href="/pharos">travellers reported</a>.</p>
<table><tr><th>Tower</th><th>Metres</th></tr><tr><td>Pharos</td><td>100</td></tr><tr><td>Jeddah</td><td>133</td></tr>
</table><p>Today most of them are automatic, and some are museums that people visit for the view.</p></article></body>
</html>"""
STORIES = {
    "hits": [
        {"objectID": "1", "title": "How a Fresnel lens works", "url": "https://example.org/fresnel", "story_text": ""},
        {"objectID": "2", "title": "Keepers of the light", "url": "https://example.org/keepers", "story_text": ""},
    ]
}


@contextlib.asynccontextmanager
async def small_web() -> AsyncGenerator[str, None]:
    """Serve a page and a search engine's answer on loopback; yields the base URL."""
    stories = msgspec.json.encode(STORIES)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await reader.readuntil(b"\r\n\r\n")
            is_page = b" /lighthouses" in head.split(b"\r\n")[0]
            body, kind = (PAGE.encode(), "text/html; charset=utf-8") if is_page else (stories, "application/json")
            answer = (
                f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(answer.encode() + body)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def bitmap(width: int, height: int) -> bytes:
    """Return a sky from blue to orange, as an uncompressed 24-bit BMP."""
    shares = (y / height for y in range(height))
    rows = [bytes((int(60 + 150 * s), int(140 - 40 * s), int(255 - 200 * s))) * width for s in shares]
    pixels = b"".join(row + b"\0" * (-len(row) % 4) for row in rows)
    header = struct.pack("<2sIHHI", b"BM", 54 + len(pixels), 0, 0, 54)
    return header + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(pixels), 2835, 2835, 0, 0) + pixels
