"""Mount other MCP servers, and serve their tools, prompts and resources beside our own."""
