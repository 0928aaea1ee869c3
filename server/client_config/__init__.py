"""Configure MCP clients to use this server: print what they read, or write it into their files.

Enter at `snippets.build_snippet` and `install.plan_install`. The composition root and the command line may import it.
"""
