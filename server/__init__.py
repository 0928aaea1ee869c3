"""Serve MCP."""
