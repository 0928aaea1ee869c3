"""The official Python SDK's low-level server over Streamable HTTP: echo(text). JSON answers, uvloop and httptools."""

import socket
import sys
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server

ECHO = types.Tool(name="echo", input_schema={"type": "object", "properties": {"text": {"type": "string"}}})


async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[ECHO])


async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    text = (params.arguments or {})["text"]
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


server: Server[Any] = Server("peer", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
config = uvicorn.Config(
    server.streamable_http_app(json_response=True),
    loop="uvloop",
    http="httptools",
    log_level="error",
    timeout_graceful_shutdown=1,
)
listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
print(f"http://127.0.0.1:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
uvicorn.Server(config).run(sockets=[listening])
