"""The server that is mounted: it has echo(text), and no part of it is slow. `python echo_server.py [http [ISSUER]]`.

Over stdio it is a loop of blocking read, decode, encode and write; over HTTP an ASGI application under uvicorn, uvloop
and httptools, which prints its address on standard error. With ISSUER it says where
people sign in, and looks at no token.
"""

import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode

TOOL = {
    "name": "echo",
    "description": "Return the text.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
INFO = {"capabilities": {"tools": {}}, "serverInfo": {"name": "echo", "version": "1"}}
Message = dict[str, Any]
Send = Callable[[Any], Awaitable[None]]


def answer(asked: Message) -> Message:
    """Return the answer to a request."""
    params = asked.get("params", {})
    match asked["method"]:
        case "tools/call":
            return _result(asked, {"content": [{"type": "text", "text": params["arguments"]["text"]}]})
        case "tools/list":
            return _result(asked, {"tools": [TOOL]})
        case "initialize":
            return _result(asked, {"protocolVersion": params["protocolVersion"], **INFO})
        case "ping":
            return _result(asked, {})
    return {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "unknown method"}}


def _result(asked: Message, result: Message) -> Message:
    return {"jsonrpc": "2.0", "id": asked["id"], "result": result}


def serve_pipes() -> None:
    rest = b""
    while data := os.read(0, 1 << 18):
        *lines, rest = (rest + data).split(b"\n")
        requests = [asked for asked in map(decode, lines) if "id" in asked]
        if requests:
            os.write(1, b"".join(encode(answer(asked)) + b"\n" for asked in requests))


async def serve_request(scope: Any, receive: Callable[[], Awaitable[Any]], send: Send) -> None:
    """Answer a request over HTTP, as an ASGI application."""
    if scope["method"] == "GET" and sys.argv[2:] and scope["path"].startswith("/.well-known/oauth-protected-resource"):
        host = dict(scope["headers"])[b"host"].decode()
        await _send(send, 200, encode({"resource": f"http://{host}", "authorization_servers": sys.argv[2:]}))
        return
    body = b""
    while (event := await receive()).get("more_body"):
        body += event["body"]
    body += event.get("body", b"")
    asked = decode(body) if scope["method"] == "POST" else {}
    status = 405 if scope["method"] == "GET" else 200 if "id" in asked else 202
    content = encode(answer(asked)) if status == 200 and asked else b""
    session = [(b"mcp-session-id", secrets.token_hex(16).encode())] if asked.get("method") == "initialize" else []
    await _send(send, status, content, *session)


async def _send(send: Send, status: int, content: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def serve_http() -> None:
    import uvicorn  # the server over stdio shows its own memory

    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
    config = uvicorn.Config(
        serve_request, loop="uvloop", http="httptools", log_level="error", lifespan="off", timeout_graceful_shutdown=1
    )
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    serve_http() if sys.argv[1:2] == ["http"] else serve_pipes()
