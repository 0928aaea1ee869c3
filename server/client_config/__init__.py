"""Configure MCP clients to use this server: what they read, as text to paste or as an install link.

Enter at `snippets.build_snippet`. The composition root and the command line may import it.
"""
