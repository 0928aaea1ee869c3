"""The official Python SDK's low-level server over stdio: echo(text), and the tool list in a file."""

import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

LISTED = types.ListToolsResult.model_validate_json(Path(sys.argv[1]).read_bytes())  # built once: to its advantage


async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
    return LISTED


async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    text = (params.arguments or {})["text"]
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


async def main() -> None:
    server: Server[Any] = Server("peer", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (source, sink):
        await server.run(source, sink, server.create_initialization_options())


anyio.run(main)
