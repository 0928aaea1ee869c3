"""Speak MCP as a small client over stdio and HTTP, for `call`, `demo` and `doctor`.

Enter at `client`. Only the command line imports it.
"""
