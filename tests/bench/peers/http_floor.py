"""The floor over HTTP: one Starlette route under uvicorn, uvloop and httptools that decodes, echoes and encodes with
msgspec. It assigns session ids and opens streams, but stores nothing."""

import asyncio
import secrets
import socket
import sys
from collections.abc import AsyncGenerator

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode


async def endpoint(request: Request) -> Response:
    if request.method == "GET":
        return StreamingResponse(silence(), media_type="text/event-stream")
    asked = decode(await request.body())
    if "id" not in asked:
        return Response(status_code=202)
    if asked["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "floor", "version": "1"}}
        headers = {"mcp-session-id": secrets.token_urlsafe(24)}
    else:
        result, headers = {"content": [{"type": "text", "text": asked["params"]["arguments"]["text"]}]}, None
    body = encode({"jsonrpc": "2.0", "id": asked["id"], "result": result})
    return Response(body, headers=headers, media_type="application/json")


async def silence() -> AsyncGenerator[bytes, None]:
    yield b": open\n\n"
    await asyncio.Event().wait()


app = Starlette(routes=[Route("/mcp", endpoint, methods=["GET", "POST"])])
listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
print(f"http://127.0.0.1:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
config = uvicorn.Config(app, loop="uvloop", http="httptools", log_level="error", timeout_graceful_shutdown=1)
uvicorn.Server(config).run(sockets=[listening])
